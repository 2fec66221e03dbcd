"""What the ledger has in its books: memory objects, the handles on them, and the maps. Numbers are never used again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ._journal import Box

numbers = itertools.count(1)


class Root:
    """One memory object that is no part of another, shared by all handles, sub-buffers and maps of it.

    Attributes
    ----------
    number : int
        Never used again.
    int_ptr, size : int
        Address of the ``cl_mem``; bytes.
    label, site : str
        Of the first handle.
    users : int
        Handles and maps.
    maps : tuple of MapEntry
        What is mapped now; replaced, never changed, so that it is read without the lock.
    alias : tuple of int or None
        Number of the root whose host memory it shares, and where in that it begins (bytes).
    """

    __slots__ = ("alias", "int_ptr", "label", "maps", "number", "site", "size", "users")

    def __init__(self, int_ptr: int, size: int, label: str | None, site: str) -> None:
        self.number = next(numbers)
        self.int_ptr = int_ptr
        self.size = size
        self.label = label
        self.site = site
        self.users = 0
        self.maps: tuple[MapEntry, ...] = ()
        self.alias: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class MapEntry:
    """One open map: the bytes ``[start, stop)`` of the root, or a box of an image, and whether it writes.

    ``owner`` gives the object that closes it (or ``None``); ``pending`` are the events of commands that use the mapped
    memory as host memory. ``closed`` is set before the entry is struck out,
    so that whoever reads ``Root.maps`` without the lock can tell.
    """

    root: Root
    start: int
    stop: int
    box: Box | None
    pitches: tuple[int, int]
    writes: bool
    site: str
    owner: Callable[[], Any]
    number: int = field(default_factory=numbers.__next__)
    pending: list[Any] = field(default_factory=list)
    closed: bool = False
    created: float = field(default_factory=monotonic)


@dataclass(slots=True, eq=False)
class Entry:
    """One live handle. ``int_ptr`` is its own object, which for a sub-buffer is not that of the root.

    ``owner`` gives the handle, or ``None`` once it was collected; ``how`` says how it came by its reference.
    ``watches`` holds the one registration for the destruction of the object; handles of one object share the list.
    ``held`` is the address for as long as the handle has its reference: whoever takes it out gives that back.
    """

    int_ptr: int
    kind: str
    size: int
    how: str
    label: str | None
    site: str
    root: Root
    offset: int
    owner: Callable[[], Any]
    watches: list[Any] = field(default_factory=list)
    held: int | None = None
    number: int = field(default_factory=numbers.__next__)
    created: float = field(default_factory=monotonic)
