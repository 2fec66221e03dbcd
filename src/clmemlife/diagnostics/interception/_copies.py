"""Events of non-blocking copies with host memory, whose end waits for the copy while it holds the interpreter."""

from __future__ import annotations

import sys
from typing import Any

import pyopencl as cl

from ... import _opencl
from ..._submit import plain_event
from . import _faults
from ._places import Nobody

_STATUS = cl.event_info.COMMAND_EXECUTION_STATUS
CLONE = "_clmemlife_event"
_get_info = cl.Event.get_info  # as it is without hooks
_ENQUEUED = 512  # sites of commands that are remembered, for what fails later
sites: dict[int, str] = {}
"""Of the latest commands, by the address of their event."""

pending: list[tuple[Any, Any, str]] = []
"""Held until a copy is complete, with its event and the line: events whose end waits, host memory nobody else keeps."""
_HELD_HERE = 3  # by the list's tuple, by the loop, by the call that asks


def known_event(event: Any, blocking: bool, site: str) -> Any:
    """Return an event as the checkers know it: one that may be dropped at any time."""
    if event is None:
        return Nobody()
    sites[event.int_ptr] = site
    if len(sites) > _ENQUEUED:
        for old in list(sites)[: _ENQUEUED // 2]:
            sites.pop(old, None)
    if type(event) is not cl.NannyEvent:
        return event
    if blocking:  # whoever waits for it later waits for nothing
        setattr(event, CLONE, None)
        return Nobody()
    plain = plain_event(event)
    setattr(event, CLONE, plain)  # as long as the program has its event, this one is known
    pending.append((event, plain, site))
    return plain


_EVENT = (
    "dropped_copy_event",
    "the event of a non-blocking copy was dropped before the copy was complete: its end blocks all threads until then, "
    "for ever if one of them would have to let the copy run (the sanitizer keeps the event)",
    "Keep the event that enqueue_copy returns and call .wait() on it, or let the copy block.",
)
_MEMORY = (
    "host_array_freed",
    "the host memory of a non-blocking copy with shared virtual memory was freed before the copy was complete; its "
    "event keeps nothing (the sanitizer does)",
    "Keep the array until the event that enqueue_copy returns is complete.",
)


def look_at_events() -> None:
    """Report events of unfinished copies that the program has dropped: their end would have blocked."""
    for entry in pending.copy():
        event, plain, where = entry
        if _get_info(plain, _STATUS) <= 0:
            _remove(entry)
        elif sys.getrefcount(event) <= _HELD_HERE:
            kind, text, remedy = _EVENT if isinstance(event, cl.Event) else _MEMORY
            _faults.report(kind, text, where, remedy=remedy, quietly=True)
            _dropped.append(entry)
            _remove(entry)


_dropped: list[tuple[Any, Any, str]] = []


def _remove(entry: tuple[Any, Any, str]) -> None:
    if entry in pending:
        pending.remove(entry)


def let_events_go() -> None:
    """Let go of the events that are complete; keep the others for ever, since their end would wait."""
    look_at_events()
    left = [entry for entry in (*pending, *_dropped) if _get_info(entry[1], _STATUS) > 0]
    if left:
        _opencl.immortalise(left)
    pending.clear()
    _dropped.clear()
    sites.clear()
