"""An open map: what must be ended, apart from the object that the user holds."""

from __future__ import annotations

import enum
import functools
import weakref
from typing import Any

import numpy as np
import pyopencl as cl

from . import _journal, _ledger, _opencl, _waitlist
from ._access import Use
from ._arguments import check_host_access
from ._layout import BufferLayout, ImageLayout
from ._site import caller_site, describe, report_at
from ._submit import describe_queue, submit
from ._unwritten import unwritten
from .exceptions import CleanupWarning, ForkedProcessError, LeakWarning, UnmappedError
from .flags import MapFlags, MemFlags

INHERITED = "inherited by fork"
_EMPTY = (1, (0,), np.dtype("V1"), False, b"")


class MapState(enum.Enum):
    """Where a `Mapping` is on its way.

    Attributes
    ----------
    PENDING
        The map is enqueued and not complete.
    MAPPED
        The host may use the array.
    UNMAPPED
        The unmap is enqueued, or the map was given up.
    """

    PENDING = "pending"
    MAPPED = "mapped"
    UNMAPPED = "unmapped"


class _NotYet:
    """The finalizer of a mapping whose map is not enqueued yet."""

    @staticmethod
    def detach() -> None:
        """Disarm nothing."""


NOT_YET: Any = _NotYet()


class OpenMap:
    """What must be ended: shared by the mapping and its finalizer, without a way back to the mapping.

    ``anchor`` is the first array over the mapped memory; plain views, however derived, have it as their ``base``,
    so a weak reference to it tells whether any of them lives. ``array`` is what was handed out, if anybody asked.
    ``ended`` says how it came to its end, and is empty before that. ``debug``: it discards, and bytes that nobody
    writes are to be reported.
    """

    __slots__ = (
        "anchor",
        "array",
        "debug",
        "ended",
        "entry",
        "held",
        "layout",
        "map_event",
        "memory_map",
        "queue",
        "reads",
        "unmap_event",
    )

    def __init__(
        self, entry: _ledger.MapEntry, held: _ledger.Entry, queue: cl.CommandQueue, reads: bool,
        layout: BufferLayout | ImageLayout, debug: bool,
    ) -> None:  # fmt: skip
        self.entry = entry
        self.held = held
        self.queue = describe_queue(queue)[0]  # the caller may close the one it maps with
        self.reads = reads
        self.layout = layout
        self.debug = debug
        self.anchor: Any = None
        self.array: Any = None
        self.memory_map: Any = None
        self.map_event: Any = None
        self.unmap_event: Any = None
        self.ended = ""

    @property
    def text(self) -> str:
        """What messages call it."""
        held = self.held
        return f"map (at {self.entry.site}) of {describe(held.label, held.size, held.site, held.kind)}"

    @property
    def use(self) -> Use:
        """What the map does to the object, on the device and until the unmap on the host."""
        one, label = self.entry, self.held.label
        return Use(one.root, one.start, one.stop, reads=self.reads, writes=one.writes, box=one.box, label=label)

    def uses(self) -> tuple[Use, ...]:
        """Return that for a record, if anybody wants one."""
        return (self.use,) if _journal.listeners else ()

    def close(self, wait_for: Any, queue: cl.CommandQueue | None) -> cl.Event:
        """Enqueue the unmap after the map (unless that failed) and after commands that use its memory."""
        map_event, pending = self.map_event, self.entry.pending
        waits = [map_event] if map_event.command_execution_status >= 0 else None
        if queue is None:
            queue = self.queue
        elif wait_for is None:
            wait_for = ()
        if wait_for is not None or pending:
            own = [one for one in pending if one.command_execution_status >= 0]
            waits = _waitlist.prepare(queue, [wait_for, waits, own])
        ended = f"unmapped at {caller_site()}"
        done: list[cl.Event] = []
        try:
            submit(
                "unmap", queue, self.uses(), waits, self.memory_map, _unmap,
                done, self.memory_map, queue, waits, mapping=self.entry.number, check=False,
            )  # fmt: skip
        finally:
            if done:
                self.unmap_event, self.ended = done[0], ended
                _ledger.remove(self.entry)  # the map holds the object, whose last user this may be
                self.memory_map = None
        return done[0]

    def check(self) -> None:
        """Raise unless it is open."""
        if self.ended == INHERITED:
            raise ForkedProcessError(
                f"the {self.text} belongs to the parent process; map in the child what is created there"
            )
        if self.ended:
            raise UnmappedError(f"the {self.text} was {self.ended}; its array is gone (mapping.copy() keeps data)")

    def forget(self) -> None:
        """Keep it for ever, in a forked child or at exit: its destructor would reach the driver."""
        _opencl.immortalise((self.memory_map, self.anchor, self.map_event))
        self.ended = INHERITED
        _ledger.remove(self.entry)

    def give_up(self, error: Exception) -> None:
        """Keep a map for ever that the driver refuses to end: its destructor would abort the process."""
        _opencl.immortalise(self.memory_map)
        self.ended = "given up, since the driver refused to unmap it"
        message = f"the {self.text} could not be unmapped and stays open: {error}"
        report_at(self.entry.site, message, CleanupWarning)

    def overlaps(self, start: int, stop: int) -> bool:
        """Say whether addresses ``[start, stop)`` are among the mapped memory."""
        anchor = self.anchor
        if anchor is None:
            return False
        address, nbytes = self.layout.host_range(anchor)
        return start < address + nbytes and address < stop

    def unwritten(self) -> str:
        """Return what is to be said about bytes of a discarding map that nobody wrote."""
        if self.array is None or self.entry.pending:
            return ""
        return unwritten(self.layout.as_bytes(self.anchor), self.text)

    def empty_array(self) -> str:
        """Empty the array that was handed out; return what is to be said about plain views of it that live."""
        array, self.array = self.array, None
        if array is not None:
            array.__setstate__(_EMPTY)
            array.flags.writeable = False
            del array
        if self.anchor is None:  # an interrupt came before it was set
            return ""
        alive, self.anchor = weakref.ref(self.anchor), None
        if alive() is None:
            return ""
        return (
            f"views of the array of the {self.text} live on after its unmap: what they show is stale and what is "
            "written through them is lost or corrupts data; use mapping.copy() for data that must last"
        )


def _unmap(done: list[cl.Event], memory_map: Any, queue: cl.CommandQueue, waits: list[cl.Event] | None) -> cl.Event:
    """Enqueue the unmap and put its event into `done`, without a step of Python where an interrupt could come."""
    done.extend(map(_opencl.enqueue_unmap_mem_object, (memory_map,), (queue,), (waits,)))
    return done[0]


def abandoned(open_: OpenMap) -> None:
    """Unmap for a mapping that nobody ended; then say so."""
    outcome = "it is unmapped now"
    try:
        open_.close(None, None)
    except Exception as error:
        open_.give_up(error)
        outcome = "its unmap failed"
    open_.empty_array()
    _ledger.lose(open_.entry)
    report_at(open_.entry.site, f"the {open_.text} was collected while open; {outcome}, use 'with'", LeakWarning)


@functools.cache
def decode(flags: MapFlags, mem_flags: MemFlags) -> tuple[bool, bool]:
    """Return whether a map of an object reads (its old content can be seen) and writes; refuse what cannot be."""
    if flags not in (MapFlags.READ, MapFlags.WRITE, MapFlags.READ | MapFlags.WRITE, MapFlags.WRITE_INVALIDATE_REGION):
        raise ValueError(f"{flags}: give READ, WRITE, READ|WRITE, or WRITE_INVALIDATE_REGION alone")
    writes = flags is not MapFlags.READ
    check_host_access(mem_flags, "a map for it", reads=bool(flags & MapFlags.READ), writes=writes)
    return flags is not MapFlags.WRITE_INVALIDATE_REGION, writes
