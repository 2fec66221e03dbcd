"""A missing event, found whether or not the result was wrong this time, and written down.

You learn: `check_hazards` finds two uses of the same bytes that nothing orders; the finding names both lines and the
``wait_for`` to add. (``CLMEMLIFE_CHECK=hazards python program.py`` does the same for a whole program.)

Prints::

    without the event: 1 finding
      read-after-write on 'x' (4096 bytes, created at ...hazard_hunt.py:...)
      enqueue_kernel 'twice' on queue 2 (...hazard_hunt.py:...) reads bytes [0, 4096)
      enqueue_copy on queue 1 (...hazard_hunt.py:...) may still be writing bytes [0, 4096)
      Nothing orders the two: ... At ...hazard_hunt.py:... add wait_for=[event returned at ...hazard_hunt.py:...].
    with it: 0 findings, and the result agrees with NumPy
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, MemHandle, Out

SOURCE = "kernel void twice(global const int *x, global int *y) { y[get_global_id(0)] = 2 * x[get_global_id(0)]; }"


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    queue, queue2 = cl.CommandQueue(context), cl.CommandQueue(context)
    twice = cl.Kernel(cl.Program(context, SOURCE).build(), "twice")
    data = np.arange(1024, dtype=np.int32)
    result = np.empty_like(data)

    def run(*, ordered: bool) -> tuple[cml.Finding, ...]:
        with (
            cml.check_hazards("record") as checker,
            MemHandle.create_buffer(context, data.nbytes, label="x") as x,
            MemHandle.create_buffer(context, data.nbytes, label="y") as y,
        ):
            filled = cml.enqueue_copy(queue, x, data, is_blocking=False)
            edge = filled if ordered else None
            done = cml.enqueue_kernel(queue2, twice, data.shape, None, In(x), Out(y), wait_for=edge)
            cml.enqueue_copy(queue2, result, y, wait_for=done)
            queue.finish()
        return checker.findings

    findings = run(ordered=False)
    print(f"without the event: {len(findings)} finding")
    for line in str(findings[0]).splitlines()[:4]:
        print(" ", line.strip())
    print(f"with it: {len(run(ordered=True))} findings, and", end=" ")
    np.testing.assert_array_equal(result, 2 * data)
    print("the result agrees with NumPy")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
