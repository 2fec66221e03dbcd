"""What the hazard checker has to say: data first, the text is derived from it."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..._journal import Access, Box
from ...exceptions import HazardError, HazardWarning, UnorderedAccessError
from ._clocks import Node
from ._uses import Survey, Use

_UNORDERED = "Nothing orders the two: the results depend on timing."
_TITLES = {"host_map": "racing host map", "undefined_content": "use of undefined content"}
_HANGS = ("wait_cycle", "unflushed_wait")  # not about bytes
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
    object: str = ""  # the memory object, where it is not that of the finding but shares host memory with it

    @classmethod
    def of(cls, node: Node, access: Access | None = None) -> Party:
        """Describe a command, with one of its accesses."""
        told = (node.kind, node.name, node.queue.number, node.site)
        if access is None:
            return cls(*told)
        a, shift = access, access.alias[1] if access.alias else 0
        return cls(*told, a.start - shift, a.stop - shift, a.box, a.reads, a.writes, a.assumed)

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        queue = f" on queue {self.queue}" if self.queue else ""
        return f"{self.kind}{name}{queue} ({self.site})"

    def using(self, verb: str) -> str:
        """Say what the command does to its bytes."""
        box = "" if self.box is None else f" within origin {self.box[0]}, region {self.box[1]}"
        assumed = " (assumed: nothing declares how it is used)" if self.assumed else ""
        other = f" of {self.object}, on the same host memory" if self.object else ""
        return f"{verb} bytes [{self.start}, {self.stop}){box}{other}{assumed}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Two uses of the same bytes that go wrong, or a wait that has no end.

    Attributes
    ----------
    hazard : str
        ``read_after_write``, ``write_after_read``, ``write_after_write``, ``host_map``, ``undefined_content``,
        ``wait_cycle`` or ``unflushed_wait``.
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
        return self._block()

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
        if self.hazard == "unflushed_wait":
            return f"Call flush() of queue {self.first.queue} between {first} and {second}."
        event = {"unmap": "unmap_event of the mapping unmapped", "map": "map_event of the mapping made"}
        return f"At {second} add wait_for=[{event.get(self.first.kind, 'event returned')} at {first}]."

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values.

        Returns
        -------
        dict
            Fit for JSON, with `key` and `advice`.
        """
        return {**asdict(self), "key": self.key, "advice": self.advice}

    def __str__(self) -> str:
        if self.hazard == "wait_cycle":
            return (
                "wait cycle through a user event\n"
                f"  {self.second} waits for the end of\n"
                f"  {self.first} which waits for a user event that is not set\n"
                f"  No other thread runs that could set it: this wait has no end. {self.advice}\n"
                f"  [{self.key}]"
            )
        if self.hazard == "unflushed_wait":
            return (
                "wait on an event of a queue that was not flushed\n"
                f"  {self.second} waits for the end of\n"
                f"  {self.first} which may never have been handed to its device\n"
                f"  Plain PyOpenCL does not flush for a wait-list: this wait may have no end. {self.advice}\n"
                f"  [{self.key}]"
            )
        name = "an object" if self.label is None else repr(self.label)
        title = _TITLES.get(self.hazard, self.hazard.replace("_", "-"))
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
            f"  [{self._block(f'bytes={self.start}:{self.stop}')}]"
        )

    def _block(self, *words: str) -> str:
        thing = [] if self.hazard in _HANGS else [f"object={_word(self.label or self.site)}"]
        ends = f"second={_word(self.second.site)}", f"first={_word(self.first.site)}"
        return " ".join([f"hazard={self.hazard}", *thing, *words, *ends])


def _word(text: str) -> str:
    return repr(text) if set(text) & set(" \t\n=[]'\"") else text


def _collision(second: Use, first: Use) -> Finding:
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


def _finding(hazard: str, later: Node, mine: Access, earlier: Node, theirs: Access) -> Finding:
    start, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
    second, first = Party.of(later, mine), Party.of(earlier, theirs)
    if mine.alias != theirs.alias:
        first = replace(first, object=f"{theirs.label or 'an object'!r} (created at {theirs.site})")
    shift = mine.alias[1] if mine.alias else 0
    return Finding(hazard, second, first, mine.label, mine.size, mine.site, start - shift, stop - shift)


def judged(surveys: list[Survey]) -> list[Finding]:
    """Return what is wrong with the surveyed accesses of one command."""
    found: list[Finding] = []
    edges: set[tuple[Node, int]] = set()
    for _, (node, access), _, _, unordered, undefined in surveys:
        if unordered or undefined:
            if node.start is not None:  # an unmap: whatever came between was judged against its map
                continue
            for other, theirs in unordered.items():
                if (other, access.obj) in edges:
                    continue
                edges.add((other, access.obj))
                mine, use = (node, access), (other, theirs)
                finding = _collision(mine, use) if node.number > other.number else _collision(use, mine)
                if finding.hazard != "host_map" or finding.first.writes or not finding.second.assumed:
                    found.append(finding)
            for migration, theirs in undefined.items():
                found.append(_finding("undefined_content", node, access, migration, theirs))
    return found


class Report:
    """The findings so far, each missing edge once, and what is done with a new one."""

    def __init__(self, mode: str, suppress: frozenset[str]) -> None:
        self.mode, self.suppress = mode, suppress
        self.quiet = False  # nothing can be raised now
        self._found: dict[tuple[str, str, str], Finding] = {}
        self.unsaid: list[Finding] = []  # to warn of, where nothing could be raised

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())

    def add(self, found: list[Finding], *, quietly: bool = False) -> None:
        """Count findings; raise the first or warn of the new ones, as the mode says."""
        found = [finding for finding in found if finding.key not in self.suppress]
        new = []
        for finding in found:
            edge = finding.key, finding.second.name, finding.first.name
            known = self._found.get(edge)
            self._found[edge] = finding if known is None else replace(known, count=known.count + 1)
            if known is None:
                new.append(finding)
        if quietly or self.quiet:
            self.unsaid += new
        elif self.mode == "raise" and found:
            raise _ERRORS.get(found[0].hazard, UnorderedAccessError)(str(found[0]), found[0])
        elif self.mode == "warn":
            for finding in new:
                _warn(finding)

    def say(self) -> None:
        """Warn of what was found where nothing could be raised."""
        if self.unsaid and not self.quiet:
            unsaid, self.unsaid = self.unsaid, []
            for finding in unsaid if self.mode != "record" else ():
                _warn(finding)


_ERRORS = dict.fromkeys(("undefined_content", *_HANGS), HazardError)


def _warn(finding: Finding) -> None:
    path, _, line = finding.second.site.rpartition(":")
    warnings.warn_explicit(str(finding), HazardWarning, path or "?", int(line) if line.isdecimal() else 0)
