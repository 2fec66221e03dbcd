"""Wait-lists: flattening, and the checks that must come before the driver is asked."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import pyopencl as cl

from . import _inflight, _opencl
from .exceptions import ContextMismatchError, DependencyError, status_name

__all__ = ["wait_list"]

_CONTEXT, _QUEUE = cl.event_info.CONTEXT, cl.event_info.COMMAND_QUEUE


def wait_list(*items: Any) -> list[cl.Event]:
    """Flatten `items` into a list of events, as any ``wait_for`` of this library does.

    Parameters
    ----------
    *items
        ``None``, a `pyopencl.Event`, anything with an ``event`` (a `Migration`), or a (nested) iterable of these.

    Returns
    -------
    list of pyopencl.Event
        In order, without the ``None``. Never blocks; any thread.

    Raises
    ------
    TypeError
        For anything else; for a `Mapping` the message names ``map_event`` and ``unmap_event``.

    Notes
    -----
    OpenCL specification, "Event Objects": ``event_wait_list`` of the enqueueing calls.
    """
    events: list[cl.Event] = []
    for item in items:
        if item is None:
            continue
        if isinstance(item, cl.Event):
            events.append(item)
        elif isinstance(item, (list, tuple)):
            events.extend(wait_list(*item))
        elif hasattr(type(item), "map_event"):
            raise TypeError(
                "a Mapping has two events: wait for mapping.map_event (the host may use the array) or "
                "mapping.unmap_event (the device may use the memory again)"
            )
        elif hasattr(item, "event"):
            events.extend(wait_list(item.event))
        elif isinstance(item, Iterable) and not isinstance(item, (str, bytes, enum.Enum)):
            events.extend(wait_list(*item))
        else:
            raise TypeError(
                f"wait_for takes None, an Event, something with an 'event', or a sequence of these, "
                f"not {type(item).__name__}"
            )
    return events


class Ready(list[cl.Event]):
    """A wait-list that is known to suit one queue, the queues of its events flushed; whoever adds to it undoes that."""

    __slots__ = ("known", "queue")

    def __init__(self, queue: cl.CommandQueue, events: Iterable[cl.Event]) -> None:
        super().__init__(events)
        self.queue, self.known = queue, len(self)


def prepare(queue: cl.CommandQueue, wait_for: Any) -> list[cl.Event] | None:
    """Return `wait_for` as the list that a command on `queue` passes on, checked; ``None`` if it is empty.

    Flushes the queues of pending events of other queues, as the standard requires ("Flush and Finish").
    """
    if wait_for is None:
        return None
    if type(wait_for) is Ready and wait_for.queue is queue and wait_for.known == len(wait_for):
        for event in wait_for:
            if (status := event.command_execution_status) < 0:
                raise _dependency_error(event, status)
        return wait_for
    events = [wait_for] if isinstance(wait_for, cl.Event) else wait_list(wait_for)
    if not events:
        return None
    context = queue.context
    flushed: list[cl.CommandQueue] = []
    for event in events:
        if event.get_info(_CONTEXT) != context:
            raise ContextMismatchError(
                f"an event in wait_for belongs to another context than the queue ({event!r}); "
                "wait for it on the host, or use one context for both devices"
            )
        status = event.command_execution_status
        if status < 0:
            raise _dependency_error(event, status)
        if status > 0:
            other = event.get_info(_QUEUE)
            if other is not None and other != queue and other not in flushed:
                _opencl.flush(other)
                flushed.append(other)
    return events


def failure(event: cl.Event, what: str, error: cl.Error) -> DependencyError:
    """Return what is to be raised where the wait for the `event` of `what` raised `error`."""
    status = event.command_execution_status or error.code  # Intel's event says complete all the same
    return DependencyError(event, status, f"{what} failed with {status_name(status)} ({status})")


def _dependency_error(event: cl.Event, status: int) -> DependencyError:
    root = _inflight.root_failure(event)
    message = f"an event in wait_for has failed with {status_name(status)} ({status})"
    if root != event:
        code = root.command_execution_status
        message += f", because an event it waited for failed with {status_name(code)} ({code})"
    return DependencyError(event, status, message + "; nothing was enqueued", root)
