"""What the sanitizer costs plain PyOpenCL programs: ``python tests/benchmarks/bench_sanitizer.py [ROUNDS [CALLS]]``.

Each line is one call as a program writes it, without and with `sanitize()`; the sides take turns, and the medians are
compared. Time is that of the calling thread, so that neighbours hardly count; for the loop of launches it is that of
all threads, with what the device does. The budget is 25 us a command, and 3 times the time of that loop.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import clmemlife as cml

SOURCE = """
__kernel void setval(__global int *x, int v) { x[get_global_id(0)] = v; }
__kernel void add(__global const int *a, __global const int *b, __global int *c) {
  int i = get_global_id(0); c[i] = a[i] + b[i]; }
"""
CALLS, ROUNDS, N = 400, 15, 64
LOOP = "a loop of launches, with the device"


def programs() -> dict[str, Callable[[], object]]:
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    program = cl.Program(context, SOURCE).build()
    setval, add = cl.Kernel(program, "setval"), cl.Kernel(program, "add")
    flags = cl.mem_flags.READ_WRITE
    a, b, c = (cl.Buffer(context, flags, 4 * N) for _ in range(3))
    host = np.zeros(N, np.int32)
    seven = np.int32(7)
    x, y = cla.zeros(queue, N, np.int32), cla.zeros(queue, N, np.int32)
    setval.set_args(a, seven)

    def map_and_release() -> None:
        array, _ = cl.enqueue_map_buffer(queue, a, cl.map_flags.WRITE, 0, (N,), np.int32)
        array.base.release(queue)

    return {
        "kernel(queue, ..., buffer, scalar)": lambda: setval(queue, (N,), None, a, seven),
        "kernel(queue, ..., 3 buffers)": lambda: add(queue, (N,), None, a, b, c),
        "kernel(..., wait_for=[event])": lambda: add(queue, (N,), None, a, b, c, wait_for=[events[-1]]),
        "enqueue_nd_range_kernel": lambda: cl.enqueue_nd_range_kernel(queue, setval, (N,), None),
        "enqueue_fill_buffer": lambda: cl.enqueue_fill_buffer(queue, b, seven, 0, 4 * N),
        "enqueue_copy to the device, blocking": lambda: cl.enqueue_copy(queue, b, host),
        "enqueue_copy between buffers": lambda: cl.enqueue_copy(queue, b, c),
        "enqueue_map_buffer and release": map_and_release,
        "array: x + y": lambda: x + y,
        "Buffer and release": lambda: cl.Buffer(context, flags, 4 * N).release(),
        LOOP: lambda: setval(queue, (N,), None, a, seven),
        "": queue.finish,
    }


events: list[cl.Event] = []


@contextmanager
def sanitized(hazards: bool) -> Iterator[None]:
    with cml.sanitize("record", hazards=hazards, leaks=False):
        yield


def measure(call: Callable[[], object], finish: Callable[[], object], calls: int) -> float:
    """Return the time of one call in us."""
    finish()
    result = call()
    if isinstance(result, cl.Event):
        events[:] = [result]
    start = time.thread_time()
    for _ in range(calls):
        call()
    spent = time.thread_time() - start
    finish()
    return spent / calls * 1e6


def loop(call: Callable[[], object], finish: Callable[[], object], calls: int) -> float:
    """Return the time of one launch in a loop that waits at its end, in us of all threads."""
    finish()
    start = time.process_time()
    for _ in range(calls):
        call()
    finish()
    return (time.process_time() - start) / calls * 1e6


def main(rounds: int = ROUNDS, calls: int = CALLS) -> dict[str, tuple[float, float, float]]:
    table = programs()
    finish = table.pop("")
    sides = (nullcontext, lambda: sanitized(False), lambda: sanitized(True))
    title = f"us a call, median of {rounds}"
    print(f"{title:42}{'plain':>9}{'no hazards':>12}{'sanitize':>10}{'more':>8}{'ratio':>8}")
    found = {}
    for name, call in table.items():
        times: tuple[list[float], ...] = ([], [], [])
        for _ in range(rounds):
            for side, spent in zip(sides, times, strict=True):
                with side():
                    spent.append(measure(call, finish, calls))
        plain, light, full = (statistics.median(one) for one in times)
        found[name] = plain, light, full
        print(f"{name:42}{plain:9.1f}{light:12.1f}{full:10.1f}{full - plain:8.1f}{full / plain:8.2f}")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
