"""What the hazard checker costs per command, and what it keeps: ``python tests/benchmarks/bench_hazards.py [MOST]``.

No device is needed: the records are built and published as the library does it, events are plain objects that nobody
keeps. Each round of a queue is a copy in, a kernel with three arguments and a copy out over its own buffers and one
that all read, ordered by wait-lists; now and then the host waits. The budget is 12 us a command, flat, with bounded
memory (the peak of each run, taken in a second one). Time is the processor's, so that neighbours hardly count.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from itertools import product
from pathlib import Path
from timeit import timeit
from typing import Any

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


def run(commands: int, queues: int, *, loose: bool, parts: int) -> None:
    """Publish about `commands` commands on `queues` queues; the copies in take one of `parts` parts in turn."""
    last: list[tuple[object, ...]] = [()] * queues
    for number in range(commands // 3):
        queue = number % queues
        source, target = 1 + 2 * queue, 2 + 2 * queue
        start = number // queues % parts * (SIZE // parts)
        neighbour = last[queue - 1] if number % 32 == 31 else ()
        sent = publish(
            "enqueue_copy",
            queue,
            (use(source, False, True, start, start + SIZE // parts),),
            last[queue] + neighbour,
            loose,
        )
        uses = use(0, True, False), use(source, True, False), use(target, True, True)
        ran = publish("enqueue_kernel", queue, uses, (sent,), loose)
        back = publish("enqueue_copy", queue, (use(target, True, False),), (ran,), loose)
        last[queue] = (back,)
        if number % 1000 == 999:
            _journal.host(HostWait(events=last[queue]))


class Nobody:
    """Listens and does nothing: what is left is the cost of the records."""

    def ignore(self, record: object) -> None:
        pass

    before = after = abandoned = host = ignore


def measure(listener: object, commands: int, queues: int, **shape: Any) -> float:
    """Return microseconds of processor time per command."""
    gc.collect()
    _journal.subscribe(listener)
    begin = time.process_time()
    run(commands, queues, **shape)
    _journal.unsubscribe(listener)
    return (time.process_time() - begin) / commands * 1e6


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    print(f"records alone: {min(measure(Nobody(), 30_000, 1, loose=False, parts=1) for _ in range(3)):.2f} us/command")
    print(f"{'queues':>20} {'parts':>5} {'commands':>9} {'us/command, records included':>28} {'peak KiB':>9}")
    for queues, loose, parts in product((1, 8), (False, True), (1, 16)):
        for commands in (10**3, 10**4, 10**5, 10**6):
            if commands <= most:
                runs = 1 if commands > 10**5 else 3
                micro = min(measure(Checker("raise"), commands, queues, loose=loose, parts=parts) for _ in range(runs))
                tracemalloc.start()
                measure(Checker("raise"), commands, queues, loose=loose, parts=parts)
                kib = tracemalloc.get_traced_memory()[1] / 1024
                tracemalloc.stop()
                name = f"{queues} {'out-of-order' if loose else 'in-order'}"
                print(f"{name:>20} {parts:>5} {commands:>9} {micro:>28.2f} {kib:>9.0f}", flush=True)
    seconds = timeit("if _journal.listeners: raise", globals={"_journal": _journal}, number=10**6)
    print(f"nobody listens: {seconds * 1e3:.0f} ns/command")


if __name__ == "__main__":
    main()
