"""Which bytes a command touches, and how: declarations, ranges relative to the root, and conflicts with maps."""

from __future__ import annotations

import operator
from typing import ClassVar

import pyopencl as cl

from . import _journal
from ._handle import MemHandle
from ._journal import Box, Rows, rows_reach
from ._ledger import MapEntry, Root
from ._site import describe
from .exceptions import MapConflictError

__all__ = ["In", "InOut", "Out", "Use"]

_make = tuple.__new__  # what a NamedTuple does, at half the price


class Use:
    """One object as one command uses it: what checks and records are made from.

    Attributes
    ----------
    root : Root
        The whole object.
    start, stop : int
        Bytes relative to the root; for a `box`, its bounds.
    box, pitches : Box or None, tuple of int
        Origin and region, for images (pixels) and rectangles (bytes, rows, slices); boxes of equal pitches compare.
    rows : tuple of int or None
        Of a rectangle in a buffer: first byte relative to the root, width, row pitch, rows, slice pitch, slices.
    reads, writes : bool
        What is done.
    assumed : bool
        Nothing says how the kernel uses it, so read and write are assumed.
    """

    __slots__ = ("assumed", "box", "label", "pitches", "reads", "root", "rows", "start", "stop", "writes")

    def __init__(
        self, root: Root, start: int, stop: int, reads: bool, writes: bool,
        assumed: bool = False, box: Box | None = None, pitches: tuple[int, int] = (0, 0), label: str | None = None,
    ) -> None:  # fmt: skip
        self.root = root
        self.start = start
        self.stop = stop
        self.reads = reads
        self.writes = writes
        self.assumed = assumed
        self.box = box
        self.pitches = pitches
        self.rows: Rows | None = None
        self.label = root.label if label is None else label

    def record(self) -> _journal.Access:
        """Return the access as a frozen record for the journal."""
        root = self.root
        return _make(_journal.Access, (
            root.number, self.start, self.stop, self.reads, self.writes, self.box, self.pitches, self.assumed,
            self.label, root.size, root.site, root.alias, self.rows,
        ))  # fmt: skip


class Declared:
    """A kernel argument together with how the kernel uses it.

    Parameters
    ----------
    mem : MemHandle or pyopencl.MemoryObject
        The kernel gets the whole object; the range only says which part of it is touched.
    offset, size : int, optional
        Bytes relative to `mem`; `size` defaults to the rest.

    Raises
    ------
    TypeError, ValueError
        Not a memory object; a range that leaves it.

    Notes
    -----
    A plain value that holds `mem`; any thread may use it, several times.
    """

    __slots__ = ("mem", "offset", "size")
    reads: ClassVar[bool]
    writes: ClassVar[bool]

    def __init__(self, mem: MemHandle | cl.MemoryObject, offset: int = 0, size: int | None = None) -> None:
        name = type(self).__name__
        if not isinstance(mem, (MemHandle, cl.MemoryObjectHolder)):
            raise TypeError(f"{name} takes a MemHandle or a PyOpenCL memory object, not {type(mem).__name__}")
        total = mem.size
        offset = operator.index(offset)
        size = total - offset if size is None else operator.index(size)
        if offset < 0 or size < 0 or offset + size > total:
            raise ValueError(f"{name}: bytes [{offset}, {offset + size}) are not within the object's {total} bytes")
        self.mem = mem
        self.offset = offset
        self.size = size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mem!r}, offset={self.offset}, size={self.size})"


class In(Declared):
    __doc__ = f"The kernel only reads it. {Declared.__doc__}"
    __slots__ = ()
    reads, writes = True, False

    def __init__(self, mem: MemHandle | cl.MemoryObject, offset: int = 0, size: int | None = None) -> None:
        super().__init__(mem, offset, size)  # by a name of its own in the message of a call that is wrong


class Out(Declared):
    __doc__ = f"The kernel only writes it. {Declared.__doc__}"
    __slots__ = ()
    reads, writes = False, True

    def __init__(self, mem: MemHandle | cl.MemoryObject, offset: int = 0, size: int | None = None) -> None:
        super().__init__(mem, offset, size)  # by a name of its own in the message of a call that is wrong


class InOut(Declared):
    __doc__ = f"The kernel reads and writes it. {Declared.__doc__}"
    __slots__ = ()
    reads, writes = True, True

    def __init__(self, mem: MemHandle | cl.MemoryObject, offset: int = 0, size: int | None = None) -> None:
        super().__init__(mem, offset, size)  # by a name of its own in the message of a call that is wrong


def check_maps(use: Use, what: str, site: str) -> None:
    """Raise `MapConflictError` if `use` collides with an open map (two reads never do)."""
    for entry in use.root.maps:
        if entry.closed or not (entry.writes or (use.writes and not use.assumed)):
            continue
        if max(use.start, entry.start) < min(use.stop, entry.stop) and _boxes_overlap(use, entry):
            raise _conflict(entry, use, what, site)


def _conflict(entry: MapEntry, use: Use, what: str, site: str) -> MapConflictError:
    """Return the error for `use` (done by `what` at `site`) of bytes that `entry` has mapped."""
    root = use.root
    verb = "reads and writes" if use.reads and use.writes else "writes" if use.writes else "reads"
    assumed = " (as far as is known)" if use.assumed else ""
    purpose = "writing" if entry.writes else "reading"
    return MapConflictError(
        f"{what} at {site} {verb}{assumed} bytes [{use.start}, {use.stop}) of "
        f"{describe(root.label, root.size, root.site)}, but bytes [{entry.start}, {entry.stop}) are "
        f"mapped for {purpose} since {entry.site}; unmap first and pass wait_for=mapping.unmap_event"
    )


def _boxes_overlap(use: Use, entry: MapEntry) -> bool:
    """Say whether two boxes share a point; where they cannot be compared, their bounds have been."""
    if use.rows is not None and entry.box is None:
        return rows_reach(use.rows, entry.start, entry.stop)
    if use.box is None or entry.box is None or use.pitches != entry.pitches:
        return True
    (origin, region), (origin2, region2) = use.box, entry.box
    return all(a < b + n and b < a + m for a, m, b, n in zip(origin, region, origin2, region2, strict=True))
