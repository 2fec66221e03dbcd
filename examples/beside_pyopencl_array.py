"""Handles and `pyopencl.array` over the same memory, in both directions.

You learn: `MemHandle.retain` takes a share in the memory of an array, and the array's events go in and out of a
wait-list; `handle.mem` gives the memory of a handle to an array, which keeps it for as long as it needs it.

Prints::

    an array's memory used by a handle: agrees with NumPy
    a handle's memory used by an array: agrees with NumPy
    released by its handle, and still there for the array: agrees with NumPy
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl
import pyopencl.array as cl_array

import clmemlife as cml
from clmemlife import InOut, MemHandle

SOURCE = "kernel void next(global int *x) { ++x[get_global_id(0)]; }"


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    queue = cl.CommandQueue(context)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "next")
    data = np.arange(1024, dtype=np.int32)

    numbers = cl_array.to_device(queue, data)
    memory = numbers.base_data
    assert isinstance(memory, cl.MemoryObjectHolder)  # not SVM
    with MemHandle.retain(memory, label="numbers") as handle:
        use = InOut(handle, numbers.offset, numbers.nbytes)  # an array may be a part of its memory
        numbers.add_event(cml.enqueue_kernel(queue, kernel, data.shape, None, use, wait_for=numbers.events))
        doubled = numbers + numbers  # PyOpenCL waits for the events that it was told of
    np.testing.assert_array_equal(doubled.get(), 2 * (data + 1))
    print("an array's memory used by a handle: agrees with NumPy")

    with MemHandle.create_buffer(context, data.nbytes, label="field") as field:
        filled = cml.enqueue_copy(queue, field, data, is_blocking=False)
        view = cl_array.Array(queue, data.shape, data.dtype, data=field.mem, events=[filled])
        np.testing.assert_array_equal((3 * view).get(), 3 * data)
        print("a handle's memory used by an array: agrees with NumPy")
    np.testing.assert_array_equal((view + 1).get(), data + 1)  # the array has a reference of its own
    print("released by its handle, and still there for the array: agrees with NumPy")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
