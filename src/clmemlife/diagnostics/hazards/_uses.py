"""Who used which bytes of one memory object, as far as it can still matter.

The bytes are cut into segments. A segment keeps the uses that a later command may be unordered with: a use is
forgotten when the host has waited for it, or when a later use *stands for* it: one that happens after it, covers it,
and collides with everything that it collides with. What stays is the last writers and the readers since, at most one
of each for a chain of commands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from ..._journal import Access
from ._clocks import Node

Use = tuple[Node, Access]
# Bytes [start, stop), the uses of all of them, and the migration that left them without content.
Segment = tuple[int, int, tuple[Use, ...], Use | None]
_START, _STOP = itemgetter(0), itemgetter(1)
_NONE: Final[dict[Node, Access]] = {}


# What one access finds, and what it would change: the object, the use, its segments before and after; the commands of
# whose uses nothing orders one with this access; the migrations since which nobody wrote what it reads. (A `NamedTuple`
# takes three times as long to make.)
Survey = tuple["Uses", Use, list[Segment], list[Segment], dict[Node, Access], dict[Node, Access]]


def survey(uses: Uses, node: Node, access: Access) -> Survey:
    """Look at what an access finds, and change nothing."""
    segments = uses.segments
    start, stop = access.start, access.stop
    use = node, access
    if len(segments) == 1 and not node.undefined:  # as it mostly is
        low, high, theirs, undefined = segments[0]
        if low == start and high == stop and undefined is None and not (access.box or access.rows):
            kept: tuple[Use, ...] = ()
            writes, chain, index = access.writes, node.chain, node.index
            for one in theirs:
                other = one[0]
                if other.chain is not chain or other.index >= index or other.mapped:
                    break
                if not writes and one[1].writes:
                    kept = (*kept, one)
            else:
                now = (*kept, use) if kept else (use,)
                return uses, use, segments, [(start, stop, now, None)], _NONE, _NONE
            rest, found = _kept(theirs, node, access)
            return uses, use, segments, [(start, stop, (*rest, use), None)], found, _NONE
    return _surveyed(uses, node, access)


def _surveyed(uses: Uses, node: Node, access: Access) -> Survey:
    segments, start, stop = uses.segments, access.start, access.stop
    unordered: dict[Node, Access] = {}
    undefined: dict[Node, Access] = {}
    use = node, access
    first = bisect_right(segments, start, key=_STOP)
    last = bisect_left(segments, stop, first, key=_START)
    new: list[Segment] = []
    fresh = use if node.undefined else None
    defines = access.writes and (node.undefined or node.kind != "migrate")
    for low, high, theirs, empty in segments[first:last]:
        if low < start:
            new.append((low, start, theirs, empty))
        elif start < low:
            _append(new, (start, low, (use,), fresh))
            start = low
        if empty is not None and access.reads and not access.assumed and empty[0].before(node):
            undefined[empty[0]] = empty[1]
        kept, found = _kept(theirs, node, access)
        for other, their in found.items():
            unordered.setdefault(other, their)
        end = high if high < stop else stop
        _append(new, (start, end, (*kept, use), fresh if defines else empty))
        if stop < high:
            new.append((stop, high, theirs, empty))
        start = end
    if start < stop:
        _append(new, (start, stop, (use,), fresh))
    if first or last < len(segments):
        new = [*segments[:first], *new, *segments[last:]]
    return uses, use, segments, new, unordered, undefined


def _kept(uses: tuple[Use, ...], node: Node, access: Access) -> tuple[list[Use], dict[Node, Access]]:
    """Return the uses that an access does not stand for, and those commands that it collides with, unordered."""
    chain, later = node.chain, node.clock.get
    reads, writes, boxed = access.reads, access.writes, _in_part(access)
    kept = []
    found = _NONE
    for use in uses:
        other, theirs = use
        index, its_chain = other.index, other.chain
        if other.mapped:
            behind = False
        elif index <= its_chain.ordered:
            continue
        elif its_chain is chain:
            behind = index < node.index or other is node
        else:
            behind = later(its_chain, 0) >= index
        if behind:
            if (writes or not theirs.writes) and (not boxed or _covers(access, theirs)):
                continue
        elif (
            (writes or (reads and theirs.writes))
            and ((not boxed and theirs.rows is None) or access.overlaps(theirs))
            and (other.mapped or not node.before(other))
        ):
            found = {**found, other: found.get(other, theirs)}
        kept.append(use)
    return kept, found


class Uses:
    """The uses of one memory object; `recent` tells its latest ones to a reader."""

    __slots__ = ("limit", "recent", "segments")
    slack = 64  # what may pile up before it is looked through

    def __init__(self) -> None:
        self.segments: list[Segment] = []  # disjoint, in order; the list is replaced, never changed
        self.recent: deque[Use] = deque(maxlen=32)
        self.limit = self.slack

    def colliding(self, access: Access) -> Iterator[Use]:
        """Yield uses that share bytes with `access` of which one writes, ordered or not; some more than once."""
        first = bisect_right(self.segments, access.start, key=_STOP)
        for _, _, uses, _ in self.segments[first : bisect_left(self.segments, access.stop, first, key=_START)]:
            yield from (use for use in uses if (access.writes or use[1].writes) and access.overlaps(use[1]))

    def record(self, found: Survey) -> Survey:
        """Add the use that was surveyed; return what `forget` needs to take it back."""
        _, use, base, new, _, _ = found
        if base is not self.segments:  # by another access of the same command
            found = survey(self, *use)
            new = found[3]
        self.segments = new
        self.recent.append(use)
        return found

    def forget(self, found: Survey) -> None:
        """Take back a use by a command that the driver refused."""
        (_, use, base, new, _, _), now = found, self.segments
        same, shorter = 0, min(len(base), len(new))
        while same < shorter and base[same] is new[same]:
            same += 1
        rest = 0
        while rest < shorter - same and base[-1 - rest] is new[-1 - rest]:
            rest += 1
        mine = new[same : len(new) - rest]
        if now[same : same + len(mine)] == mine:
            self.segments = [*now[:same], *base[same : len(base) - rest], *now[same + len(mine) :]]
        else:  # another thread came in between
            node = use[0]
            self.segments = [(a, b, tuple(one for one in uses if one[0] is not node), u) for a, b, uses, u in now]
        if self.recent:
            self.recent.pop()

    def compact(self) -> None:
        """Drop what the host has waited for, also where nobody looks any more."""
        segments: list[Segment] = []
        for start, stop, uses, undefined in self.segments:
            uses = tuple(use for use in uses if use[0].mapped or use[0].live())
            if uses or undefined is not None:
                _append(segments, (start, stop, uses, undefined))
        self.segments = segments
        self.limit = 2 * len(segments) + self.slack


class Objects:
    """The uses of all memory objects, by number; objects on the same host memory count as one."""

    __slots__ = ("_memory", "_sharing", "uses")

    def __init__(self) -> None:
        self.uses: dict[int, Uses] = {}
        self._memory: dict[int, int] = {}  # of an object that shares the memory of another: the number of that
        self._sharing: dict[int, set[int]] = {}  # by that number: who shares the memory

    def of(self, obj: int) -> Uses | None:
        return self.uses.get(self._memory.get(obj, obj))

    def placed(self, accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        """Return the accesses, those of an object that shares the memory of another as accesses of that."""
        for access in accesses:
            if access.alias is not None:
                return tuple(map(self._placed, accesses))
        return accesses

    def _placed(self, access: Access) -> Access:
        if access.alias is None or access.obj == access.alias[0]:
            return access
        memory, start = access.alias
        self._memory[access.obj] = memory
        self._sharing.setdefault(memory, {memory}).add(access.obj)
        rows = None if access.rows is None else (access.rows[0] + start, *access.rows[1:])
        pitches = *access.pitches, access.obj  # boxes of two objects cannot be compared
        first, last = access.start + start, access.stop + start
        return access._replace(obj=memory, start=first, stop=last, pitches=pitches, rows=rows)

    def forget(self, obj: int) -> None:
        """Forget a released object, with the last one its memory."""
        memory = self._memory.pop(obj, obj)
        sharing = self._sharing.get(memory, set())
        sharing.discard(obj)
        if not sharing:
            self._sharing.pop(memory, None)
            self.uses.pop(memory, None)


def with_role(accesses: Iterable[Access], *, reads: bool = False) -> list[Access]:
    """Return the accesses as reads or as writes, whatever they say themselves."""
    return [access._replace(reads=reads, writes=not reads) for access in accesses]


def _append(segments: list[Segment], segment: Segment) -> None:
    """Append a segment, or prolong the last one by it if they say the same."""
    if segments:
        start, stop, uses, undefined = segments[-1]
        if uses == segment[2] and stop == segment[0] and undefined is segment[3]:
            segments[-1] = (start, segment[1], uses, undefined)
            return
    segments.append(segment)


def _in_part(access: Access) -> bool:
    """Return whether an access may leave out bytes between its bounds."""
    return access.box is not None or access.rows is not None


def _covers(access: Access, other: Access) -> bool:
    """Return whether, of the bytes that they share, one access leaves none of the other's out."""
    if access.box is None or other.box is None or access.pitches != other.pitches:
        return not _in_part(access)
    sides = zip(*access.box, *other.box, strict=True)
    return all(a <= b and b + b_size <= a + a_size for a, a_size, b, b_size in sides)
