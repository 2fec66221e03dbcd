"""The one way by which anything is enqueued.

A command goes through the same steps whatever it is: check its wait-list, check it against open maps, publish its
record if somebody listens, call the driver, hold what it uses until its event is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyopencl as cl

from . import _inflight, _journal, _opencl, _waitlist
from ._access import Use, check_maps
from ._handle import MemHandle
from ._meminfo import locate
from ._site import caller_site

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
        Kept alive until the command is complete.
    """
    for use in uses if check else ():
        if use.root.maps:
            check_maps(use, f"{kind} {name!r}" if name else kind, caller_site())
    if not _journal.listeners:
        result = call(*arguments)
        _inflight.hold(result[1] if type(result) is tuple else result, held, waits)
        return result
    record = _journal.Command(
        kind=kind, name=name, queue=queue, out_of_order=bool(queue.properties & _OUT_OF_ORDER),
        accesses=tuple(use.record() for use in uses), waits=tuple(waits or ()),
        gates=tuple(filter(_is_gate, waits or ())), site=caller_site(),
        blocking=blocking, mapping=mapping, undefined=undefined,
    )  # fmt: skip
    _journal.before(record)
    try:
        result = call(*arguments)
    except BaseException:
        _journal.abandoned(record)
        raise
    event = result[1] if type(result) is tuple else result
    _inflight.hold(event, held, waits)
    _journal.after(record, event)
    return result


def _is_gate(event: cl.Event) -> bool:
    return event.command_queue is None and event.command_execution_status > 0


def marker(queue: cl.CommandQueue, wait_for: Any, kind: str) -> cl.Event:
    """Enqueue a marker: what an operation with nothing to do returns, so that the chain goes on."""
    waits = _waitlist.prepare(queue, wait_for)
    event: cl.Event = submit("marker", queue, (), waits, None, _opencl.enqueue_marker, queue, waits, name=kind)
    return event


def check_queue(queue: object) -> None:
    """Raise ``TypeError`` for what is no queue."""
    if not isinstance(queue, cl.CommandQueue):
        raise TypeError(f"queue must be a pyopencl.CommandQueue, not {type(queue).__name__}")


def whole(mem: Any, *, reads: bool, writes: bool) -> Use:
    """Return the use of all of a handle or PyOpenCL memory object."""
    if isinstance(mem, MemHandle):
        entry = mem._entry
        return Use(entry.root, entry.offset, entry.offset + entry.size, reads=reads, writes=writes, label=entry.label)
    root, offset = locate(mem)
    return Use(root, offset, offset + mem.size, reads=reads, writes=writes)


def target(queue: cl.CommandQueue, mem: Any, *, reads: bool, writes: bool) -> tuple[Any, Use]:
    """Return the PyOpenCL object of a handle (or itself) for a command on `queue`, and its use as a whole."""
    use = whole(mem, reads=reads, writes=writes)
    if isinstance(mem, MemHandle):
        shared = mem._share()
        mem._check_queue(queue)
        return shared, use
    return mem, use
