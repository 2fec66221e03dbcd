"""Memory objects that no handle of ours is on, while a reader listens: each keeps its number as long as it lives."""

from __future__ import annotations

import threading

from . import _callbacks, _journal, _ledger
from .exceptions import CallError

_SLACK = 64
_roots: dict[int, tuple[_ledger.Root, _callbacks.Watch]] = {}
_limit = _SLACK
_lock = threading.Lock()


def known(root: _ledger.Root) -> _ledger.Root:
    """Return the root that the object of a fresh `root` was given before, if it still is that object.

    An address is used again, so the driver is asked to say when the object is destroyed. Where it does not, each
    command takes the object for another one, as it does while nobody listens.
    """
    if root.users:
        return root
    _callbacks.poll(0.1)  # what the reader has in hand must be known here
    with _lock:
        entry = _roots.get(root.int_ptr)
        if entry is not None and not entry[1].dead:
            return entry[0]
        try:
            watch = _callbacks.watch(root.int_ptr, _callbacks.ObjectInfo(root.label, root.size, root.site))
        except (CallError, OSError):
            return root
        ended = [] if entry is None else [entry[0]]
        _roots[root.int_ptr] = root, watch
        if len(_roots) > _limit:
            ended += _tidy()
    for one in ended:
        if not one.users:
            _journal.host(_journal.Released(one.number))
    return root


def watched() -> int:
    """Return how many objects are watched for that."""
    with _lock:
        return sum(not watch.dead for _, watch in _roots.values())


def _tidy() -> list[_ledger.Root]:
    global _limit
    dead = [int_ptr for int_ptr, (_, watch) in _roots.items() if watch.dead]
    ended = [_roots.pop(int_ptr)[0] for int_ptr in dead]
    _limit = 2 * len(_roots) + _SLACK
    return ended


def after_fork_in_child() -> None:
    """Forget what is the parent's."""
    global _lock
    _lock = threading.Lock()
    _roots.clear()
