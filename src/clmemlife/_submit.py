"""The one way by which anything is enqueued.

A command goes through the same steps whatever it is: check its wait-list, check it against open maps, publish its
record if somebody listens, call the driver, hold what it uses until its event is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyopencl as cl

from . import _foreign, _inflight, _journal, _limits, _opencl, _waitlist
from ._access import Use, check_maps
from ._handle import MemHandle
from ._meminfo import locate
from ._site import caller_site
from .exceptions import AlignmentError, ContextMismatchError
from .flags import MigrationFlags

_Events = tuple[cl.Event, ...]
_Event: Any = cl.Event
_NO_PITCHES = (0, 0)
_USER, _COMMAND_TYPE = cl.command_type.USER, cl.event_info.COMMAND_TYPE
_record = Use.record
_OUT_OF_ORDER = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


def submit(
    kind: str,
    queue: cl.CommandQueue,
    uses: Sequence[Use],
    waits: list[cl.Event] | None,
    held: object,
    call: Callable[..., Any],
    *arguments: Any,
    name: str = "",
    blocking: bool = False,
    mapping: int | None = None,
    undefined: bool = False,
    check: bool = True,
) -> Any:
    """Enqueue: return what ``call(*arguments)`` returns, an event or a tuple that has one second.

    Parameters
    ----------
    kind, name : str
        What it is, for records and messages.
    uses : sequence of Use
        What it touches; may be empty where neither a map is open nor anybody listens.
    waits : list of Event or None
        The checked wait-list, which `call` gets among its arguments.
    held : object
        Kept alive until the command is complete; ``None`` where the caller does that.
    """
    for use in uses if check else ():
        if use.root.maps:
            check_maps(use, f"{kind} {name!r}" if name else kind, caller_site())
    if not _journal.listeners:
        result = call(*arguments)
        if held is not None or waits:
            _inflight.hold(result[1] if type(result) is tuple else result, held, waits)
        return result
    key, out_of_order = getattr(queue, "_clmemlife_key", None) or describe_queue(queue)
    events, gates, opened = describe_waits(waits) if waits else ((), (), ())
    accesses = (uses[0].record(),) if len(uses) == 1 else tuple(map(_record, uses))
    record = _journal.Command(
        kind, key, name, out_of_order, accesses, events, gates, opened, caller_site(), blocking, mapping, undefined
    )
    _journal.before(record)
    try:
        result = call(*arguments)
    except BaseException:
        _journal.abandoned(record)
        raise
    event = result[1] if type(result) is tuple else result
    _inflight.hold(event, held, waits)
    plain = plain_event(event)  # the very object that the caller gets: readers know events that somebody holds
    _journal.after(record, plain)
    return plain if event is result else result


def describe_queue(queue: cl.CommandQueue) -> tuple[cl.CommandQueue, bool]:
    """Return a key that stands for this queue and no later one, closed or not, and whether it is out of order.

    Remembered with the queue: drivers flush when a reference to a queue is given back.
    """
    known: tuple[cl.CommandQueue, bool] | None = getattr(queue, "_clmemlife_key", None)
    if known is None:
        known = cl.CommandQueue.from_int_ptr(queue.int_ptr, True), bool(queue.properties & _OUT_OF_ORDER)
        queue._clmemlife_key, queue._clmemlife_end = known, _End(known[0])
    return known


class _End:
    """Goes with the object that a program has of a queue: to give that reference back flushes ("Flush and Finish")."""

    __slots__ = ("_key",)

    def __init__(self, key: cl.CommandQueue) -> None:
        self._key = key

    def __del__(self, journal: Any = _journal) -> None:  # the name is gone when the interpreter takes modules apart
        if journal.listeners:
            journal.host(journal.Flushed(self._key))


def plain_event(event: cl.Event) -> cl.Event:
    """Return the same event as an object that may be dropped at any time.

    The destructor of that of a host copy waits, holding the interpreter: it stays in the in-flight table.
    """
    if type(event) is not _Event and isinstance(event, cl.NannyEvent):
        with suppress(cl.Error):  # the command is enqueued: whatever happens, its event must reach the caller
            return _opencl.wrap_event(event.int_ptr, True)
    return event


def describe_waits(events: Iterable[cl.Event]) -> tuple[_Events, _Events, _Events]:
    """Return a wait-list as events that may be dropped, and of them the user events not yet set, and those set."""
    events = tuple(events)
    for one in events:  # to ask for its queue might flush that
        if type(one) is not _Event or one.get_info(_COMMAND_TYPE) == _USER:
            break
    else:
        return events, (), ()
    events = tuple(map(plain_event, events))
    users = [one for one in events if one.get_info(_COMMAND_TYPE) == _USER]
    unset = tuple([one for one in users if one.command_execution_status > 0])
    return events, unset, tuple([one for one in users if one not in unset])


def marker(queue: cl.CommandQueue, wait_for: Any, kind: str) -> cl.Event:
    """Enqueue a marker: what an operation with nothing to do returns, so that the chain goes on."""
    waits = _waitlist.prepare(queue, wait_for)
    event: cl.Event = submit("marker", queue, (), waits, None, _opencl.enqueue_marker, queue, waits, name=kind)
    return event


def migrate(
    queue: cl.CommandQueue, mems: list[Any], flags: MigrationFlags, uses: Sequence[Use], waits: list[cl.Event] | None
) -> cl.Event:
    """Enqueue a migration; return an event that is complete when it is, and not before `waits`."""
    early = _limits.context_limits(queue.context).early_migrations
    event: cl.Event = submit(
        "migrate", queue, uses, waits, mems, _migrate_and_mark if early else _opencl.enqueue_migrate_mem_objects,
        queue, mems, flags.value, waits, undefined=bool(flags & MigrationFlags.CONTENT_UNDEFINED),
        name="to the host" if flags & MigrationFlags.HOST else "",
    )  # fmt: skip
    return event


def _migrate_and_mark(queue: cl.CommandQueue, mems: list[Any], flags: int, waits: list[cl.Event] | None) -> cl.Event:
    """Enqueue a migration and a marker that stands for it; where only that is refused, the error has a `migration`."""
    event = _opencl.enqueue_migrate_mem_objects(queue, mems, flags, waits)
    try:
        return _opencl.enqueue_marker(queue, [event, *(waits or ())])
    except Exception as error:
        _inflight.hold(event, mems, waits)
        error.migration = event  # type: ignore[attr-defined]
        raise


def check_queue(queue: object) -> None:
    """Raise ``TypeError`` for what is no queue."""
    if not isinstance(queue, cl.CommandQueue):
        raise TypeError(f"queue must be a pyopencl.CommandQueue, not {type(queue).__name__}")


def whole(mem: Any, *, reads: bool, writes: bool) -> Use:
    """Return the use of all of a handle or PyOpenCL memory object."""
    if isinstance(mem, MemHandle):
        entry = mem._entry
        start = entry.offset
        return Use(entry.root, start, start + entry.size, reads, writes, False, None, _NO_PITCHES, entry.label)
    root, offset = locate(mem)
    if _journal.listeners:
        root = _foreign.known(root)
    return Use(root, offset, offset + mem.size, reads, writes)


def check_usable(handle: MemHandle, queue: cl.CommandQueue) -> None:
    """Refuse a queue of another context, and a device that cannot take a sub-buffer's origin."""
    if queue.context != handle._context:
        raise ContextMismatchError(
            f"{handle._text()} belongs to another context than the queue; create it in the queue's context or copy "
            "through host memory"
        )
    if handle._misaligned and queue.device.int_ptr in handle._misaligned:
        step = _limits.context_limits(handle._context).alignments[queue.device.int_ptr]
        raise AlignmentError(
            f"{handle._text()} starts at byte {handle._entry.offset} of its root, which {queue.device.name.strip()} "
            f"cannot take: it needs a multiple of {step}"
        )


def target(queue: cl.CommandQueue, mem: Any, *, reads: bool, writes: bool) -> tuple[Any, Use]:
    """Return the PyOpenCL object of a handle (or itself) for a command on `queue`, and its use as a whole."""
    use = whole(mem, reads=reads, writes=writes)
    if isinstance(mem, MemHandle):
        shared = mem._share()
        check_usable(mem, queue)
        return shared, use
    return mem, use
