"""Shared virtual memory of plain PyOpenCL, as far as it goes: which allocation a pointer is in."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

import pyopencl as cl

from ... import _journal, _ledger
from ...exceptions import ReleasedError
from . import _faults
from ._places import KEY, Tripwire

_lock = threading.RLock()
_starts: list[int] = []
_areas: dict[int, Area] = {}


class Area:
    """One allocation."""

    __slots__ = ("freed", "pooled", "root", "site", "size", "start")

    def __init__(self, start: int, size: int, site: str, *, pooled: bool) -> None:
        self.start, self.size, self.site, self.pooled = start, size, site, pooled
        self.freed: str | None = None
        self.root = _ledger.Root(start, size, None, site)

    def check(self, site: str) -> None:
        """Report a use after the end, which most drivers answer with a crash."""
        if self.freed is not None:
            _faults.report(
                "use_after_release", f"shared virtual memory is used that was freed at {self.freed}", site, self.freed,
                thing=f"SVM of {self.size} bytes, allocated at {self.site}", remedy="Free it after its last use.",
                error=ReleasedError, fatal=not self.pooled,
            )  # fmt: skip


class Range:
    """Part of an allocation, as an argument of a kernel or a command."""

    __slots__ = ("area", "size", "start")

    def __init__(self, area: Area, start: int, size: int) -> None:
        self.area, self.start, self.size = area, start, size

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


def allocated(memory: Any, site: str) -> None:
    """Take note of an allocation; `memory` goes with it."""
    start, size = memory.svm_ptr, memory.size
    if not size:
        return
    area = Area(start, size, site, pooled=not isinstance(memory, cl.SVMAllocation))
    with _lock:
        if start not in _areas:
            _starts.insert(bisect_right(_starts, start), start)
        _areas[start] = area
    setattr(memory, KEY, Tripwire(area, freed))


def freed(area: Area, site: str) -> None:
    """Take note that an allocation is given back."""
    if area.freed is not None:
        return
    area.freed = site
    with _lock:
        if _areas.get(area.start) is area:
            del _areas[area.start]
            _starts.remove(area.start)
    _journal.host(_journal.Released(area.root.number))


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


def access(pointer: Any, site: str, *, reads: bool, writes: bool, size: int | None = None) -> _journal.Access | None:
    """Return the use of what a pointer stands for, ``None`` where that is not known."""
    part = range_of(pointer, site)
    return (
        None if part is None else part.access("read" if not writes else "write" if not reads else "update", site, size)
    )


def forget_all() -> None:
    """Let go of everything, when the last scope has ended."""
    with _lock:
        _starts.clear()
        _areas.clear()
