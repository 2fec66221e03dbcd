"""What the hazard checker costs per command, and what it keeps: ``python tests/benchmarks/bench_hazards.py [MOST]``.

No device is needed: the records are built and published as the library does it, events are plain objects that nobody
keeps. Each round of a queue is a copy in, a kernel and a copy out over its own buffers and one that all read, ordered
by wait-lists; now and then the host waits. The budget is 12 us a command, flat, with bounded memory.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from clmemlife import _journal
from clmemlife._journal import Access, Command, HostWait
from clmemlife.diagnostics.hazards import Checker

SIZE = 1 << 20


class Event:
    """Stands for an event: hashable by identity."""

    __slots__ = ()


def use(obj: int, reads: bool, writes: bool, start: int = 0, stop: int = SIZE) -> Access:
    return Access(obj, start, stop, reads, writes, label=f"buffer {obj}", size=SIZE, site="bench.py:1")


def publish(kind: str, queue: int, accesses: tuple[Access, ...], waits: tuple[object, ...], loose: bool) -> object:
    command = Command(kind, queue, accesses=accesses, waits=waits, out_of_order=loose, site="bench.py:2")
    _journal.before(command)
    event = Event()
    _journal.after(command, event)
    return event


def run(commands: int, queues: int, *, loose: bool, waits: bool) -> None:
    """Publish about `commands` commands on `queues` queues."""
    last: list[tuple[object, ...]] = [()] * queues
    for number in range(commands // 3):
        queue = number % queues
        source, target = 1 + 2 * queue, 2 + 2 * queue
        part = number // queues % 16 * (SIZE // 16)
        neighbour = last[queue - 1] if number % 32 == 31 else ()
        sent = publish(
            "enqueue_copy", queue, (use(source, False, True, part, part + SIZE // 16),), last[queue] + neighbour, loose
        )
        ran = publish(
            "enqueue_kernel",
            queue,
            (use(0, True, False), use(source, True, False), use(target, True, True)),
            (sent,),
            loose,
        )
        back = publish("enqueue_copy", queue, (use(target, True, False),), (ran,), loose)
        last[queue] = (back,)
        if waits and number % 1000 == 999:
            _journal.host(HostWait(events=last[queue]))


def measure(commands: int, queues: int, *, loose: bool, waits: bool) -> tuple[float, float]:
    """Return microseconds per command, and the peak of the memory that the checker keeps in KiB."""
    figures = []
    for traced in (False, True):
        checker = Checker("raise")
        _journal.subscribe(checker)
        gc.collect()
        if traced:
            tracemalloc.start()
        begin = time.perf_counter()
        run(min(commands, 100_000) if traced else commands, queues, loose=loose, waits=waits)
        figures.append((time.perf_counter() - begin) / commands * 1e6)
        if traced:
            figures[1] = tracemalloc.get_traced_memory()[1] / 1024
            tracemalloc.stop()
        _journal.unsubscribe(checker)
    return figures[0], figures[1]


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    print(f"{'queues':>24} {'commands':>9} {'us/command':>11} {'peak KiB':>9}")
    for queues in (1, 8):
        for loose in (False, True):
            for waits in (True, False):
                for power in (3, 4, 5, 6):
                    if 10**power <= most:
                        name = f"{queues} {'out-of-order' if loose else 'in-order'}{'' if waits else ', no wait'}"
                        micro, kib = measure(10**power, queues, loose=loose, waits=waits)
                        print(f"{name:>24} {10**power:>9} {micro:>11.2f} {kib:>9.0f}", flush=True)
    begin = time.perf_counter()
    for _ in range(10**6):
        if _journal.listeners:
            raise AssertionError("nobody listens")
    print(f"nobody listens: {(time.perf_counter() - begin) * 1e3:.1f} ns/command")


if __name__ == "__main__":
    main()
