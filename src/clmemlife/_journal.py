"""The stream of records: what was enqueued, what the host waited for, what was given up.

Nothing is built while nobody listens (``if _journal.listeners:``). Pure: queues and events are opaque here.
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

    A rectangle or image region also gives `box` = (origin, region), which `start` and `stop` bound. Two boxes with
    equal `pitches` are compared as boxes, everything else by bytes. `assumed`: nothing declares this use.
    `label`, `size` (bytes) and `site` are those of the object.
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
            return all(a < b + m and b < a + n for a, n, b, m in zip(*self.box, *other.box, strict=True))
        return self.start < other.stop and other.start < self.stop


@dataclass(slots=True, eq=False)
class Command:
    """One command, described before the driver is asked; `after` fills in its `event`.

    `kind` is ``enqueue_kernel``, ``enqueue_copy``, ``enqueue_fill``, ``map``, ``unmap``, ``migrate``, ``marker``,
    ``barrier``, or ``foreign`` (enqueued by others, its wait-list known). `queue` stands for this queue only.
    `waits` is the wait-list; of it, `gates` are the user events not yet set, `opened` those already set. `mapping`
    pairs a map with its unmap, and their accesses say what the host may do in between. `undefined` marks a migration
    that leaves the content undefined. `site` is the caller's ``file:line``.
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
    """The last handle of root memory object number `obj` is gone: no new command of ours can use it."""

    obj: int


HostRecord = HostWait | UserEventSet | Released


class Listener(Protocol):
    """A reader; it may be told of an end (`after`, `abandoned`) whose `before` it has not seen."""

    def before(self, command: Command) -> None: ...
    def after(self, command: Command) -> None: ...
    def abandoned(self, command: Command) -> None: ...
    def host(self, record: HostRecord) -> None: ...


listeners: tuple[Listener, ...] = ()
_lock = threading.RLock()


def subscribe(listener: Listener) -> None:
    global listeners
    with _lock:
        listeners = (*listeners, listener)


def unsubscribe(listener: Listener) -> None:
    global listeners
    with _lock:
        listeners = tuple(each for each in listeners if each is not listener)


def before(command: Command) -> None:
    """Announce a command. If a listener raises, those told before it hear `abandoned`, and it must not be enqueued."""
    for number, listener in enumerate(snapshot := listeners):
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
