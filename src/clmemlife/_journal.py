"""The stream of records: what was enqueued, what the host waited for, what was given up.

The core publishes, the diagnostics listen. Nothing is built while nobody listens::

    if _journal.listeners:
        command = _journal.Command("enqueue_fill", queue, accesses=..., waits=..., site=...)
        _journal.before(command)                  # a listener may raise: then do not enqueue
    try:
        event = <the driver's call>
    except BaseException:
        if command is not None: _journal.abandoned(command)
        raise
    if command is not None: _journal.after(command, event)

This module is pure: queues and events are opaque hashable values to it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

Box = tuple[tuple[int, int, int], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Access:
    """One use of bytes ``[start, stop)`` of the root memory object number `obj` (a number is never used again).

    A rectangle or image region also gives `box` = (origin, region); `start` and `stop` bound it. Two boxes of one
    object with equal `pitches` are compared as boxes, everything else by bytes. A sub-buffer is a range of its root.
    `assumed` says that nothing declares this use. `label`, `size` (bytes) and `site` describe the object.
    """

    obj: int
    start: int
    stop: int
    reads: bool = False
    writes: bool = False
    box: Box | None = None
    pitches: tuple[int, int] = (0, 0)
    assumed: bool = False
    label: str | None = None
    size: int = 0
    site: str = "?"

    def overlaps(self, other: Access) -> bool:
        """Return whether the two uses share a byte (both are of one object)."""
        if self.box is not None and other.box is not None and self.pitches == other.pitches:
            sides = zip(*self.box, *other.box, strict=True)
            return all(a < b + height and b < a + width for a, width, b, height in sides)
        return self.start < other.stop and other.start < self.stop

    def covers(self, other: Access) -> bool:
        """Return whether, of the bytes between `start` and `stop`, this use leaves none of `other` out."""
        if self.box is None:
            return True
        if other.box is None or self.pitches != other.pitches:
            return False
        sides = zip(*self.box, *other.box, strict=True)
        return all(a <= b and b + height <= a + width for a, width, b, height in sides)


@dataclass(slots=True, eq=False)
class Command:
    """One command, described before the driver is asked.

    Attributes
    ----------
    kind : str
        ``enqueue_kernel``, ``enqueue_copy``, ``enqueue_fill``, ``map``, ``unmap``, ``migrate``, ``marker``,
        ``barrier``, or ``foreign`` (a command that others enqueued, its wait-list known).
    queue : Hashable
        Stands for the queue and for no later one; `out_of_order` is its property.
    waits : tuple
        The wait-list. A user event that is already set may be left out.
    gates : tuple
        Those of `waits` that are user events not yet set.
    mapping : int or None
        Pairs a ``map`` with its ``unmap``. The accesses of both say what the host may do in between.
    undefined : bool
        A migration that leaves the content undefined.
    event : Hashable or None
        Filled by `after`.
    """

    kind: str
    queue: Hashable
    name: str = ""
    out_of_order: bool = False
    accesses: tuple[Access, ...] = ()
    waits: tuple[Hashable, ...] = ()
    gates: tuple[Hashable, ...] = ()
    site: str = "?"
    blocking: bool = False
    mapping: int | None = None
    undefined: bool = False
    event: Hashable | None = None


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host waits for `events`, or for all of `queue`: published when it begins and when it has `returned`."""

    events: tuple[Hashable, ...] = ()
    queue: Hashable | None = None
    returned: bool = True
    site: str = "?"


@dataclass(frozen=True, slots=True)
class UserEventSet:
    """A user event has just been set: published after the driver's call, so that an error keeps no gate shut."""

    event: Hashable
    site: str = "?"


@dataclass(frozen=True, slots=True)
class Released:
    """The last handle of root memory object number `obj` is gone: no new command of ours can use it."""

    obj: int


HostRecord = HostWait | UserEventSet | Released


class Listener(Protocol):
    """A reader of the journal. It may be told of an end (`after`, `abandoned`) whose `before` it has not seen."""

    def before(self, command: Command) -> None: ...
    def after(self, command: Command) -> None: ...
    def abandoned(self, command: Command) -> None: ...
    def host(self, record: HostRecord) -> None: ...


listeners: tuple[Listener, ...] = ()
_lock = threading.RLock()


def subscribe(listener: Listener) -> None:
    """Add a listener; commands in flight may reach it half."""
    global listeners
    with _lock:
        listeners = (*listeners, listener)


def unsubscribe(listener: Listener) -> None:
    """Remove a listener; one that is not subscribed is ignored."""
    global listeners
    with _lock:
        listeners = tuple(each for each in listeners if each is not listener)


def before(command: Command) -> None:
    """Announce a command; if this raises it must not be enqueued, and every listener knows so."""
    told: list[Listener] = []
    try:
        for listener in listeners:
            listener.before(command)
            told.append(listener)
    except BaseException:
        for listener in told:
            listener.abandoned(command)
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
