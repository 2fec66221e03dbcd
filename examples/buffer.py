"""A buffer in a ``with`` block: filled, used by a kernel, read, and given back exactly once.

You learn: each step takes ``wait_for`` and gives an event, and only events order the steps; what a step uses stays
alive until it is done; after the block the handle is an error that says where it was released, not a crash.

Prints::

    in the block: 'field' of 4096 bytes, alive
    the result agrees with NumPy
    after the block: ReleasedError: 'field' (4096 bytes, ...) was released at ...buffer.py:... and cannot be used ...
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import InOut, MemHandle

SOURCE = "kernel void scale(global float *x, float factor) { x[get_global_id(0)] *= factor; }"


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    queue = cl.CommandQueue(context)
    scale = cl.Kernel(cl.Program(context, SOURCE).build(), "scale")
    data = np.arange(1024, dtype=np.float32)
    result = np.empty_like(data)

    with MemHandle.create_buffer(context, data.nbytes, label="field") as field:
        filled = cml.enqueue_copy(queue, field, data, is_blocking=False)
        scaled = cml.enqueue_kernel(queue, scale, data.shape, None, InOut(field), np.float32(3), wait_for=filled)
        cml.enqueue_copy(queue, result, field, wait_for=scaled)  # blocks, as a copy to the host does in PyOpenCL
        print(f"in the block: {field.label!r} of {field.size} bytes, {cml.live()[0].state}")

    np.testing.assert_array_equal(result, 3 * data)
    print("the result agrees with NumPy")
    try:
        cml.enqueue_fill(queue, field, np.float32(0))
    except cml.ReleasedError as error:
        print("after the block: ReleasedError:", error)
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
