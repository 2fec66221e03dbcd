"""A NumPy array that a device works on where it is, without a copy where the device shares the host's memory.

You learn: `aligned_empty` makes an array that every device of the context can use in place; a map shows the host what
the device did, in that very array; the array is kept for as long as the memory object lives, also if you forget it.

Prints::

    the mapped array is the array itself: True
    twice the numbers, as NumPy says
    a second object over the same memory: HostAliasError: ... overlaps the host memory of 'numbers' ...
    4194304 bytes stay, though no name is left for the array
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import InOut, MapFlags, Mapping, MemFlags, MemHandle

SOURCE = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }"


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    queue = cl.CommandQueue(context)
    twice = cl.Kernel(cl.Program(context, SOURCE).build(), "twice")

    array = cml.aligned_empty(1 << 20, np.int32, context)
    array[:] = np.arange(array.size)
    flags = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
    with MemHandle.create_buffer(
        context, flags=flags, hostbuf=array, require_zero_copy=True, label="numbers"
    ) as numbers:
        done = cml.enqueue_kernel(queue, twice, array.shape, None, InOut(numbers))
        with Mapping(queue, numbers, MapFlags.READ, shape=array.shape, dtype=array.dtype, wait_for=done) as mapped:
            print("the mapped array is the array itself:", mapped.array.ctypes.data == array.ctypes.data)
            np.testing.assert_array_equal(array, 2 * np.arange(array.size))
            print("twice the numbers, as NumPy says")
        try:
            MemHandle.create_buffer(context, flags=flags, hostbuf=array)
        except cml.HostAliasError as error:
            print("a second object over the same memory: HostAliasError:", error)
        del array
        print(f"{cml.statistics().leased_bytes} bytes stay, though no name is left for the array")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
