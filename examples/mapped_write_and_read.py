"""The host writes a buffer and reads it through maps, with a kernel in between.

You learn: a `Mapping` gives a NumPy array from its map to its unmap; ``unmap_event`` orders what the device does next;
a map for reading gives a read-only array; at unmap the array is emptied, so that a name kept too long reaches nothing.

Prints::

    a map to write: MAPPED, shape (64, 64)
    a map to read: the kernel saw all that was written
    the array kept from it: shape (0,); the copy: shape (64, 64)
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import InOut, MapFlags, Mapping, MemHandle

SOURCE = "kernel void square(global float *x) { x[get_global_id(0)] *= x[get_global_id(0)]; }"


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    queue = cl.CommandQueue(context)
    square = cl.Kernel(cl.Program(context, SOURCE).build(), "square")
    data = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)

    with MemHandle.create_buffer(context, data.nbytes, label="field") as field:
        with Mapping(
            queue, field, MapFlags.WRITE_INVALIDATE_REGION, shape=data.shape, dtype=data.dtype
        ) as written:  # the old content need not travel to the host, so every byte has to be written
            written.array[:] = data
            print(f"a map to write: {written.state.name}, shape {written.array.shape}")

        squared = cml.enqueue_kernel(queue, square, (data.size,), None, InOut(field), wait_for=written.unmap_event)

        with Mapping(queue, field, MapFlags.READ, shape=data.shape, dtype=data.dtype, wait_for=squared) as read:
            array, copy = read.array, read.copy()  # the first use of `array` waits for the map, and so for the kernel
            assert not array.flags.writeable
            np.testing.assert_array_equal(array, data * data)
            print("a map to read: the kernel saw all that was written")

    print(f"the array kept from it: shape {array.shape}; the copy: shape {copy.shape}")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
