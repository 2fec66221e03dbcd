"""Places where the host waits, or orders queues, outside of our helpers: published while somebody needs them.

Commands return plain events, so waiting happens in PyOpenCL: these hooks put ``Event.wait``, ``wait_for_events``,
``CommandQueue.finish``, markers, barriers and ``UserEvent.set_status`` on the journal. A name that a program took out
of ``pyopencl`` before (``from pyopencl import enqueue_barrier``) is not hooked.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pyopencl as cl

from .. import _journal
from .._site import caller_site
from .._submit import describe_queue, describe_waits, plain_event

_lock = threading.Lock()
_users = 0
_originals: dict[tuple[Any, str], Any] = {}


def install() -> None:
    """Hook, once for all users."""
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        for owner, name, hook in (
            (cl.Event, "wait", _waits_for_itself),
            (cl.CommandQueue, "finish", _finishes),
            (cl.UserEvent, "set_status", _sets),
            (cl, "wait_for_events", _waits_for_all),
            (cl, "enqueue_marker", functools.partial(_enqueues, "marker")),
            (cl, "enqueue_barrier", functools.partial(_enqueues, "barrier")),
        ):
            original = getattr(owner, name)
            _originals[owner, name] = original
            setattr(owner, name, functools.wraps(original)(hook(original)))


def uninstall() -> None:
    """Put PyOpenCL's own functions back when the last user is gone."""
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        for (owner, name), original in _originals.items():
            setattr(owner, name, original)
        _originals.clear()


def _waits(events: Iterable[cl.Event], queue: cl.CommandQueue | None, call: Callable[[], Any]) -> Any:
    site = caller_site()
    events = tuple([plain_event(one) for one in events if one.command_queue is not None])
    _journal.host(_journal.HostWait(events, queue, returned=False, site=site))
    result = call()
    _journal.host(_journal.HostWait(events, queue, site=site))
    return result


def _waits_for_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: cl.Event) -> None:
        return _waits((self,), None, lambda: original(self))  # type: ignore[no-any-return]

    return wait


def _waits_for_all(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_events(events: Any) -> None:
        events = list(events)
        return _waits(events, None, lambda: original(events))  # type: ignore[no-any-return]

    return wait_for_events


def _finishes(original: Callable[..., Any]) -> Callable[..., Any]:
    def finish(self: cl.CommandQueue) -> None:
        return _waits((), self, lambda: original(self))  # type: ignore[no-any-return]

    return finish


def _sets(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_status(self: cl.UserEvent, status: int) -> None:
        original(self, status)
        _journal.host(_journal.UserEventSet(self))

    return set_status


def _enqueues(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def enqueue(queue: cl.CommandQueue, wait_for: Any = None) -> cl.Event:
        key, out_of_order = describe_queue(queue)
        waits, gates, opened = describe_waits(wait_for or ())
        record = _journal.Command(
            kind, key, out_of_order=out_of_order, waits=waits, gates=gates, opened=opened, site=caller_site()
        )
        _journal.before(record)
        try:
            event = original(queue, wait_for)
        except BaseException:
            _journal.abandoned(record)
            raise
        _journal.after(record, event)
        return event

    return enqueue
