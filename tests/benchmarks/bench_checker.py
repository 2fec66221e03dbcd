"""What a listening hazard checker costs per command: ``python tests/benchmarks/bench_checker.py [MOST] [--run]``.

Real commands through the helpers: a fill, a kernel with two buffers and a copy in turn, each waiting for the one before
it in its queue, over buffers of their own and one that all read; the host waits now and then. The unchecked and the
checked side take turns, batch by batch, each on queues and buffers of its own. A user event that the checker does not
know holds each batch back until it is enqueued: else the device would wake up for each command of the slower side, and
the cost of that would count as the checker's. (``--run`` lets the device run.) Figures are medians over the batches, in
processor time of this thread (`cpu`, which neighbours hardly disturb) and by the clock (`wall`). The budget is 12 us a
command over the unchecked helper, the same after 10^6 commands as after 10^3; `known` is how many commands the checker
still has in its books, and `peak` what the process has taken at most so far.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import time
from timeit import timeit

os.environ.setdefault("POCL_DEVICES", "pthread pthread")
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, InOut, MemHandle, _journal
from clmemlife.diagnostics import _hooks
from clmemlife.diagnostics.hazards import Checker

BATCH = 60
BUDGET_US = 12.0
SOURCE = "__kernel void add(__global int *x, __global const int *y, int v) { x[get_global_id(0)] += y[0] + v; }"
Times = tuple[float, float]


class Side:
    """Queues and buffers, and commands on them without end."""

    def __init__(self, context: cl.Context, kernel: cl.Kernel, queues: int) -> None:
        devices = context.devices
        self.kernel, self.one = kernel, np.int32(1)
        self.queues = [cl.CommandQueue(context, devices[number % len(devices)]) for number in range(queues)]
        self.shared = MemHandle.create_buffer(context, 256)
        self.buffers = [MemHandle.create_buffer(context, 4096) for _ in range(2 * queues)]
        cml.enqueue_fill(self.queues[0], self.shared, self.one).wait()
        self.last: list[cl.Event | None] = [None] * queues
        self.number = 0

    def batch(self) -> Times:
        """Enqueue a batch; return microseconds of processor and of clock per command."""
        queues, last, kernel, one, shared = self.queues, self.last, self.kernel, self.one, self.shared
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(BATCH // 3):
            at = self.number % len(queues)
            self.number += 1
            queue, x, y = queues[at], self.buffers[2 * at], self.buffers[2 * at + 1]
            event = cml.enqueue_fill(queue, x, one, wait_for=last[at])
            event = cml.enqueue_kernel(queue, kernel, (16,), None, InOut(x), In(shared), one, wait_for=event)
            last[at] = cml.enqueue_copy(queue, y, x, wait_for=event)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        return cpu / BATCH / 1000, wall / BATCH / 1000

    def hold(self) -> cl.UserEvent:
        """Keep the queues from running, unknown to the checker."""
        gate = cl.UserEvent(self.shared.context)
        for queue in self.queues:
            cl.enqueue_marker(queue, [gate])
        return gate

    def rest(self) -> None:
        cl.wait_for_events([event for event in self.last if event is not None])

    def close(self) -> None:
        for queue in self.queues:
            queue.finish()
        for buffer in (self.shared, *self.buffers):
            buffer.release()


def compare(context: cl.Context, kernel: cl.Kernel, queues: int, steps: list[int], *, held: bool) -> None:
    """Print a row for each number of commands in `steps`, over the batches since the one before."""
    plain, checked, checker = Side(context, kernel, queues), Side(context, kernel, queues), Checker("raise")
    sides: tuple[list[Times], list[Times]] = ([], [])
    done = 0
    for step in steps:
        while done < step:
            for side in (0, 1) if len(sides[0]) % 2 else (1, 0):
                set_status = cl.UserEvent.set_status
                gate = (plain, checked)[side].hold() if held else None
                if side:
                    _journal.subscribe(checker)
                times = (plain, checked)[side].batch()
                if gate is not None:
                    set_status(gate, 0)
                (plain, checked)[side].rest()
                sides[side].append(times)
                if side:
                    _journal.unsubscribe(checker)
            done += BATCH
        (cpu, wall), (cpu2, wall2) = (map(statistics.median, zip(*one, strict=True)) for one in sides)
        within = "within" if cpu2 - cpu <= BUDGET_US else "OVER"
        print(
            f"{queues:>6} {step:>9}{cpu:>10.1f}{cpu2:>10.1f}{cpu2 - cpu:>+10.1f}"
            f"{wall:>10.1f}{wall2:>10.1f}{wall2 - wall:>+10.1f}"
            f"{len(checker._order.nodes):>7}{peak_mib():>10.1f}  {within}",
            flush=True,
        )
        sides = ([], [])
    checker.close()
    assert checker.findings == ()
    plain.close()
    checked.close()


def peak_mib() -> float:
    """Return the most memory that the process has had (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def nobody_listens() -> float:
    """Return nanoseconds that a command spends on asking whether anybody listens (a kernel asks twice)."""
    times = [timeit("bool(_journal.listeners)", globals={"_journal": _journal}, number=10**5) for _ in range(20)]
    return 2 * min(times) * 1e4


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    most, held = numbers[0] if numbers else 10**5, "--run" not in sys.argv
    context = cl.Context(cl.get_platforms()[0].get_devices()[:2])
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "add")
    gc.disable()  # a collection would hit one side or the other
    _hooks.install()  # once, as in a program: Python looks up again what is changed under it
    print(f"{'':16}{'cpu, us a command':>30}{'wall, us a command':>30}")
    columns = "".join(f"{name:>10}" for name in ("without", "checked", "more"))
    print(f"{'queues':>6} {'commands':>9}{columns}{columns}{'known':>7}{'peak, MiB':>10}")
    for queues in (1, 8):
        compare(context, kernel, queues, [step for step in (10**3, 10**4, 10**5, 10**6) if step <= most], held=held)
    print(f"nobody listens: {nobody_listens():.0f} ns/command")
    print(f"PyOpenCL {cl.VERSION_TEXT}, {context.devices[0].platform.version.strip()}")


if __name__ == "__main__":
    main()
