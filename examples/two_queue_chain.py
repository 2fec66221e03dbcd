"""Chunks that one queue copies to the device and another adds up, through two buffers in turn.

You learn: two queues order nothing between them; each arrow of the picture is a ``wait_for``, also the way back, by
which a buffer is filled anew only after its last content was used. The hazard checker finds no arrow missing.

    copies   fill 0 -> . fill 1 -> . fill 2 ...
    sums      add 0 <-'  add 1 <-'  add 2     (fill 2 also waits for add 0: both use the first buffer)

Prints::

    8 chunks, 2 buffers, 2 queues: the sum agrees with NumPy
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, InOut, MemHandle

SOURCE = "kernel void add(global const int *x, global int *total) { total[get_global_id(0)] += x[get_global_id(0)]; }"


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    copies, sums = cl.CommandQueue(context), cl.CommandQueue(context)
    add = cl.Kernel(cl.Program(context, SOURCE).build(), "add")
    chunks = np.random.default_rng(1).integers(-1000, 1000, (8, 1 << 16), np.int32)
    nbytes = chunks[0].nbytes
    result = np.empty_like(chunks[0])

    with (
        cml.check_hazards(),  # raises where an arrow is missing
        MemHandle.create_buffer(context, nbytes, label="even") as even,
        MemHandle.create_buffer(context, nbytes, label="odd") as odd,
        MemHandle.create_buffer(context, nbytes, label="total") as total,
    ):
        added = [cml.enqueue_fill(sums, total, np.int32(0))]
        for number, chunk in enumerate(chunks):
            buffer = odd if number % 2 else even
            used = added[-2] if number >= 2 else None  # by the chunk before the last
            filled = cml.enqueue_copy(copies, buffer, chunk, is_blocking=False, wait_for=used)
            added.append(
                cml.enqueue_kernel(sums, add, chunk.shape, None, In(buffer), InOut(total), wait_for=[filled, added[-1]])
            )
        cml.enqueue_copy(sums, result, total, wait_for=added[-1])

    np.testing.assert_array_equal(result, chunks.sum(axis=0))
    print(f"{len(chunks)} chunks, 2 buffers, 2 queues: the sum agrees with NumPy")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
