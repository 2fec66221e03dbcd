"""Two halves of one buffer, filled by two queues at the same time.

You learn: a sub-buffer is a handle of its own, which keeps the memory also when the whole is released first; its origin
must suit the devices, and an error names origins that do; uses of different bytes need no order, which the hazard
checker confirms.

Prints::

    an origin of 4 bytes: AlignmentError: ...; nearest valid: 0 and ...
    each half has its own number
    the whole is released; alive: left, right
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import MemHandle

HALF = 1 << 16  # bytes; no device asks for a larger alignment


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    queue, queue2 = cl.CommandQueue(context), cl.CommandQueue(context)
    result = np.empty((2, HALF // 4), np.int32)

    whole = MemHandle.create_buffer(context, 2 * HALF, label="whole")
    with whole, whole.sub_buffer(0, HALF, label="left") as left, whole.sub_buffer(HALF, HALF, label="right") as right:
        try:
            whole.sub_buffer(4, HALF)
        except cml.AlignmentError as error:
            print(f"an origin of 4 bytes: AlignmentError: {error}")

        with cml.check_hazards():
            filled = [
                cml.enqueue_fill(queue, left, np.int32(1)),
                cml.enqueue_fill(queue2, right, np.int32(2)),
            ]
            cml.enqueue_copy(queue, result, whole, wait_for=filled)
        np.testing.assert_array_equal(result, np.full_like(result, [[1], [2]]))
        print("each half has its own number")

        whole.release()  # the halves do not mind
        print("the whole is released; alive:", ", ".join(record.label or "" for record in cml.live()))

    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
