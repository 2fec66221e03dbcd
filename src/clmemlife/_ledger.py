"""Who is alive: one entry for each handle, one `Root` for each memory object behind them, and the maps on it.

Fed directly by handles and mappings, always, and cheaply. Pure: no PyOpenCL here. Numbers are never used again,
addresses are: a `Root` stands for an object from the first of our handles or maps on it to the last, and while somebody
listens, for as long as the object lives (`Keeper`).

Finalizers may run at any allocation, also while this thread changes the tables; so removal never waits: what cannot
be done at once is queued and done by whoever holds the lock next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from . import _journal
from ._entries import Entry as Entry
from ._entries import MapEntry as MapEntry
from ._entries import Root as Root
from ._entries import numbers

_numbers = numbers  # readers take one as a moment in time
_lock = threading.RLock()
_roots: dict[int, Root] = {}
_entries: dict[int, Entry] = {}
_open_maps: dict[int, MapEntry] = {}
_by_address: dict[int, list[Entry]] = {}
_removed: deque[Entry | MapEntry] = deque()
_changing = False  # under the lock: a finalizer that comes in between must not change the tables


class _Counters:
    """Sums over all handles and, for bytes, over the objects behind them (each once, parts of others not at all).

    ``staging_bytes`` is the pinned host memory of this library itself, which no handle stands for.
    """

    __slots__ = (
        "current_bytes", "current_count", "peak_bytes", "peak_count", "staging_bytes", "total_bytes", "total_count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.current_bytes = self.peak_bytes = self.total_bytes = 0
        self.current_count = self.peak_count = self.total_count = 0
        self.staging_bytes = 0


counters = _Counters()


def count_staging(nbytes: int) -> None:
    """Account for pinned host memory that comes (or goes, if negative); any thread, also from a finalizer."""
    with _lock:
        counters.staging_bytes += nbytes


class Observer(Protocol):
    """Who wants to know of each new handle, of what was collected before anybody ended it, and of each object whose
    last handle or map has ended. The latter two come from finalizers too, the last one under the lock.
    """

    def _added(self, entry: Entry) -> None: ...
    def _lost(self, entry: Entry | MapEntry) -> None: ...
    def _ended(self, root: Root) -> None: ...


observers: tuple[Observer, ...] = ()
"""Replaced, never changed."""


def observe(observer: Observer) -> None:
    """Tell `observer` from now on."""
    global observers
    with _lock:
        observers = (*observers, observer)


def unobserve(observer: Observer) -> None:
    """Tell it no more."""
    global observers
    with _lock:
        observers = tuple(one for one in observers if one is not observer)


class Keeper(Protocol):
    """Who knows roots without handles and maps, while somebody listens."""

    def keep(self, root: Root, *, alive: bool) -> bool:
        """Take a root whose object certainly is `alive`; return whether it is known from here on. Never waits."""

    def find(self, int_ptr: int) -> Root | None:
        """Return the root of the living object at `int_ptr` if it was kept."""


keeper: Keeper | None = None


def forget_all() -> tuple[tuple[Entry, ...], tuple[MapEntry, ...]]:
    """Begin anew in a forked child; return the handles and the maps of the parent.

    A thread of the parent may have held the lock, half-way through a change: the tables are emptied, not changed.
    """
    global _changing, _lock
    _lock, _changing = threading.RLock(), False
    inherited = tuple(_entries.values()), tuple(_open_maps.values())
    for table in (_roots, _entries, _open_maps, _by_address, _removed):
        table.clear()
    counters.current_bytes = counters.current_count = 0
    return inherited


def root_for(int_ptr: int, size: int, label: str | None, site: str) -> Root:
    """Return the root of the object at `int_ptr`, which is alive; a new one if it is not known."""
    with _lock:
        _finish_removals()  # the address may be used again already
        root = _roots.get(int_ptr)
    if root is None and keeper is not None and _journal.listeners:
        root = keeper.find(int_ptr)
    return Root(int_ptr, size, label, site) if root is None else root


def find_root(int_ptr: int) -> Root | None:
    """Return the root of the object at `int_ptr` if a handle or map of ours is on it."""
    return _roots.get(int_ptr)


def in_use(root: Root) -> bool:
    """Say whether a handle or map of ours is on an object."""
    with _lock:
        _finish_removals()
        return root.users > 0


def owner_of(int_ptr: int) -> Entry | None:
    """Return the entry of a live handle of the object at `int_ptr`, if there is one."""
    with _lock:
        _finish_removals()
        return _by_address.get(int_ptr, [None])[0]


def add(entry: Entry) -> None:
    """Enter a new handle."""
    global _changing
    with _lock:
        if _removed:
            _finish_removals()
        before, _changing = _changing, True
        try:
            _entries[entry.number] = entry
            _by_address.setdefault(entry.int_ptr, []).append(entry)
            _use(entry.root)
            counters.current_count += 1
            counters.total_count += 1
            if counters.current_count > counters.peak_count:
                counters.peak_count = counters.current_count
        finally:
            _changing = before
    for observer in observers:
        observer._added(entry)


def remove(entry: Entry | MapEntry) -> None:
    """Strike a handle or a map out, whose reference is not given back yet; a second call does nothing.

    Never waits, any thread, also from a finalizer.
    """
    if type(entry) is MapEntry:
        entry.closed = True
    if _lock.acquire(False):
        try:
            if not _changing:
                _strike(entry, alive=True)
                return
        finally:
            _lock.release()
    if _journal.listeners and keeper is not None:
        keeper.keep(entry.root, alive=True)
    _removed.append(entry)


def lose(entry: Entry | MapEntry) -> None:
    """Say that a handle or a map was collected before it was ended."""
    for observer in observers:
        observer._lost(entry)


def open_map(entry: MapEntry, check: Callable[[], None]) -> None:
    """Enter a map if `check` lets it, in one step; it keeps the root."""
    global _changing
    with _lock:
        if _removed:
            _finish_removals()
        before, _changing = _changing, True
        try:
            check()
            _use(entry.root)
            entry.root.maps += (entry,)
            _open_maps[entry.number] = entry
        finally:
            _changing = before


def entries() -> tuple[Entry, ...]:
    """Return the live handles, oldest first."""
    with _lock:
        _finish_removals()
        return tuple(_entries.values())


def any_maps() -> bool:
    """Say, cheaply, whether any map may be open."""
    return bool(_open_maps)


def open_maps() -> tuple[MapEntry, ...]:
    """Return all open maps."""
    with _lock:
        _finish_removals()
        return tuple(_open_maps.values())


def _use(root: Root) -> None:
    if not root.users:
        _roots[root.int_ptr] = root
        counters.current_bytes += root.size
        counters.total_bytes += root.size
        if counters.current_bytes > counters.peak_bytes:
            counters.peak_bytes = counters.current_bytes
    root.users += 1


def _drop(root: Root, alive: bool) -> None:
    root.users -= 1
    if not root.users:
        if _roots.get(root.int_ptr) is root:
            del _roots[root.int_ptr]
        counters.current_bytes -= root.size
        for observer in observers:
            observer._ended(root)
        if _journal.listeners and not (keeper is not None and keeper.keep(root, alive=alive)):
            _journal.host(_journal.Released(root.number))


def _finish_removals() -> None:
    while _removed and not _changing:
        try:
            entry = _removed.popleft()
        except IndexError:
            return
        _strike(entry, alive=False)


def _strike(entry: Entry | MapEntry, *, alive: bool) -> None:
    """Strike out; `alive` says that the object certainly lives."""
    global _changing
    _changing = True
    try:
        if type(entry) is MapEntry:
            if _open_maps.pop(entry.number, None) is not None:
                maps = entry.root.maps
                entry.root.maps = () if len(maps) == 1 else tuple([one for one in maps if one is not entry])
                _drop(entry.root, alive)
        elif type(entry) is Entry and _entries.pop(entry.number, None) is not None:
            counters.current_count -= 1
            same = _by_address.get(entry.int_ptr, [])
            if entry in same:  # unless an interrupt came while it was added
                same.remove(entry)
            if not same:
                _by_address.pop(entry.int_ptr, None)
            _drop(entry.root, alive)
    finally:
        _changing = False
