"""Shared virtual memory of plain PyOpenCL, as far as it goes: which allocation a pointer is in, and what uses it."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pyopencl as cl

from ... import _journal, _ledger, _opencl
from ...exceptions import ReleasedError
from . import _cpython, _faults
from ._leases import running
from ._places import KEY, Tripwire

_lock = threading.RLock()


def renew_lock() -> None:
    """Take a new lock, in a forked child."""
    global _lock
    _lock = threading.RLock()


_starts: list[int] = []
_areas: dict[int, Area] = {}
busy: dict[int, Area] = {}
"""Those that commands may be using, by the number of their root."""
_HELD_HERE = 2  # by the slot, by the call that asks


class _User(NamedTuple):
    """A command that may be running."""

    event: Any
    site: str
    unmap: bool  # which only touches what nobody has any more


class Area:
    """One allocation."""

    __slots__ = (
        "address", "coarse", "dropped", "flags", "freed", "host", "kind", "memory", "pending", "pooled", "rebound",
        "root", "site", "size", "start",
    )  # fmt: skip

    def __init__(self, start: int, size: int, site: str, *, pooled: bool, coarse: bool) -> None:
        self.start, self.size, self.site, self.pooled = start, size, site, pooled
        self.coarse = coarse  # the host needs a map
        self.freed: str | None = None
        self.root = _ledger.Root(start, size, None, site)
        self.flags, self.kind, self.host = 0, "allocation", None  # what a `Wrapper` has
        self.pending: deque[_User] = deque()
        self.address = 0  # of PyOpenCL's object in memory, as long as that is there
        self.memory: Any = None  # that object, while it must not go
        self.dropped = False  # by the program, while we keep it
        self.rebound = False  # to another queue: PyOpenCL orders the two itself

    @property
    def gone(self) -> bool:
        """Whether the memory has been given back."""
        return self.freed is not None

    def check(self, site: str) -> None:
        """Report a use after the end, which most drivers answer with a crash."""
        if self.freed is not None:
            _faults.report(
                "use_after_release", f"shared virtual memory is used that was freed at {self.freed}", site, self.freed,
                thing=str(self), remedy="Free it after its last use.", error=ReleasedError, fatal=not self.pooled,
            )  # fmt: skip

    def whole(self) -> _journal.Access:
        """Return the use of all of it that is its end."""
        return _journal.Access(self.root.number, 0, self.size, False, True, size=self.size, site=self.site)

    def enqueued(self, event: Any, site: str, *, unmap: bool = False) -> None:
        """Take note of a command, and keep the memory until it is complete, where nothing of PyOpenCL does."""
        if self.pooled or self.freed is not None:
            return
        with _lock:
            self.forget_complete()
            self.pending.append(_User(event, site, unmap))
            if self.root.number not in busy:
                busy[self.root.number] = self
                memory = _cpython.object_at(self.address)
                if memory is not None and memory._queue is None:  # else its end is a command of that queue
                    self.memory = memory

    def running(self) -> _User | None:
        """Return a command that is not complete, an unmap only where there is nothing else."""
        with _lock:
            self.forget_complete()
            left = [one for one in self.pending if running(one.event)]
        return min(left, key=lambda one: one.unmap, default=None)

    def forget_complete(self) -> None:
        """Forget the oldest commands, as far as they are complete."""
        while self.pending and not running(self.pending[0].event):
            self.pending.popleft()

    def __str__(self) -> str:
        return f"SVM of {self.size} bytes, allocated at {self.site}"


class _Alive(Tripwire):
    """Goes with an allocation, also where nobody listens."""

    __slots__ = ()

    def __del__(self, _closing: Callable[[], bool] = sys.is_finalizing) -> None:
        self.about.address = 0
        if not _closing():
            super().__del__(_closing)


class Range:
    """Part of an allocation, as an argument of a kernel or a command."""

    __slots__ = ("area", "size", "start")

    def __init__(self, area: Area, start: int, size: int) -> None:
        self.area, self.start, self.size = area, start, size

    def stands_for(self, pointer: Any) -> bool:
        """Say whether a pointer of PyOpenCL is to the same bytes, and they are there."""
        return self.area.address != 0 and pointer.svm_ptr == self.start and pointer.size == self.size

    def access(self, mode: str, site: str, size: int | None = None) -> _journal.Access:
        """Return the use of these bytes: "read", "write", "update" or, taken as read, "unclear"."""
        area = self.area
        area.check(site)
        start = self.start - area.start
        stop = start + (self.size if size is None else size)
        return _journal.Access(
            area.root.number, start, stop, mode != "write", mode in ("write", "update"), assumed=mode == "unclear",
            size=area.size, site=area.site,
        )  # fmt: skip


def allocated(memory: Any, site: str, flags: int | None = None) -> None:
    """Take note of an allocation; `memory` goes with it. Without `flags`, nothing is known of its maps."""
    start, size = memory.svm_ptr, memory.size
    if not size:
        return
    coarse = flags is not None and not flags & cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
    area = Area(start, size, site, pooled=not isinstance(memory, cl.SVMAllocation), coarse=coarse)
    area.address = id(memory)
    with _lock:
        if start not in _areas:
            _starts.insert(bisect_right(_starts, start), start)
        _areas[start] = area
    setattr(memory, KEY, _Alive(area, freed))


def freed(area: Area, site: str) -> None:
    """Take note that an allocation is given back."""
    if area.freed is not None:
        return
    area.freed = site
    with _lock:
        busy.pop(area.root.number, None)
        if _areas.get(area.start) is area:
            del _areas[area.start]
            _starts.remove(area.start)
    _journal.host(_journal.Released(area.root.number))


def look_at_memory(site: str) -> None:
    """Report memory that the program has dropped while a command uses it, and let go of what none uses any more."""
    for number, area in busy.copy().items():
        if area.memory is not None and not area.dropped and sys.getrefcount(area.memory) <= _HELD_HERE:
            user = area.running()
            if user is not None and not user.unmap:
                area.dropped = True
                report_in_use(area, user.site, site, "(the sanitizer keeps it)", quietly=True)
        with _lock:
            area.forget_complete()
            if not area.pending:
                busy.pop(number, None)
                area.memory = None


def report_in_use(area: Area, user: str, site: str, more: str, *, fatal: bool = False, quietly: bool = False) -> None:
    """Report that memory is freed under a command."""
    _faults.report(
        "freed_in_use",
        f"shared virtual memory is freed while the command enqueued at {user} still uses it {more}".rstrip(),
        site, user, thing=str(area), fatal=fatal, quietly=quietly,
        remedy=f"Keep the memory until the event returned at {user} is complete, or call "
        "enqueue_release(queue, wait_for=[that event]).",
    )  # fmt: skip


def range_of(pointer: Any, site: str) -> Range | None:
    """Return the part of an allocation that a pointer of PyOpenCL stands for, if that was seen."""
    tripwire = getattr(pointer, KEY, None)
    if tripwire is not None:
        tripwire.about.check(site)
    start, size = pointer.svm_ptr, pointer.size
    if tripwire is not None:
        return Range(tripwire.about, start, size)
    with _lock:
        place = bisect_right(_starts, start) - 1
        area = _areas.get(_starts[place]) if place >= 0 else None
    if area is None or start >= area.start + area.size:
        return None
    return Range(area, start, area.start + area.size - start if size is None else size)


def forget_all() -> None:
    """Let go of everything, when the last scope has ended; what commands still use is kept for ever."""
    with _lock:
        for area in busy.values():
            if area.memory is not None and area.running() is not None:
                _opencl.immortalise((area.memory, tuple(area.pending)))
            area.memory = None
        busy.clear()
        _starts.clear()
        _areas.clear()
