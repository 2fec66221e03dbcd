"""Scopes that know what was made in them and not ended: `track`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Literal

import pyopencl as cl

from ... import _callbacks, _inflight, _ledger
from ..._meminfo import whole_of
from ..._site import warn_at
from ...exceptions import LeakError, LeakWarning
from .._scope import Scope
from . import Window, fold_peaks
from ._records import LiveRecord, records_of

__all__ = ["track"]

Mode = Literal["raise", "warn", "record"]
Thing = _ledger.Entry | _ledger.MapEntry

_OWNING = ("create_buffer", "create_image", "sub_buffer")
_POLL_SECONDS = 0.001


class track(Scope):  # noqa: N801 - used like a function, as contextlib.suppress is
    """Find what is made while the block runs and not ended when it ends, in all threads of the process.

    Parameters
    ----------
    mode : {"raise", "warn", "record"}
        `LeakError` when the block ends; a `LeakWarning` for each; or only `leaks`.
    timeout_seconds : float
        How long to wait at most for queued commands and for the driver, which may free late. Nothing is waited for
        where nothing is suspect.

    Attributes
    ----------
    leaks : tuple of LiveRecord
        What was found when the block ended: handles not released, maps not ended, both also where garbage collection
        had to do it, and memory that is alive after the release of its handle, because somebody else has a reference.

    Raises
    ------
    ValueError
        Another mode.
    LeakError
        At the end of the block in mode "raise"; never instead of an exception of the block.

    Notes
    -----
    Blocks nest; what the inner one finds the outer one finds too, unless it is ended in between. Queues with queued
    commands are flushed and polled, never finished: a command that hangs on a user event stops nothing. Where the
    block raises, its traceback keeps local names alive, so `leaks` says what was alive then and nothing is raised.
    While a block is open each new object is registered with the driver, which then says when it is gone; that keeps
    nothing alive. OpenCL specification: ``clSetMemObjectDestructorCallback``.
    """

    def __init__(self, mode: Mode = "raise", *, timeout_seconds: float = 1.0) -> None:
        if mode not in ("raise", "warn", "record"):
            raise ValueError(f"mode must be 'raise', 'warn' or 'record', not {mode!r}")
        self._mode = mode
        self._timeout = timeout_seconds
        self._window = Window()
        self._first = self._begin_bytes = self._begin_total = self._begin_count = 0
        self._collected: list[Thing] = []
        self._watched: dict[int, _ledger.Entry] = {}
        self._prune_at = 256
        self._end: tuple[int, int] | None = None
        self.leaks: tuple[LiveRecord, ...] = ()

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at one moment of the block; what was alive when it began counts."""
        if self._end is None:
            fold_peaks()
        return self._window.peak_bytes

    @property
    def peak_count(self) -> int:
        """Most handles alive at one moment of the block."""
        if self._end is None:
            fold_peaks()
        return self._window.peak_count

    @property
    def begin_bytes(self) -> int:
        """Bytes alive when the block began."""
        return self._begin_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the objects made in the block."""
        return (_ledger.counters.total_bytes if self._end is None else self._end[0]) - self._begin_total

    @property
    def total_count(self) -> int:
        """Handles made in the block."""
        return (_ledger.counters.total_count if self._end is None else self._end[1]) - self._begin_count

    # -- the block -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, as entering the block does."""
        counters = _ledger.counters
        self._first = next(_ledger._numbers)
        self._end, self._collected, self.leaks = None, [], ()
        self._begin_bytes, self._begin_total = counters.current_bytes, counters.total_bytes
        self._begin_count = counters.total_count
        fold_peaks(opened=self._window)
        _ledger.observe(self)

    def stop(self) -> tuple[LiveRecord, ...]:
        """End: find what leaks.

        Returns
        -------
        tuple of LiveRecord
            What `leaks` has; nothing is raised, and a second call returns the same.
        """
        if self._end is None:
            try:
                self.leaks = self._judge()
            finally:
                self._abandon()
        return self.leaks

    def _abandon(self) -> None:
        """End without a look at what leaks."""
        _ledger.unobserve(self)
        fold_peaks(closed=self._window)
        self._end = _ledger.counters.total_bytes, _ledger.counters.total_count
        self._watched.clear()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        if not self.leaks or error is not None:
            return
        if self._mode == "raise":
            raise LeakError(leak_text(self.leaks), self.leaks)
        if self._mode == "warn":
            warn_of(self.leaks)

    # -- for the ledger, which calls these -----------------------------------------------------------------------------

    def _added(self, entry: _ledger.Entry) -> None:
        """Have the driver say when a new object is gone; where it will not, the ledger's word must do."""
        is_view = entry.kind == "image" and entry.int_ptr != entry.root.int_ptr  # PoCL 3.0 never says that it is gone
        if entry.how not in _OWNING or entry.held is None or is_view:
            return
        try:
            if not entry.watches:
                info = _callbacks.ObjectInfo(entry.label, entry.size, entry.site)
                entry.watches.append(_callbacks.watch(entry.int_ptr, info))
        except Exception:  # a report may be poorer for it, the program must not
            return
        self._watched[entry.number] = entry
        if len(self._watched) > self._prune_at:
            alive = {number: one for number, one in list(self._watched.copy().items()) if not one.watches[0].dead}
            self._watched, self._prune_at = alive, max(256, 2 * len(alive))

    def _lost(self, entry: Thing) -> None:
        """Note what was collected; runs in finalizers."""
        if entry.number > self._first:
            self._collected.append(entry)

    def _ended(self, root: _ledger.Root) -> None:
        """What ends by itself is no leak."""

    # -- judging -------------------------------------------------------------------------------------------------------

    def _judge(
        self, wanted: Callable[[int], bool] = lambda number: True, numbers: list[int] | None = None
    ) -> tuple[LiveRecord, ...]:
        """Return what leaks now, with reasons, of the ledger's numbers that are `wanted`; add theirs to `numbers`."""
        if any(self._suspects(wanted)):
            gc.collect()
            self._wait(wanted)
        alive, lost, released = self._suspects(wanted)
        if numbers is not None:
            numbers += [one.number for one in (*alive, *lost, *released)]
        return (
            *records_of(alive, why=True),
            *records_of(lost, state="collected"),
            *records_of(released, state="released", why=True),
        )

    def _suspects(self, wanted: Callable[[int], bool]) -> tuple[list[Thing], list[Thing], list[Thing]]:
        """Return what is alive, what was collected, and what was released here and is not gone."""
        _callbacks.poll()
        first = self._first
        everything: list[Thing] = [*_ledger.entries(), *_ledger.open_maps()]
        alive = [one for one in everything if one.number > first and wanted(one.number)]
        lost = [one for one in list(self._collected) if wanted(one.number)]
        known = {one.root.int_ptr for one in everything} | self._in_use()
        candidates = [
            one
            for number, one in list(self._watched.copy().items())
            if not one.watches[0].dead and one.how in _OWNING and one.root.int_ptr not in known and wanted(number)
        ]
        parts = {one.root.int_ptr for one in candidates if one.int_ptr != one.root.int_ptr}
        return alive, lost, [one for one in candidates if one.int_ptr not in parts]

    def _in_use(self) -> set[int]:
        """Return the addresses of the objects that queued commands use, and of what those are part of."""
        found = set()
        for _, used, _ in _inflight.entries():
            for mem in used if isinstance(used, (list, tuple)) else (used,):
                if isinstance(mem, cl.MemoryObjectHolder):
                    root = whole_of(mem) or mem
                    found |= {mem.int_ptr, root.int_ptr}
        return found

    def _wait(self, wanted: Callable[[int], bool]) -> None:
        """Give queued commands and the driver the time to let go, without waiting for any of them."""
        for event, _, _ in _inflight.entries():
            queue = event.command_queue
            if queue is not None:
                queue.flush()
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            _, _, released = self._suspects(wanted)
            if not released and not _may_complete(_inflight.entries()):
                return
            time.sleep(_POLL_SECONDS)


def _may_complete(entries: tuple[_inflight.Entry, ...]) -> bool:
    """Say whether any command may complete by itself: not those in a queue where one waits for an unset user event."""
    gates: set[cl.Event] = set()
    queues: set[int] = set()
    pending = []
    for event, _, waits in entries:
        queue = event.command_queue
        if event.command_execution_status == cl.command_execution_status.RUNNING or queue is None:
            return True
        pending.append((event, queue, waits or ()))
        gates.update(one for one in waits or () if one.command_queue is None and one.command_execution_status > 0)
    for _ in pending:  # each round carries the gates one step further
        known = len(queues)
        for _, queue, waits in pending:
            if not gates.isdisjoint(waits):
                queues.add(queue.int_ptr)
        gates.update(event for event, queue, _ in pending if queue.int_ptr in queues)
        if len(queues) == known:
            break
    return any(queue.int_ptr not in queues for _, queue, _ in pending)


def leak_text(records: tuple[LiveRecord, ...]) -> str:
    """Return the text of a `LeakError`."""
    head = f"{len(records)} memory object(s) or map(s) leaked:"
    return "\n".join([head, *("  " + str(one).replace("\n", "\n  ") for one in records)])


def warn_of(records: tuple[LiveRecord, ...]) -> None:
    """Warn of each leak at the line that made it."""
    for one in records:
        warn_at(one.site, f"leaked: {replace(one, why=one.why[:2])}", LeakWarning)
