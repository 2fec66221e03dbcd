"""What the hazard checker has to say: data first, the text is derived from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .._journal import Access, Box
from ._clocks import Node

_UNORDERED = "Nothing orders the two: the results depend on timing."
_TITLES = {"host_map": "racing host map", "undefined_content": "use of undefined content"}
_VERBS = {  # of the second command, and of the first one
    "read_after_write": ("reads", "may still be writing"),
    "write_after_read": ("writes", "may still be reading"),
    "write_after_write": ("writes", "may still be writing"),
    "undefined_content": ("reads", "left nothing defined in"),
}


@dataclass(frozen=True, slots=True)
class Party:
    """One of the two commands of a finding, with the bytes of the root object that it uses."""

    kind: str
    name: str
    queue: int  # numbered as the checker first saw them; 0 for the host
    site: str
    start: int = 0
    stop: int = 0
    box: Box | None = None
    reads: bool = False
    writes: bool = False
    assumed: bool = False

    @classmethod
    def of(cls, node: Node, access: Access | None = None) -> Party:
        """Describe a command, with one of its accesses."""
        told = (node.kind, node.name, node.queue.number, node.site)
        if access is None:
            return cls(*told)
        a = access
        return cls(*told, a.start, a.stop, a.box, a.reads, a.writes, a.assumed)

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        queue = f" on queue {self.queue}" if self.queue else ""
        return f"{self.kind}{name}{queue} ({self.site})"

    def using(self, verb: str) -> str:
        """Say what the command does to its bytes."""
        box = "" if self.box is None else f" within origin {self.box[0]}, region {self.box[1]}"
        assumed = " (assumed: nothing declares how it is used)" if self.assumed else ""
        return f"{verb} bytes [{self.start}, {self.stop}){box}{assumed}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Two uses of the same bytes that go wrong, or a wait that has no end.

    Attributes
    ----------
    hazard : str
        ``read_after_write``, ``write_after_read``, ``write_after_write``, ``host_map``, ``undefined_content`` or
        ``wait_cycle``.
    second, first : Party
        The command to change, and the earlier one (in the order of the calls).
    label, size, site :
        Of the memory object: its label or None, its bytes, where it was created.
    start, stop : int
        The bytes of the root object that both use.
    count : int
        How often this edge was missing.
    """

    hazard: str
    second: Party
    first: Party
    label: str | None = None
    size: int = 0
    site: str = "?"
    start: int = 0
    stop: int = 0
    count: int = 1

    @property
    def key(self) -> str:
        """The same for the same mistake, in every run; ``suppress`` takes it."""
        return self._block(f"object={self.label or self.site}")

    @property
    def advice(self) -> str:
        """What to write instead, and where."""
        second, first = self.second.site, self.first.site
        if self.hazard == "host_map":
            return f"Unmap what is mapped at {first} first; at {second} add wait_for=[its unmap_event]."
        if self.hazard == "undefined_content":
            return f"Write these bytes before {second}, or migrate at {first} without CONTENT_UNDEFINED."
        if self.hazard == "wait_cycle":
            return f"Set the user event before {second}."
        event = {"unmap": "unmap_event of the mapping unmapped", "map": "map_event of the mapping made"}
        return f"At {second} add wait_for=[{event.get(self.first.kind, 'event returned')} at {first}]."

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values, for JSON."""
        return {**asdict(self), "key": self.key, "advice": self.advice}

    def __str__(self) -> str:
        if self.hazard == "wait_cycle":
            return (
                "wait cycle through a user event\n"
                f"  {self.second} waits for the end of\n"
                f"  {self.first} which waits for a user event that is not set\n"
                f"  No other thread runs that could set it: this wait has no end. {self.advice}\n"
                f"  [{self._block()}]"
            )
        name = "an object" if self.label is None else repr(self.label)
        title = _TITLES.get(self.hazard, self.hazard.replace("_", "-"))
        bytes_ = f"object={self.label or self.site} bytes={self.start}:{self.stop}"
        if self.hazard == "host_map":
            second = self.second.using("writes" if self.second.writes else "reads")
            first = self.first.using(f"lets the host {'write' if self.first.writes else 'read'}")
            insight = "The host may be using the bytes at any moment until the unmap."
        else:
            verbs = _VERBS[self.hazard]
            second, first = self.second.using(verbs[0]), self.first.using(verbs[1])
            insight = _UNORDERED
            if self.hazard == "undefined_content":
                insight = "Nothing has written these bytes since: any value may be read."
        return (
            f"{title} on {name} ({self.size} bytes, created at {self.site})\n"
            f"  {self.second} {second}\n"
            f"  {self.first} {first}\n"
            f"  {insight} {self.advice}\n"
            f"  [{self._block(bytes_)}]"
        )

    def _block(self, *words: str) -> str:
        ends = f"second={self.second.site}", f"first={self.first.site}"
        return " ".join([f"hazard={self.hazard}", *words, *ends])


def collision(second: tuple[Node, Access], first: tuple[Node, Access]) -> Finding:
    """Return the finding that nothing orders two uses, `first` being the earlier call."""
    (later, mine), (earlier, theirs) = second, first
    if earlier.mapped and (earlier.unmap is None or later.number < earlier.unmap.number):
        hazard = "host_map"
    else:
        if earlier.mapped and earlier.unmap is not None:
            earlier = earlier.unmap
        hazard = "read" if mine.reads and theirs.writes else "write"
        hazard += "_after_" + ("write" if theirs.writes else "read")
    return _finding(hazard, later, mine, earlier, theirs)


def undefined_content(node: Node, mine: Access, migration: Node, theirs: Access) -> Finding:
    """Return the finding that a command reads what a migration left undefined."""
    return _finding("undefined_content", node, mine, migration, theirs)


def _finding(hazard: str, later: Node, mine: Access, earlier: Node, theirs: Access) -> Finding:
    start, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
    second, first = Party.of(later, mine), Party.of(earlier, theirs)
    return Finding(hazard, second, first, mine.label, mine.size, mine.site, start, stop)
