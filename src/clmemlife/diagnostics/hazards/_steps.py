"""One step at a time: what comes while a thread is inside (a collection may enqueue an unmap) waits for its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ._findings import Report


class Steps:
    """The lock of a checker. Steps of other threads wait; those of the same thread are taken right after, quietly."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.RLock()
        self._inside = False
        self._later: list[tuple[Callable[[Any], None], Any]] = []

    def forget_in_child(self) -> None:
        """Let no step of another thread hold up a forked child, which takes none."""
        self._lock, self._inside = threading.RLock(), False

    def _step(self, step: Callable[[Any], None], value: Any) -> None:
        with self._lock:
            if self._inside:
                self._later.append((step, value))
                return
            self._inside = True
            try:
                step(value)
            finally:
                if self._later:
                    self._catch_up()
                self._inside = False

    def _soon(self, step: Callable[[Any], None], value: Any) -> None:
        """Take a step that finds nothing as soon as nobody else is inside; never waits, also from a finalizer."""
        self._later.append((step, value))
        if self._lock.acquire(blocking=False):
            try:
                if not self._inside:
                    self._step(lambda _: None, None)
            finally:
                self._lock.release()

    def _exclusively(self, function: Callable[..., Any], *values: Any) -> Any:
        """Return what a function that changes nothing says; also from inside of a step."""
        with self._lock:
            inside, self._inside = self._inside, True
            try:
                return function(*values)
            finally:
                if self._later and not inside:
                    self._catch_up()
                self._inside = inside

    def _catch_up(self) -> None:
        self._report.quiet = True
        try:
            while self._later:
                step, value = self._later.pop(0)
                step(value)
        finally:
            self._report.quiet = False
