"""What queued commands still use.

Everything a command uses (memory objects, host arrays, the kernel) is held here until its event is complete. No
destructor waits: an entry is dropped only when its event was seen complete or failed. The table is swept at every
call into the library, two entries for each command, so that it stays within twice of what is really in flight.

Seen complete means "may be let go", never "ordered": that is what events are for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyopencl as cl

from . import _opencl

Entry = tuple[cl.Event, Any, Sequence[cl.Event] | None]

_STATUS = cl.event_info.COMMAND_EXECUTION_STATUS
_table: deque[Entry] = deque()
_failed: deque[tuple[cl.Event, Sequence[cl.Event] | None]] = deque(maxlen=64)


def hold(event: cl.Event, used: object, waits: Sequence[cl.Event] | None) -> None:
    """Keep `used` until `event` is complete; `waits` are the events that the command itself waits for."""
    _table.append((event, used, waits))
    sweep(2)


def sweep(limit: int | None = None) -> None:
    """Let go of what is complete, looking at `limit` entries (``None``: all)."""
    if not _table:
        return
    for _ in range(len(_table) if limit is None else min(limit, len(_table))):
        try:
            entry = _table.popleft()
        except IndexError:
            return
        try:
            status = entry[0].get_info(_STATUS)
        except cl.Error:
            status = 1  # cannot be known: keep it, a leak is better than a dangling pointer
        if status > 0:
            _table.append(entry)
        elif status < 0:
            _failed.append((entry[0], entry[2]))


def entries() -> tuple[Entry, ...]:
    """Return what is in flight now (a snapshot; sweeps first)."""
    sweep()
    return tuple(_table.copy())  # not of the deque itself: a finalizer may change that while the tuple is made


def root_failure(event: cl.Event) -> cl.Event:
    """Return the event that `event` failed from, as far as that is on record; else `event` itself."""
    recorded = dict(_failed.copy())
    recorded.update({known: waits for known, _, waits in _table.copy()})
    seen = {event}
    while True:
        cause = next((one for one in _failed_waits(recorded.get(event)) if one not in seen), None)
        if cause is None:
            return event
        seen.add(cause)
        event = cause


def _failed_waits(waits: Sequence[cl.Event] | None) -> Iterator[cl.Event]:
    for event in waits or ():
        if event.command_execution_status < 0:
            yield event


def close(timeout: float) -> int:
    """Wait up to `timeout` seconds for what is in flight; keep the rest for ever; return how many that were.

    Used at interpreter exit and in a forked child (with no time at all): the destructors of what is left would
    wait, or would reach a driver that may not be used.
    """
    deadline = time.monotonic() + timeout
    while timeout and _table:
        sweep()
        if not _table or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    left: list[Entry] = []
    with suppress(IndexError):
        while True:
            left.append(_table.popleft())
    if left:
        _opencl.immortalise(left)
    return len(left)
