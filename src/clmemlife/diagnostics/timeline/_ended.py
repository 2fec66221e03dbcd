"""Events that are at their end and may still come in a wait-list: by number, for as long as somebody else has them.

An address is used again, so a number is only worth something while the event is held, and holding it must change
nothing: on Intel's CPU runtime an event keeps the memory that its command used. So each event is held here once for all
recordings, by a reference of its own, and looked at again and again: the driver's count tells whether anybody else has
one. What is held by nobody else, and the oldest of too many, is let go.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from typing import Any

import pyopencl as cl

from ... import _opencl

MOST = 1024
_REFERENCES = cl.event_info.REFERENCE_COUNT

_held: dict[int, tuple[cl.Event, int]] = {}  # by address; changed by single steps
_turn: deque[int] = deque()
_serials = itertools.count(1)


def keep(event: Any) -> int:
    """Hold an event; return a number that stands for it and for no other."""
    address: int = event.int_ptr
    known = _held.get(address)
    if known is None:
        known = _held[address] = _opencl.wrap_event(address, True), next(_serials)
        _turn.append(address)
        if len(_turn) > MOST:
            _held.pop(_turn.popleft(), None)
    return known[1]


def is_held(address: int, number: int) -> bool:
    """Say whether the event of that number is held."""
    known = _held.get(address)
    return known is not None and known[1] == number


def sweep(most: int) -> None:
    """Look at some of those that are held, and let go of what nobody else has."""
    for _ in range(min(most, len(_turn))):
        try:
            address = _turn.popleft()
            if _held[address][0].get_info(_REFERENCES) > 1:
                _turn.append(address)
            else:
                del _held[address]
        except (IndexError, KeyError):  # another thread was faster
            return


def clear() -> None:
    """Let go of all: nobody records any more."""
    _turn.clear()
    _held.clear()


def _after_fork_in_child() -> None:
    """Keep what a forked child inherits for ever: to let go of it would reach the driver."""
    _opencl.immortalise(dict(_held))
    clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
