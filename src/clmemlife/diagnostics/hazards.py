"""The hazard checker: two uses of the same bytes with no event between them.

Two uses collide if they share a byte and one of them writes. They are ordered if one *happens before* the other:

- a command comes after its wait-list, and after the command before it in an in-order queue;
- in an out-of-order queue it comes after the latest barrier; a marker or barrier without a wait-list comes after all
  that is in the queue;
- what the host has waited for (an event, a queue, a blocking command) comes before all that is enqueued later.
  Threads share this one host: how they hand work to each other is not seen;
- what hangs on a user event comes after all that the host had waited for when it set the event. Until then the
  command is judged against nothing; at the latest, the end of the scope (`Checker.close`) judges it;
- an unmap comes after its map, and from one to the other the host uses the bytes: a colliding command must come
  before the map or after the unmap.

That a command was seen complete orders nothing: it would hide the mistake behind timing. An event that was never
seen (the command of another library) may come after everything, so whoever waits for it is taken to.

Time is kept by `_order` and `_clocks`, the bytes by `_uses`; this module asks both and reports. It is pure: queues
and events are opaque hashable values.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import replace
from typing import Any, Literal

from .._journal import Access, Command, HostRecord, HostWait, Released, UserEventSet
from ..exceptions import HazardError, HazardWarning, MapConflictError, UnorderedAccessError
from ._clocks import Node
from ._findings import Finding, Party, collision, undefined_content
from ._order import Order
from ._uses import Undo, Uses

__all__ = ["Checker", "Finding", "Party"]

Mode = Literal["raise", "warn", "record"]


class Checker:
    """A listener of the journal that knows who uses which bytes and what orders them.

    Thread-safe. A record that arrives while the same thread is inside (a garbage collection may enqueue an unmap) is
    dealt with right after; what it finds is never raised, only warned of.

    Parameters
    ----------
    mode : {"raise", "warn", "record"}
        With "raise" the error comes out of `before`: the second command is not enqueued and leaves no trace here.
    suppress : collection of str
        Keys of findings that are not wanted.
    """

    def __init__(self, mode: Mode = "raise", suppress: Collection[str] = ()) -> None:
        if mode not in ("raise", "warn", "record"):
            raise ValueError(f"mode is {mode!r}; it must be 'raise', 'warn' or 'record'")
        self.mode = mode
        self.suppress = frozenset([suppress] if isinstance(suppress, str) else suppress)
        self._order = Order()
        self._uses: dict[int, Uses] = {}
        self._released: set[int] = set()
        self._in_flight: dict[int, tuple[Command, Node, list[tuple[Uses, Undo]]]] = {}
        self._findings: dict[tuple[str, str, str], Finding] = {}
        self._lock = threading.RLock()
        self._inside = self._quiet = False
        self._later: list[tuple[Callable[..., None], Any]] = []  # what came while inside
        self._unsaid: list[Finding] = []  # to warn of, where nothing could be raised

    # What the journal calls

    def before(self, command: Command) -> None:
        """Judge a command that is about to be enqueued."""
        self._step(self._before, command)

    def after(self, command: Command) -> None:
        """Take note of the event of a command."""
        self._step(self._after, command)

    def abandoned(self, command: Command) -> None:
        """Forget a command that the driver refused."""
        self._step(self._abandoned, command)

    def host(self, record: HostRecord) -> None:
        """Take note of what the host did."""
        self._step(self._host, record)

    # What the user calls

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each missing edge once, with its count."""
        with self._lock:
            return tuple(self._findings.values())

    def close(self) -> None:
        """Judge what still hangs on a user event, as if all were set now. A second call finds nothing new."""
        self._step(self._close)

    def declare(
        self,
        event: Hashable,
        reads: Iterable[Access] = (),
        writes: Iterable[Access] = (),
        *,
        queue: Hashable | None = None,
        out_of_order: bool = False,
        site: str = "?",
    ) -> None:
        """Say what the command of `event` uses. One of another library is declared right after it was enqueued,
        with its queue: then what follows in that queue is known to come after it.
        """
        accesses = tuple(_with_role(reads, reads=True)) + tuple(_with_role(writes))
        self._step(self._declare, event, accesses, queue, out_of_order, site)

    def dependencies(self, reads: Iterable[Access] = (), writes: Iterable[Access] = ()) -> list[Hashable]:
        """Return the fewest events of colliding commands that order such an access behind all of them.

        Raises
        ------
        MapConflictError
            If the host has the bytes mapped: then no event can order it.
        """
        with self._lock:
            found: dict[Node, None] = {}
            for access in (*_with_role(reads, reads=True), *_with_role(writes)):
                for node in self._collisions(access):
                    if node.mapped and node.unmap is None:
                        raise MapConflictError(
                            f"{access.label or access.site} is mapped at {node.site}: unmap it first"
                        )
                    node = node.unmap if node.mapped and node.unmap is not None else node
                    if node.live() and node.event is not None:
                        found[node] = None
            ends = [n for n in found if not any(self._order.precedes(n, m) for m in found if m is not n)]
            for node in ends:
                self._order.remember(node.event, node)
            return [node.event for node in ends]

    def explain(self, obj: int) -> str:
        """Return the recent uses of root memory object number `obj`, oldest first, as text."""
        with self._lock:
            uses = self._uses.get(obj)
            if uses is None or not uses.recent:
                return f"memory object {obj}: no use on record"
            live = {node.number for segment in uses.segments for node, _ in segment.uses if node.mapped or node.live()}
            last = uses.recent[-1][-1]
            lines = [f"{last.label or 'memory object'} ({last.size} bytes, created at {last.site})"]
            for number, kind, name, queue, site, a in uses.recent:
                does = " and ".join(verb for verb, on in (("reads", a.reads), ("writes", a.writes)) if on)
                party = Party(kind, name, queue, site, a.start, a.stop, a.box, assumed=a.assumed)
                state = ": what comes next must be ordered behind it" if number in live else ""
                lines.append(f"  {party} {party.using(does)}{state}")
            return "\n".join(lines)

    # One step at a time

    def _step(self, step: Callable[..., None], *values: Any) -> None:
        with self._lock:
            if self._inside:
                self._later.append((step, values))
                return
            self._inside = True
            try:
                step(*values)
            finally:
                self._quiet = True
                while self._later:
                    later, its_values = self._later.pop(0)
                    later(*its_values)
                self._quiet = self._inside = False

    def _before(self, command: Command) -> None:
        self._say()
        node = self._order.plan(command)
        found = self._endless(node, Party.of(node)) if command.blocking and node.pending else []
        if not node.pending:
            found = self._judged(node, node.accesses)
        if found:
            self._report(found)
        self._order.commit(command, node)
        undo = [] if node.pending else self._record(node, node.accesses)
        self._in_flight[id(command)] = command, node, undo

    def _after(self, command: Command) -> None:
        _, node, _ = self._in_flight.pop(id(command), (None, None, None))
        if node is None:
            return
        self._order.enqueued(command.event, node)
        if command.blocking:
            self._settle(node)

    def _abandoned(self, command: Command) -> None:
        _, node, undo = self._in_flight.pop(id(command), (None, None, None))
        if node is None or undo is None:
            return
        for uses, change in reversed(undo):
            uses.forget(node, change)
        if node.start is not None:
            node.start.mapped = True
        self._order.take_back(command, node)

    def _host(self, record: HostRecord) -> None:
        self._say()
        order = self._order
        if isinstance(record, UserEventSet):
            self._report(self._open(record.event))
        elif isinstance(record, Released):
            if order.waiting:
                self._released.add(record.obj)
            else:
                self._uses.pop(record.obj, None)
        else:
            self._wait(record)

    def _wait(self, record: HostWait) -> None:
        order = self._order
        nodes = [order.nodes.get(event) or order.adopt(event) for event in record.events]
        if record.queue in order.queues:
            nodes += order.queues[record.queue].ends()
        for node in nodes:
            if record.returned:
                self._settle(node)
            elif found := self._endless(node, Party("host wait", "", 0, record.site)):
                self._report(found)

    def _close(self) -> None:
        self._say()
        self._report(self._open(None))

    def _declare(
        self, event: Hashable, accesses: tuple[Access, ...], queue: Hashable | None, out_of_order: bool, site: str
    ) -> None:
        self._say()
        node = self._order.nodes.get(event)
        if node is None:
            node = self._order.adopt(event, None if queue is None else self._order.queue(queue, out_of_order))
            node.site = site
        node.accesses += accesses
        if not node.pending:
            found = self._judged(node, accesses)
            self._record(node, accesses)
            self._report(found)

    # What the steps are made of

    def _judged(self, node: Node, accesses: tuple[Access, ...]) -> list[Finding]:
        """Return what is wrong with the accesses of a command that has its place; change nothing."""
        found: list[Finding] = []
        if node.start is not None:  # an unmap: whatever came between was judged against its map
            return found
        for access in accesses:
            uses = self._uses.get(access.obj)
            if uses is None:
                continue
            for other, theirs in uses.unordered(node, access).items():
                mine, their_use = (node, access), (other, theirs)
                found.append(collision(*((mine, their_use) if node.number > other.number else (their_use, mine))))
            for migration, theirs in uses.undefined(node, access).items():
                found.append(undefined_content(node, access, migration, theirs))
        return found

    def _record(self, node: Node, accesses: tuple[Access, ...]) -> list[tuple[Uses, Undo]]:
        """Let later commands be judged against the accesses of this one."""
        if node.start is not None:
            node.start.mapped = False
        changes = []
        for access in accesses:
            if access.start < access.stop:
                uses = self._uses.get(access.obj)
                if uses is None:
                    uses = self._uses[access.obj] = Uses()
                changes.append((uses, uses.record(node, access)))
        return changes

    def _collisions(self, access: Access) -> Iterable[Node]:
        uses = self._uses.get(access.obj)
        if uses is not None:
            yield from (node for node, _ in uses.colliding(access, reads=access.reads, writes=access.writes))
        for node in self._order.waiting:
            if any(a.obj == access.obj and (a.writes or access.writes) and a.overlaps(access) for a in node.accesses):
                yield node

    def _open(self, event: Hashable | None) -> list[Finding]:
        """Judge what gets its place because a user event (None: every one) is set."""
        found: list[Finding] = []
        for node in self._order.opened(event):
            found += self._judged(node, node.accesses)
            self._record(node, node.accesses)
        if not self._order.waiting:
            for obj in self._released:
                self._uses.pop(obj, None)
            self._released.clear()
        return found

    def _settle(self, node: Node) -> None:
        """The host has waited for a command. If it hung on user events, they have been set without our knowledge."""
        for event in self._order.gates(node):
            self._report(self._open(event), quietly=True)
        for each in [p for p in node.preds if not p.pending] if node.pending else [node]:
            self._order.settle(each)

    def _endless(self, node: Node, waiter: Party) -> list[Finding]:
        """Return the finding that the host is about to wait for what only the host itself could let go."""
        if threading.active_count() > 1:
            return []
        return [Finding("wait_cycle", waiter, Party.of(gated)) for gated in [*self._order.gates(node).values()][:1]]

    def _counted(self, found: list[Finding]) -> list[Finding]:
        """Count findings; return those that are new."""
        new = []
        for finding in found:
            edge = finding.key, finding.second.name, finding.first.name
            known = self._findings.get(edge)
            self._findings[edge] = finding if known is None else replace(known, count=known.count + 1)
            if known is None:
                new.append(finding)
        return new

    def _report(self, found: list[Finding], *, quietly: bool = False) -> None:
        found = [finding for finding in found if finding.key not in self.suppress]
        new = self._counted(found)
        if quietly or self._quiet:
            self._unsaid += new
        elif self.mode == "raise" and found:
            raise _ERRORS.get(found[0].hazard, UnorderedAccessError)(str(found[0]), found[0])
        elif self.mode == "warn":
            for finding in new:
                _warn(finding)

    def _say(self) -> None:
        """Warn of what was found where nothing could be raised."""
        if self._unsaid and not self._quiet:
            unsaid, self._unsaid = self._unsaid, []
            for finding in unsaid if self.mode != "record" else ():
                _warn(finding)


_ERRORS = {"undefined_content": HazardError, "wait_cycle": HazardError}


def _warn(finding: Finding) -> None:
    path, _, line = finding.second.site.rpartition(":")
    warnings.warn_explicit(str(finding), HazardWarning, path or "?", int(line) if line.isdecimal() else 0)


def _with_role(accesses: Iterable[Access], *, reads: bool = False) -> list[Access]:
    """Return the accesses as reads or as writes, whatever they say themselves."""
    return [replace(access, reads=reads, writes=not reads) for access in accesses]
