"""What the core costs over plain PyOpenCL: ``python tests/benchmarks/bench_core.py [--rounds N] [--json]``.

The first three rows of the budget table. Both sides of a row take turns in one run, batch by batch, and each figure is
the median over all batches, so that a busy machine disturbs both alike. It still needs a quiet one: no other load, and
a fixed CPU frequency if that can be had. Figures of a machine whose batches differ by half are marked.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

os.environ.setdefault("POCL_DEVICES", "pthread")
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

import numpy as np
import pyopencl as cl

from clmemlife import InOut, MapFlags, Mapping, MemFlags, MemHandle, enqueue_kernel

BATCH = 20
SOURCE = "__kernel void scale(__global float *x, float a) { x[get_global_id(0)] *= a; }"
Side = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One line of the table: medians in microseconds a call; the budget is a sum (us) or a factor."""

    what: str
    plain_us: float
    library_us: float
    budget: str
    within: bool
    noise: float

    @property
    def ratio(self) -> float:
        return self.library_us / self.plain_us


def batch_us(side: Side) -> float:
    """Run a batch; return microseconds a call."""
    begin = time.perf_counter_ns()
    for _ in range(BATCH):
        side()
    return (time.perf_counter_ns() - begin) / BATCH / 1000


def compare(
    what: str,
    plain: Side,
    library: Side,
    *,
    rounds: int,
    finish: Side = lambda: None,
    plus_us: float = 0,
    factor: float = 0,
) -> Row:
    """Let both sides take turns; `finish` ends what a batch has enqueued, outside the measured time."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 3):
        for side in (0, 1) if number % 2 else (1, 0):
            took = batch_us((plain, library)[side])
            finish()
            if number >= 3:  # the first batches warm up
                times[side].append(took)
    before, after = map(statistics.median, times)
    spread = [(q[2] - q[0]) / q[1] for q in (statistics.quantiles(one, n=4) for one in times)]
    within = after <= before + plus_us if plus_us else after <= before * factor
    budget = f"+ {plus_us:g} us" if plus_us else f"{factor:g} x"
    return Row(what, before, after, budget, within, max(spread))


def rows(rounds: int) -> list[Row]:
    device = cl.get_platforms()[0].get_devices()[0]
    context = cl.Context([device])
    queue = cl.CommandQueue(context, device)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "scale")
    field = MemHandle.create_buffer(context, 4096, label="field")
    mem, number = field.mem, np.float32(1)
    found = []

    def plain_buffer() -> None:
        cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096).release()

    def library_buffer() -> None:
        with MemHandle.create_buffer(context, 4096, MemFlags.READ_WRITE):
            pass

    found.append(compare("create a buffer, release it", plain_buffer, library_buffer, rounds=rounds, plus_us=8))

    def plain_map() -> None:
        array, event = cl.enqueue_map_buffer(queue, mem, cl.map_flags.WRITE, 0, (4096,), np.uint8, is_blocking=False)
        event.wait()
        array.base.release(queue)

    def library_map() -> None:
        with Mapping(queue, field, MapFlags.WRITE):
            pass

    def library_map_and_wait() -> None:
        with Mapping(queue, field, MapFlags.WRITE) as mapping:
            _ = mapping.array

    for name, side in (("map 4 KiB, unmap", library_map), ("the same, with its array", library_map_and_wait)):
        found.append(compare(name, plain_map, side, rounds=rounds, finish=queue.finish, factor=1.25))

    def plain_kernel() -> None:
        kernel(queue, (64,), None, mem, number)

    def library_kernel() -> None:
        enqueue_kernel(queue, kernel, (64,), None, InOut(field), number)

    found.append(
        compare("launch a kernel", plain_kernel, library_kernel, rounds=rounds, finish=queue.finish, factor=0.6)
    )
    queue.finish()
    field.release()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help=f"batches of {BATCH} calls for each side (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    gc.disable()  # a collection would hit one side or the other
    found = rows(max(options.rounds, 4))
    if options.json:
        print(json.dumps([{**asdict(row), "ratio": row.ratio} for row in found], indent=2))
        return 0
    print(f"{'':28}{'PyOpenCL':>10}{'clmemlife':>11}{'more':>10}{'ratio':>8}{'budget':>9}")
    for row in found:
        print(
            f"{row.what:28}{row.plain_us:7.1f} us{row.library_us:8.1f} us{row.library_us - row.plain_us:+7.1f} us"
            f"{row.ratio:8.2f}{row.budget:>9}  {'within' if row.within else 'OVER'}"
            + (f"  (unsteady: half of the batches spread over {row.noise:.0%})" if row.noise > 0.5 else "")
        )
    print(f"PyOpenCL {cl.VERSION_TEXT}, {cl.get_platforms()[0].version.strip()}, medians of {options.rounds} batches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
