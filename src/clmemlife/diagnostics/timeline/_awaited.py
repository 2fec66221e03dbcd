"""The events of one recording: held until they are seen to be at their end, and then known by number."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

import pyopencl as cl

from ... import _opencl
from . import _ended
from ._entries import Entry, User

_STATUS = cl.event_info.COMMAND_EXECUTION_STATUS
_SLACK = 64


class Awaited:
    """Commands and user events that are not at their end, and where to find the number of those that are.

    `now` gives the time; `set_` is told of each user event that was set, or never will be as far as is seen.
    """

    def __init__(self, now: Callable[[], int], set_: Callable[[User], None]) -> None:
        self._now, self._set, self._pid = now, set_, os.getpid()
        self.known: dict[Hashable, Entry | User] = {}
        self._pending: deque[Entry | User] = deque()
        self._over: dict[int, tuple[int, int]] = {}  # by address: number of the event in `_ended`, and our own
        self._limit = _SLACK

    def add(self, thing: Entry | User) -> None:
        """Begin to watch."""
        self.known[thing.event] = thing
        self._pending.append(thing)

    def number(self, event: Any) -> int | None:
        """Return the number of the command or user event of an event, if that was seen."""
        known = self.known.get(event)
        if known is not None:
            return known.number
        address = getattr(event, "int_ptr", 0)
        over = self._over.get(address)
        return over[1] if over is not None and _ended.is_held(address, over[0]) else None

    def unset(self) -> list[User]:
        """Return the user events that are not set."""
        return [one for one in self.known.values() if isinstance(one, User)]

    def poll(self, most: int | None = None) -> None:
        """Look at some (``None``: all) of what is watched."""
        if os.getpid() != self._pid:
            return  # a forked child: the events are the parent's
        for _ in range(len(self._pending) if most is None else min(most, len(self._pending))):
            thing = self._pending.popleft()
            if not self.observe(thing):
                self._pending.append(thing)
        _ended.sweep(_ended.MOST if most is None else most)

    def observe(self, thing: Entry | User, now: int | None = None) -> bool:
        """Keep what an event at its end says and let go of it; return whether no more is to come."""
        event = thing.event
        if event is None:
            return True
        try:
            status = int(event.get_info(_STATUS))
        except cl.Error:
            status = None  # cannot be known
        if status is not None and status > 0:
            return False
        thing.settle(status, self._now() if now is None else now)
        self.let_go(thing)
        if isinstance(thing, User):
            self._set(thing)
        with suppress(cl.Error):
            self._over[event.int_ptr] = _ended.keep(event), thing.number
        if len(self._over) > self._limit:
            self._over = {at: one for at, one in self._over.items() if _ended.is_held(at, one[0])}
            self._limit = 2 * len(self._over) + _SLACK
        return True

    def let_go(self, thing: Entry | User) -> None:
        """Hold the event of a command or a user event no longer."""
        if self.known.get(thing.event) is thing:
            del self.known[thing.event]
        thing.let_go()

    def close(self) -> None:
        """Let go of all."""
        for user in self.unset():
            self._set(user)
        while self._pending:
            self.let_go(self._pending.popleft())
        self._over.clear()

    def forget_in_child(self) -> None:
        """Keep what a forked child inherits for ever: to let go of it would reach the driver."""
        _opencl.immortalise([one.event for one in self._pending])
        self.close()
