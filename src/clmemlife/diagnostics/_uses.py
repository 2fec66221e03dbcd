"""Who used which bytes of one memory object, as far as it can still matter.

The bytes are cut into segments. A segment keeps the uses that a later command may be unordered with: a use is
forgotten when the host has waited for it, or when a later use *stands for* it: one that happens after it, covers it,
and collides with everything that it collides with. What stays is the last writers and the readers since, at most one
of each for a chain of commands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from .._journal import Access
from ._clocks import Node

Use = tuple[Node, Access]


class Segment(NamedTuple):
    """Bytes ``[start, stop)`` with the uses of all of them."""

    start: int
    stop: int
    uses: tuple[Use, ...]
    undefined: Use | None  # the migration that left them without content


Undo = tuple[int, list[Segment], list[Segment]]
_START = itemgetter(0)
_STOP = itemgetter(1)


class Uses:
    """The uses of one memory object; `recent` tells its latest ones to a reader."""

    __slots__ = ("_limit", "recent", "segments")
    slack = 64  # what may pile up before it is looked through

    def __init__(self) -> None:
        self.segments: list[Segment] = []  # disjoint, in order
        self.recent: deque[tuple[int, str, str, int, str, Access]] = deque(maxlen=32)
        self._limit = self.slack

    def colliding(self, access: Access, *, reads: bool, writes: bool) -> Iterator[Use]:
        """Yield uses that share bytes with `access` of which one writes, ordered or not; some more than once."""
        segments = self.segments
        for at in range(bisect_right(segments, access.start, key=_STOP), len(segments)):
            if segments[at].start >= access.stop:
                break
            for use in segments[at].uses:
                theirs = use[1]
                if (writes or (reads and theirs.writes)) and access.overlaps(theirs):
                    yield use

    def unordered(self, node: Node, access: Access) -> dict[Node, Access]:
        """Return the commands of whose uses nothing orders one with `access` by `node`."""
        found: dict[Node, Access] = {}
        for other, theirs in self.colliding(access, reads=access.reads, writes=access.writes):
            if other is not node and (other.mapped or not (other.before(node) or node.before(other))):
                found.setdefault(other, theirs)
        return found

    def undefined(self, node: Node, access: Access) -> dict[Node, Access]:
        """Return the migrations that `node` comes after and since which nobody wrote what it reads."""
        found: dict[Node, Access] = {}
        if access.reads and not access.assumed:
            for segment in self._touched(access):
                if segment.undefined is not None and segment.undefined[0].before(node):
                    found.setdefault(*segment.undefined)
        return found

    def _touched(self, access: Access) -> list[Segment]:
        first = bisect_right(self.segments, access.start, key=_STOP)
        return self.segments[first : bisect_left(self.segments, access.stop, first, key=_START)]

    def record(self, node: Node, access: Access) -> Undo:
        """Add a use; return what `forget` needs to take it back."""
        if len(self.segments) > self._limit:
            self._compact()
        first = bisect_right(self.segments, access.start, key=_STOP)
        old = self.segments[first : bisect_left(self.segments, access.stop, first, key=_START)]
        mine: Use = (node, access)
        fresh = mine if node.undefined else None
        new: list[Segment] = []
        at = access.start
        for start, stop, uses, undefined in old:
            if start < at:
                new.append(Segment(start, at, uses, undefined))
            elif at < start:
                new.append(Segment(at, start, (mine,), fresh))
                at = start
            end = min(stop, access.stop)
            if access.writes and (node.undefined or node.kind != "migrate"):
                undefined = fresh
            kept = [use for use in uses if not _stands_for(node, access, use)]
            _append(new, Segment(at, end, (*kept, mine), undefined))
            if end < stop:
                new.append(Segment(end, stop, uses, old[-1].undefined))
            at = end
        if at < access.stop:
            _append(new, Segment(at, access.stop, (mine,), fresh))
        self.segments[first : first + len(old)] = new
        self.recent.append((node.number, node.kind, node.name, node.queue.number, node.site, access))
        return first, old, new

    def forget(self, node: Node, undo: Undo) -> None:
        """Take back a use by a command that the driver refused."""
        first, old, new = undo
        if self.segments[first : first + len(new)] == new:
            self.segments[first : first + len(new)] = old
        else:  # another thread came in between
            self.segments = [
                each._replace(uses=tuple(use for use in each.uses if use[0] is not node)) for each in self.segments
            ]
        if self.recent:
            self.recent.pop()

    def _compact(self) -> None:
        segments: list[Segment] = []
        for each in self.segments:
            uses = tuple(use for use in each.uses if use[0].mapped or use[0].live())
            if uses or each.undefined is not None:
                _append(segments, each._replace(uses=uses))
        self.segments = segments
        self._limit = 2 * len(segments) + self.slack


def _append(segments: list[Segment], segment: Segment) -> None:
    """Append a segment, or prolong the last one by it if they say the same."""
    if segments and segments[-1].stop == segment.start and segments[-1][2:] == segment[2:]:
        segments[-1] = segments[-1]._replace(stop=segment.stop)
    else:
        segments.append(segment)


def _stands_for(node: Node, access: Access, use: Use) -> bool:
    """Return whether nothing is lost if `use` is forgotten now that `node` uses its bytes."""
    other, theirs = use
    if other.mapped:
        return False
    if other.index <= other.chain.ordered:
        return True
    return (access.writes or not theirs.writes) and (other is node or other.before(node)) and access.covers(theirs)
