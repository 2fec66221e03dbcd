"""The sanitizer: check programs that never heard of this library, while they run."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal

from ... import _ledger
from ..._site import plural
from .._scope import Readers, Scope
from ..hazards import Checker, Finding
from ..leaks._records import LiveRecord
from . import _copies, _faults, _install, _intercept, _leases, _watched, _wrapped
from ._faults import Fault, Faults, from_hazard
from ._leaked import Lost, leaked, report_collected
from ._places import UNSEEN

__all__ = ["Fault", "sanitize"]

Mode = Literal["record", "warn", "raise"]

rewrite_waits: Callable[[Any, list[Any], str], list[Any]] | None = None
"""Called with queue, wait-list and name of each command of plain PyOpenCL that does not block; gives the wait-list that
the driver gets. What is put into it is not taken for an order that the program declares."""
after_enqueue: Callable[[Any, Any], None] | None = None
"""Called with queue and event after each."""
_intercept.outside = sys.modules[__name__]
_checkers: Readers[Checker] = Readers()


class sanitize(Scope):  # noqa: N801 - used like a function, as contextlib.suppress is
    """Check, while the block runs, what a program does with plain PyOpenCL (and libraries over it).

    Parameters
    ----------
    mode : {"record", "warn", "raise"}
        Only `findings`; `HazardWarning` for each new one; or an exception where the mistake is. What would end the
        process (the use of released memory) raises `ReleasedError` in every mode.
    hazards : bool
        Also look for missing events: two uses of the same bytes that nothing orders.
    leaks : bool
        Also list, at the end, what was made in the block and is alive.

    Raises
    ------
    ValueError
        An unknown mode.

    Notes
    -----
    All threads of the process are seen, what the block calls and what runs beside it. Blocks nest; each has its own
    findings. PyOpenCL's entry points are replaced for that time and put back. It does not block and takes no
    reference to an object of the program, which stays its owner. OpenCL specification:
    ``clSetMemObjectDestructorCallback``, ``clRetainMemObject``; "Execution Model: Synchronization".
    """

    def __init__(self, mode: Mode = "record", *, hazards: bool = True, leaks: bool = True) -> None:
        if mode not in ("record", "warn", "raise"):
            raise ValueError(f"mode is {mode!r}; it must be 'record', 'warn' or 'raise'")
        self._faults = Faults(mode)
        self._checker = Checker(mode) if hazards else None
        self._wants_leaks = leaks
        self._lost = Lost()
        self._leaks: tuple[LiveRecord, ...] = ()
        self._running = False
        self._first = 0
        self._knows: Callable[[Any], bool] | None = None
        self._former: dict[str, set[str]] = {}

    # What was found

    @property
    def findings(self) -> tuple[Fault, ...]:
        """What was found so far, each mistake once, with its count."""
        hazards = () if self._checker is None else self._checker.findings
        return (*self._faults.found, *(from_hazard(one, self._former) for one in hazards if _is_news(one)))

    @property
    def leaks(self) -> tuple[LiveRecord, ...]:
        """What was made in the block and is alive at its end (or now), and handles and maps that the collector ended.

        What a variable leads to is left out; at the end of the program no handle or `Mapping` is.
        """
        if self._running and self._wants_leaks:
            return leaked(self._first, self._lost)
        return self._leaks

    @property
    def unknown(self) -> Mapping[str, int]:
        """What could not be known, and how often."""
        return dict(self._faults.unknown)

    @property
    def statistics(self) -> Mapping[str, int]:
        """How many commands, memory objects and maps of plain PyOpenCL were seen."""
        seen = self._faults
        return {"commands": seen.commands, "objects": seen.objects, "maps": seen.maps}

    def report(self) -> str:
        """Return all of it as text.

        Returns
        -------
        str
            The findings, what is alive, what is not known, and a last line with the sums.
        """
        findings, leaks = self.findings, self.leaks
        lines = [str(one) for one in findings]
        lines += [
            f"leak: {text}" + (f" ({count} times)" if count > 1 else "")
            for text, count in Counter(map(str, leaks)).items()
        ]
        lines += [f"not known: {reason} ({count} times)" for reason, count in sorted(self.unknown.items())]
        seen = ", ".join(plural(count, what.removesuffix("s")) for what, count in self.statistics.items())
        lines.append(f"{plural(len(findings), 'finding')}, {plural(len(leaks), 'leak')}; seen: {seen}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON.

        Returns
        -------
        dict
            ``findings``, ``leaks`` (lists), ``unknown`` and ``statistics``.
        """
        return {
            "findings": [one.as_dict() for one in self.findings],
            "leaks": [{**_plain(one), "text": str(one)} for one in self.leaks],
            "unknown": dict(self.unknown),
            "statistics": dict(self.statistics),
        }

    # The scope

    def start(self) -> None:
        """Begin to look, as entering the block does.

        Raises
        ------
        RuntimeError
            It has begun already.
        """
        with _install.lock:
            if self._running:
                raise RuntimeError("this sanitizer has begun already")
            _install.install()
            self._running = True
            self._first = next(_ledger._numbers)
            self._former = _wrapped.former
            self._lost.start(self._first)
            _faults.active = (*_faults.active, self._faults)
            if self._checker is not None:
                _checkers.begin(self._checker)
                self._knows = self._checker.has_waited_for
                _watched.known_settled.append(self._knows)

    def stop(self) -> None:
        """Look no more, judge what hangs on user events, and put PyOpenCL back, as leaving the block does.

        Notes
        -----
        It may be called by any thread, and more than once: the first call does it, also if judging fails.
        """
        with _install.lock:
            running, self._running = self._running, False
        if not running:
            return
        try:
            _copies.look_at_events()
            report_collected()
            gc.collect()
            report_collected(ours=True)
            _leases.look_at_leases(UNSEEN)
            if self._wants_leaks:
                self._leaks = leaked(self._first, self._lost)
        finally:
            listened = self._end()
        if self._checker is not None and listened:
            self._checker.close()

    def _end(self) -> bool:
        """Put all back; say whether the checker has listened until now: it has not in a forked child."""
        with _install.lock:
            self._lost.stop()
            _faults.active = tuple(one for one in _faults.active if one is not self._faults)
            if self._knows in _watched.known_settled:
                _watched.known_settled.remove(self._knows)
            _install.uninstall()
            return self._checker is not None and _checkers.end(self._checker)


def _is_news(finding: Finding) -> bool:
    """Say whether the interception has not reported it itself, with more to say."""
    return finding.hazard != "host_map"


def _plain(record: LiveRecord) -> dict[str, Any]:
    return {**asdict(record), "flags": str(record.flags)}
