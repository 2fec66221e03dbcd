"""The stream of records: what was enqueued, what the host waited for, what was given up.

Nothing is built while nobody listens (``if _journal.listeners:``). Pure: queues and events are opaque here.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Box = tuple[tuple[int, int, int], tuple[int, int, int]]
Rows = tuple[int, int, int, int, int, int]

_MOST_ROWS = 4096  # are compared one by one


class Access(NamedTuple):  # a dataclass that is frozen takes three times as long to make
    """One use of bytes ``[start, stop)`` of the root memory object number `obj` (a number is never used again).

    A rectangle or image region also gives `box` = (origin, region), which `start` and `stop` bound. Two boxes with
    equal `pitches` are compared as boxes, everything else by bytes: `rows` has those of a rectangle in a buffer (first
    byte, width, row pitch, rows, slice pitch, slices). `assumed`: nothing declares this use.
    `label`, `size` (bytes) and `site` are those of the object. `alias` is the number of another object whose host
    memory it shares, and where in that this one begins (bytes, may be negative).
    """

    obj: int
    start: int
    stop: int
    reads: bool = False
    writes: bool = False
    box: Box | None = None
    pitches: tuple[int, ...] = (0, 0)
    assumed: bool = False
    label: str | None = None
    size: int = 0
    site: str = "?"
    alias: tuple[int, int] | None = None
    rows: Rows | None = None

    def overlaps(self, other: Access) -> bool:
        """Return whether the two uses share a byte (both are of one object)."""
        if self.box is not None and other.box is not None and self.pitches == other.pitches:
            return all(a < b + m and b < a + n for a, n, b, m in zip(*self.box, *other.box, strict=True))
        if self.start >= other.stop or other.start >= self.stop:
            return False
        if self.rows is None or other.rows is None:
            rows, plain = (self.rows, other) if other.rows is None else (other.rows, self)
            return rows is None or rows_reach(rows, plain.start, plain.stop)
        few, many = sorted((self.rows, other.rows), key=lambda rows: rows[3] * rows[5])
        return few[3] * few[5] > _MOST_ROWS or any(rows_reach(many, one, one + few[1]) for one in _lines(few))


def rows_reach(rows: Rows, start: int, stop: int) -> bool:
    """Say whether a row of a rectangle has a byte of ``[start, stop)``."""
    first, width, row, height, slice_, depth = rows
    for line in range(first, first + depth * slice_, slice_):
        lowest = max(0, (start - width - line) // row + 1)
        if lowest < height and line + lowest * row < stop:
            return True
    return False


def _lines(rows: Rows) -> Iterator[int]:
    first, _, row, height, slice_, depth = rows
    return (first + z * slice_ + y * row for z in range(depth) for y in range(height))


@dataclass(slots=True, eq=False)
class Command:
    """One command, described before the driver is asked; `after` fills in its `event`.

    `kind` is ``enqueue_kernel``, ``enqueue_copy``, ``enqueue_fill``, ``map``, ``unmap``, ``migrate``, ``marker``,
    ``barrier``, or ``foreign`` (enqueued by others, its wait-list known). `queue` stands for this queue only.
    `waits` is the wait-list; of it, `gates` are the user events not yet set, `opened` those already set. `mapping`
    pairs a map with its unmap, and their accesses say what the host may do in between. `undefined` marks a migration
    that leaves the content undefined. `site` is the caller's ``file:line``. `raw`: enqueued through PyOpenCL itself,
    which flushes no queue on account of a wait-list.
    """

    kind: str
    queue: Hashable
    name: str = ""
    out_of_order: bool = False
    accesses: tuple[Access, ...] = ()
    waits: tuple[Hashable, ...] = ()
    gates: tuple[Hashable, ...] = ()
    opened: tuple[Hashable, ...] = ()
    site: str = "?"
    blocking: bool = False
    mapping: int | None = None
    undefined: bool = False
    event: Hashable | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host waits for `events` (user events left out) or all of `queue`: when it begins, and has `returned`."""

    events: tuple[Hashable, ...] = ()
    queue: Hashable | None = None
    returned: bool = True
    site: str = "?"


@dataclass(frozen=True, slots=True)
class UserEventSet:
    """A user event has just been set: published after the driver's call, so that an error keeps no gate shut."""

    event: Hashable


@dataclass(frozen=True, slots=True)
class Released:
    """Root memory object number `obj` is gone, or nobody knows it any more: no later command is about this number.

    May come late, and from a finalizer.
    """

    obj: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """What was enqueued to `queue` has been handed to its device; may come from a finalizer."""

    queue: Hashable


HostRecord = HostWait | UserEventSet | Released | Flushed


class Listener(Protocol):
    """A reader; it may be told of an end (`after`, `abandoned`) whose `before` it has not seen."""

    def before(self, command: Command) -> None: ...
    def after(self, command: Command) -> None: ...
    def abandoned(self, command: Command) -> None: ...
    def host(self, record: HostRecord) -> None: ...


listeners: tuple[Listener, ...] = ()
_lock = threading.RLock()


callbacks: set[object] = set()
"""One for each callback of an event that was registered while somebody listened and has not returned: it runs in a
thread that Python does not know, and may set a user event."""


def subscribe(listener: Listener) -> None:
    global listeners
    with _lock:
        listeners = (*listeners, listener)


def unsubscribe(listener: Listener) -> None:
    global listeners
    with _lock:
        listeners = tuple(each for each in listeners if each is not listener)


def after_fork_in_child() -> None:
    """Forget who listens: the parent's readers may be locked by threads that are not in the child."""
    global _lock, listeners
    _lock, listeners = threading.RLock(), ()
    callbacks.clear()


def before(command: Command) -> None:
    """Announce a command. If a listener raises, those told before it hear `abandoned`, and it must not be enqueued."""
    snapshot = listeners
    if len(snapshot) == 1:
        snapshot[0].before(command)
        return
    for number, listener in enumerate(snapshot):
        try:
            listener.before(command)
        except BaseException:
            for told in snapshot[:number]:
                told.abandoned(command)
            raise


def after(command: Command, event: Hashable) -> None:
    """Say that the command is enqueued, and complete if it was blocking."""
    command.event = event
    for listener in listeners:
        listener.after(command)


def abandoned(command: Command) -> None:
    """Say that the driver refused the command: it does not exist."""
    for listener in listeners:
        listener.abandoned(command)


def host(record: HostRecord) -> None:
    """Publish what the host did; a listener may raise."""
    for listener in listeners:
        listener.host(record)
