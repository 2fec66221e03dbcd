"""Places where the host waits, or orders queues, outside of our helpers: published while somebody needs them.

Commands return plain events, so waiting happens in PyOpenCL: these hooks put ``Event.wait``, ``wait_for_events``,
``CommandQueue.finish`` and ``flush``, markers, barriers and ``UserEvent.set_status`` on the journal. PyOpenCL's own
commands are put there without what they use (`_raw_enqueues`), since they have a place in their queue, wait-lists, and
may block. A name that a program took out of ``pyopencl`` before (``from pyopencl import enqueue_barrier``) is not
hooked.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pyopencl as cl

from .. import _journal
from .._site import PACKAGE, caller_site
from .._submit import describe_queue, describe_waits, plain_event

_INNER = (PACKAGE, os.path.dirname(os.path.abspath(str(cl.__file__))) + os.sep, "<generated: 'pyopencl ", "<pyopencl ")
_USER = cl.command_type.USER
_lock = threading.Lock()
_RAW = (
    "enqueue_copy", "enqueue_fill_buffer", "enqueue_fill_image", "enqueue_map_buffer", "enqueue_map_image",
    "enqueue_migrate_mem_objects", "enqueue_nd_range_kernel", "enqueue_svm_memfill",
)  # fmt: skip
_BLOCKING = {"enqueue_copy": 99, "enqueue_map_buffer": 9, "enqueue_map_image": 10}  # where is_blocking may stand
Hook = tuple[Any, str, Callable[[Any], Any]]

superseded = False
"""Whether others publish all commands now, with what they use (`_install`)."""


class _Group:
    """Hooks that are set for the first user and put back when the last one is gone."""

    def __init__(self, hooks: Callable[[], list[Hook]]) -> None:
        self._hooks = hooks
        self._users = 0
        self._originals: dict[tuple[Any, str], Any] = {}

    def install(self) -> None:
        with _lock:
            self._users += 1
            if self._users > 1:
                return
            for owner, name, hook in self._hooks():
                original = getattr(owner, name)
                self._originals[owner, name] = original
                hooked = hook(original)
                setattr(owner, name, hooked if isinstance(original, property) else functools.wraps(original)(hooked))

    def uninstall(self) -> None:
        with _lock:
            self._users -= 1
            if self._users:
                return
            for (owner, name), original in self._originals.items():
                setattr(owner, name, original)
            self._originals.clear()


def _of_host() -> list[Hook]:
    return [
        (cl.Event, "wait", _waits_for_itself),
        (cl.CommandQueue, "finish", _finishes),
        (cl.CommandQueue, "flush", _flushes),
        (cl.Event, "command_queue", _gives_queue),
        (cl.UserEvent, "set_status", _sets),
        (cl.Event, "set_callback", _registers),
        (cl, "wait_for_events", waits_for_all),
    ]


def _of_commands() -> list[Hook]:
    return [
        (cl, "enqueue_marker", functools.partial(_enqueues, "marker")),
        (cl, "enqueue_barrier", functools.partial(_enqueues, "barrier")),
        *[(cl, name, functools.partial(_raw_enqueues, name)) for name in _RAW],
        (cl._cl, "enqueue_nd_range_kernel", functools.partial(_raw_enqueues, "enqueue_nd_range_kernel")),
    ]


def renew_lock() -> None:
    """Take a new lock, in a forked child."""
    global _lock
    _lock = threading.Lock()


host, commands = _Group(_of_host), _Group(_of_commands)


def install() -> None:
    """Hook, once for all users."""
    host.install()
    commands.install()


def uninstall() -> None:
    """Put PyOpenCL's own functions back when the last user is gone."""
    commands.uninstall()
    host.uninstall()


def _waits(events: Iterable[cl.Event], queue: cl.CommandQueue | None, call: Callable[[], Any]) -> Any:
    site = caller_site(_INNER)
    events = tuple([plain_event(one) for one in events if one.command_type != _USER])
    _journal.host(_journal.HostWait(events, queue, returned=False, site=site))
    try:
        result = call()
    except cl.Error:  # some command has failed: the wait is over for those that came to an end
        ended = tuple([one for one in events if one.command_execution_status <= 0])
        _journal.host(_journal.HostWait(ended, site=site))
        raise
    _journal.host(_journal.HostWait(events, queue, site=site))
    return result


def _waits_for_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: cl.Event) -> None:
        return _waits((self,), None, lambda: original(self))  # type: ignore[no-any-return]

    return wait


def waits_for_all(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_events(events: Any) -> None:
        if not isinstance(events, (list, tuple)) or not all(isinstance(one, cl.Event) for one in events):
            return original(events)  # type: ignore[no-any-return] # which says what is wrong
        return _waits(events, None, lambda: original(events))  # type: ignore[no-any-return]

    return wait_for_events


def _finishes(original: Callable[..., Any]) -> Callable[..., Any]:
    def finish(self: cl.CommandQueue) -> None:
        return _waits((), self, lambda: original(self))  # type: ignore[no-any-return]

    return finish


def _flushes(original: Callable[..., Any]) -> Callable[..., Any]:
    def flush(self: cl.CommandQueue) -> None:
        original(self)
        _journal.host(_journal.Flushed(describe_queue(self)[0]))

    return flush


def _gives_queue(original: Any) -> property:
    def command_queue(self: cl.Event) -> cl.CommandQueue | None:
        queue: cl.CommandQueue | None = original.fget(self)
        if queue is not None:
            describe_queue(queue)  # when this object of it goes, that flushes
        return queue

    return property(command_queue, doc=original.__doc__)


def _sets(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_status(self: cl.UserEvent, status: int) -> None:
        original(self, status)
        _journal.host(_journal.UserEventSet(self))

    return set_status


def _registers(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_callback(self: cl.Event, *arguments: Any) -> Any:
        if len(arguments) != 2 or not callable(arguments[1]):
            return original(self, *arguments)  # which says what is wrong
        when, function = arguments
        token = object()

        def notify(status: int) -> Any:
            try:
                return function(status)
            finally:
                _journal.callbacks.discard(token)

        _journal.callbacks.add(token)
        try:
            return original(self, when, notify)
        except BaseException:
            _journal.callbacks.discard(token)
            raise

    return set_callback


def _enqueues(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def enqueue(queue: cl.CommandQueue, wait_for: Any = None) -> cl.Event:
        if superseded:
            return original(queue, wait_for)
        return _published(kind, "", queue, wait_for or (), False, lambda: original(queue, wait_for))

    return enqueue


def _raw_enqueues(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    place = _BLOCKING.get(name)
    compiled = getattr(cl, name) is getattr(cl._cl, name, None) is original  # the same in both modules

    def enqueue(queue: cl.CommandQueue, *arguments: Any, **keywords: Any) -> Any:
        if superseded:
            now = getattr(cl._cl, name) if compiled else original  # with what others have put there since
            return now(queue, *arguments, **keywords)
        values = (*arguments, *keywords.values())
        lists = [one for one in values if isinstance(one, (list, tuple)) and one and isinstance(one[0], cl.Event)]
        blocking = False
        if place is not None:
            given = arguments[place - 1] if len(arguments) >= place else True
            blocking = bool(keywords.get("is_blocking", given))
        if name == "enqueue_copy":  # between device objects the flag means nothing
            sides = [*arguments, keywords.get("dest"), keywords.get("src")][:2]
            blocking = blocking and not all(isinstance(one, cl.MemoryObjectHolder) for one in sides)
        call = functools.partial(original, queue, *arguments, **keywords)
        return _published("foreign", name, queue, [event for one in lists for event in one], blocking, call)

    return enqueue


def _published(
    kind: str, name: str, queue: cl.CommandQueue, wait_for: Iterable[cl.Event], blocking: bool, call: Callable[[], Any]
) -> Any:
    """Enqueue a command of PyOpenCL itself, of which only its queue and its wait-list are known."""
    key, out_of_order = describe_queue(queue)
    waits, gates, opened = describe_waits(wait_for)
    site = caller_site(_INNER)
    record = _journal.Command(kind, key, name, out_of_order, (), waits, gates, opened, site, blocking, raw=True)
    _journal.before(record)
    try:
        result = call()
    except BaseException:
        _journal.abandoned(record)
        raise
    _journal.after(record, plain_event(result[1] if isinstance(result, tuple) else result))
    return result
