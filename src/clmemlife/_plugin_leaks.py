"""Which test, or which fixture of a wide scope, made an object: what the pytest plugin judges. No pytest here.

PyOpenCL is loaded when the first object appears, not before.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _ledger

if TYPE_CHECKING:
    from .diagnostics.leaks import Window
    from .diagnostics.leaks._raw import RawWatch
    from .diagnostics.leaks._records import LiveRecord
    from .diagnostics.leaks.tracking import track


class Leak(NamedTuple):
    """What is alive, and the fixture that made it (``""`` for the test itself and its function fixtures)."""

    record: LiveRecord
    fixture: str


class Figures(NamedTuple):
    """What a test used: most bytes alive at once beyond those before it, bytes and handles made, seconds to judge."""

    peak_bytes: int
    total_bytes: int
    total_count: int
    free_seconds: float


class LeakChecker:
    """Follow all objects of a test run; `begin` and `end` enclose one test."""

    def __init__(self, *, raw: bool = False) -> None:
        self._tracker: track | None = None
        self._window: Window | None = None
        self._raw = _raw_watch() if raw else None
        self._first = self._begin_bytes = self._total_bytes = self._total_count = 0
        self._owned: dict[int, str] = {}
        self._numbers_of: dict[int, list[int]] = {}
        self._due: dict[int, str] = {}
        _ledger.observe(self)

    def close(self) -> None:
        """Stop to listen."""
        _ledger.unobserve(self)
        if self._tracker is not None:
            self._tracker._abandon()
        if self._raw is not None:
            self._raw.close()

    def _start(self) -> track:
        from . import track  # by the package, which also arranges for the end of the process

        tracker = track("record")
        tracker.start()
        tracker._first = 0
        self._tracker = tracker
        return tracker

    # -- for the ledger ------------------------------------------------------------------------------------------------

    def _added(self, entry: _ledger.Entry) -> None:
        """Start to track with the first object."""
        if self._tracker is None:
            self._start()._added(entry)

    def _lost(self, entry: _ledger.Entry | _ledger.MapEntry) -> None:
        """Leave it to the tracker, which has been listening since the first object."""

    def _ended(self, root: _ledger.Root) -> None:
        """What ends by itself is no leak."""

    # -- for the plugin ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a test."""
        if self._tracker is None and _ledger.entries():  # made while tests were collected
            self._start()
        self._first = next(_ledger._numbers)
        counters = _ledger.counters
        self._begin_bytes = counters.current_bytes
        self._total_bytes, self._total_count = counters.total_bytes, counters.total_count
        if self._tracker is not None:
            from .diagnostics.leaks import Window, fold_peaks

            self._window = Window()
            fold_peaks(opened=self._window)
        if self._raw is not None:
            self._raw.begin()

    def end(self, *, judge: bool = True) -> tuple[list[Leak], Figures]:
        """End a test: return what it leaks (or only what finished fixtures leak), and what it used."""
        leaks: list[Leak] = []
        tracker = self._tracker
        began = time.monotonic()
        if tracker is not None:
            if self._suspects(judge):
                _clear_caches()
                leaks = self.leaks(judge=judge)
            tracker._collected.clear()
        if self._raw is not None and judge:
            leaks += [Leak(record, "") for record in self._raw.leaks()]
        self._due.clear()
        return leaks, self._figures(time.monotonic() - began)

    def leaks(self, *, judge: bool = True) -> list[Leak]:
        """Return what is alive now of this test and of fixtures that are finished."""
        if self._tracker is None:
            return []
        due, owned, first = self._due, self._owned, self._first
        numbers: list[int] = []

        def wanted(number: int) -> bool:
            return number in due or (judge and number > first and number not in owned)

        records = self._tracker._judge(wanted, numbers)
        return [Leak(record, due.get(number, "")) for record, number in zip(records, numbers, strict=True)]

    def _suspects(self, judge: bool) -> bool:
        tracker = self._tracker
        assert tracker is not None
        return any(
            tracker._suspects(
                lambda number: number in self._due or (judge and number > self._first and number not in self._owned)
            )
        )

    @contextmanager
    def fixture(self, key: int, name: str) -> Iterator[None]:
        """Count what is made in here to a fixture of a wide scope, which may outlive the test."""
        first = next(_ledger._numbers)
        before = set(self._raw.snapshot()) if self._raw is not None else set()
        try:
            yield
        finally:
            last = next(_ledger._numbers)
            if self._raw is not None:
                self._raw.own(key, before)
            mine = [number for number in range(first + 1, last) if number not in self._owned]
            self._numbers_of.setdefault(key, []).extend(mine)
            self._owned.update(dict.fromkeys(mine, name))

    def fixture_finished(self, key: int) -> None:
        """Judge what the fixture made when the test at hand ends."""
        for number in self._numbers_of.pop(key, ()):
            self._due[number] = self._owned.pop(number)
        if self._raw is not None:
            self._raw.disown(key)

    def _figures(self, free_seconds: float) -> Figures:
        peak = 0
        if self._tracker is not None and self._window is None:  # the first test that makes anything
            peak = self._tracker.peak_bytes
        elif self._window is not None:
            from .diagnostics.leaks import fold_peaks

            fold_peaks(closed=self._window)
            peak = self._window.peak_bytes
            self._window = None
        counters = _ledger.counters
        total_bytes, total_count = counters.total_bytes - self._total_bytes, counters.total_count - self._total_count
        return Figures(max(0, peak - self._begin_bytes), total_bytes, total_count, free_seconds)


def _raw_watch() -> RawWatch | None:
    try:
        from .diagnostics.leaks._raw import RawWatch
    except ImportError:  # without PyOpenCL there is nothing to see
        return None
    return RawWatch()


def _clear_caches() -> None:
    """Empty what PyOpenCL keeps for each context."""
    tools: Any = sys.modules.get("pyopencl.tools")
    if tools is not None:
        tools.clear_first_arg_caches()


def leaks_text(leaks: list[Leak], allowed: int) -> str:
    """Return the message of a test that leaks."""
    more = f" ({allowed} allowed by cl_leaks)" if allowed else ""
    sites = ", ".join(dict.fromkeys(os.path.basename(one.record.site) for one in leaks))
    lines = [f"{len(leaks)} OpenCL leak{'s' if len(leaks) > 1 else ''} at {sites}{more}"]
    for leak in leaks:
        lines.append("  " + str(leak.record).replace("\n", "\n  "))
        if leak.fixture:
            lines.append(f"    made by fixture {leak.fixture!r}")
    return "\n".join(lines)
