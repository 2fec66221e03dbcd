"""Memory objects that no handle of ours is on, while a reader listens: each keeps its number as long as it lives.

Raw objects that our commands use, and objects that outlive the last of our handles and maps. An address is used again,
so the driver is asked to say when the object is destroyed. Where it does not, each command takes the object for another
one, as it does while nobody listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import _callbacks, _journal, _ledger
from ._ledger import Root
from .exceptions import CallError

_SLACK = 64
_kept: dict[int, tuple[Root, _callbacks.Watch]] = {}  # by address; changed by single steps, also by finalizers
elsewhere: Callable[[int], Root | None] | None = None
"""Asked first, while somebody knows more: the root of the living object at an address."""
_limit = _SLACK
_lock = threading.RLock()


def known(root: Root) -> Root:
    """Return the root under which the object of `root` is known from here on; the object is alive."""
    if root.users or keep(root, alive=False):
        return root
    with _lock:  # another thread may come with a root of its own
        other = find(root.int_ptr)
        if other is None:
            keep(root, alive=True)
    return root if other is None else other


def find(int_ptr: int) -> Root | None:
    """Return the root of the living object at `int_ptr`, if it was kept."""
    if elsewhere is not None and (root := elsewhere(int_ptr)) is not None:
        return root
    if int_ptr not in _kept:
        return None
    _callbacks.catch_up()
    one = _kept.get(int_ptr)
    return None if one is None or one[1].dead else one[0]


def keep(root: Root, *, alive: bool) -> bool:
    """Keep a root until its object, which is certainly `alive`, is destroyed; return whether it is kept.

    Never waits, any thread, also from a finalizer.
    """
    before = _kept.get(root.int_ptr)
    if before is not None and before[0] is root:
        return True
    if not alive:
        return False
    try:
        watch = _callbacks.watch(root.int_ptr, _callbacks.ObjectInfo(root.label, root.size, root.site))
    except (CallError, OSError):
        return False
    _kept[root.int_ptr] = root, watch
    if before is not None:
        _gone(before[0])
    if len(_kept) > _limit:
        _tidy()
    return True


def watch_of(root: Root) -> _callbacks.Watch | None:
    """Return the registration for the destruction of an object that `known` was asked for."""
    _callbacks.catch_up()
    entry = _kept.get(root.int_ptr)
    return entry[1] if entry is not None and entry[0] is root else None


def watched() -> int:
    """Return how many objects are watched for that."""
    return sum(not watch.dead for _, watch in list(_kept.values()))


def _tidy() -> None:
    global _limit
    for int_ptr, one in list(_kept.items()):
        if one[1].dead:
            popped = _kept.pop(int_ptr, one)
            if popped is one:
                _gone(one[0])
            else:  # the address is used again just now
                _kept.setdefault(int_ptr, popped)
    _limit = 2 * len(_kept) + _SLACK


def _gone(root: Root) -> None:
    if not root.users:
        _journal.host(_journal.Released(root.number))


class _Keeper:
    """What the ledger, which is below the driver, needs of this module."""

    keep, find = staticmethod(keep), staticmethod(find)


_ledger.keeper = _Keeper()


def after_fork_in_child() -> None:
    """Forget what is the parent's."""
    global _lock
    _lock = threading.RLock()
    _kept.clear()
