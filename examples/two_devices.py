"""Chunks that one device squares and another adds one to; each travels while the other device has the one before.

You learn: a buffer belongs to a context, its content to one device at a time; a `Migration` takes it to the next one,
early and on a queue of its own, and is an item of a wait-list like an event. Where there is one device it is both.

Prints::

    6 chunks over ... device(s) agree with NumPy
    0 objects alive
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

os.environ.setdefault("POCL_DEVICES", "pthread pthread")  # two of one CPU; read when PyOpenCL loads the driver

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import InOut, MemHandle, Migration

SOURCE = """
kernel void square(global int *x) { x[get_global_id(0)] *= x[get_global_id(0)]; }
kernel void add_one(global int *x) { ++x[get_global_id(0)]; }
"""


def main() -> None:
    try:
        one = cl.create_some_context(interactive=False).devices[0]
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    context = cl.Context(one.platform.get_devices()[:2])
    first, second = context.devices[0], context.devices[-1]
    work, arrivals, work2 = (cl.CommandQueue(context, device) for device in (first, second, second))
    program = cl.Program(context, SOURCE).build()
    square, add_one = cl.Kernel(program, "square"), cl.Kernel(program, "add_one")
    chunks = np.random.default_rng(1).integers(0, 1000, (6, 1 << 16), np.int32)
    results = np.empty_like(chunks)

    with cml.check_hazards(), ExitStack() as stack:
        reads: list[cl.Event] = []
        for chunk, result in zip(chunks, results, strict=True):
            x = stack.enter_context(MemHandle.create_buffer(context, chunk.nbytes, label="chunk"))
            filled = cml.enqueue_copy(work, x, chunk, is_blocking=False)
            squared = cml.enqueue_kernel(work, square, chunk.shape, None, InOut(x), wait_for=filled)
            moved = Migration(arrivals, x, wait_for=squared)  # while `work2` is busy with the chunk before
            added = cml.enqueue_kernel(work2, add_one, chunk.shape, None, InOut(x), wait_for=moved)
            reads.append(cml.enqueue_copy(work2, result, x, is_blocking=False, wait_for=added))
        cl.wait_for_events(reads)

    np.testing.assert_array_equal(results, chunks**2 + 1)
    print(f"{len(chunks)} chunks over {len(context.devices)} device(s) agree with NumPy")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
