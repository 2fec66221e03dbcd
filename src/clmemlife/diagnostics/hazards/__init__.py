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

Of waits that may have no end `_hangs` knows: for a user event that nobody sets, for a queue that nobody flushes.

Time is kept by `_order` and `_clocks`, the bytes by `_uses`; this module asks both and reports. It is pure: queues
and events are opaque hashable values.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Literal

from ..._journal import Access, Command, Flushed, HostRecord, HostWait, Released, UserEventSet
from ._clocks import Node
from ._findings import Finding, Party, Report, judged
from ._hangs import endless, unflushed
from ._order import Order
from ._questions import dependencies, explained
from ._steps import Steps
from ._uses import Objects, Survey, Uses, survey, with_role

__all__ = ["Checker", "Finding", "Party"]

Mode = Literal["raise", "warn", "record"]


class Checker(Steps):
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
        super().__init__(Report(mode, frozenset([suppress] if isinstance(suppress, str) else suppress)))
        self._order = Order()
        self._objects = Objects()
        self._released: set[int] = set()
        self._in_flight: dict[int, tuple[Command, Node, list[Survey]]] = {}

    # What the journal calls

    def before(self, command: Command) -> None:
        """Judge a command that is about to be enqueued."""
        with self._lock:  # `_step`, spelled out where it counts
            if self._inside:
                self._later.append((self._before, command))
                return
            self._inside = True
            try:
                self._before(command)
            finally:
                if self._later:
                    self._catch_up()
                self._inside = False

    def after(self, command: Command) -> None:
        """Take note of the event of a command."""
        with self._lock:
            if self._inside:
                self._later.append((self._after, command))
                return
            self._inside = True
            try:
                self._after(command)
            finally:
                if self._later:
                    self._catch_up()
                self._inside = False

    def abandoned(self, command: Command) -> None:
        """Forget a command that the driver refused."""
        self._step(self._abandoned, command)

    def host(self, record: HostRecord) -> None:
        """Take note of what the host did."""
        if type(record) is Released or type(record) is Flushed:  # by a finalizer, perhaps
            self._soon(self._host, record)
        else:
            self._step(self._host, record)

    # What the user calls

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each missing edge once, with its count."""
        with self._lock:
            return self._report.findings

    def close(self) -> None:
        """Judge what still hangs on a user event, as if all were set now. A second call finds nothing new."""
        self._step(self._close, None)

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
        accesses = self._objects.placed((*with_role(reads, reads=True), *with_role(writes)))
        self._step(self._declare, (event, accesses, queue, out_of_order, site))

    def dependencies(self, reads: Iterable[Access] = (), writes: Iterable[Access] = ()) -> list[Hashable]:
        """Return the fewest events of colliding commands that order such an access behind all of them.

        Raises
        ------
        MapConflictError
            If the host has the bytes mapped: then no event can order it.
        """
        accesses = self._objects.placed((*with_role(reads, reads=True), *with_role(writes)))
        events: list[Hashable] = self._exclusively(dependencies, self._order, self._objects, accesses)
        return events

    def explain(self, obj: int) -> str:
        """Return the recent uses of root memory object number `obj`, oldest first, as text."""
        text: str = self._exclusively(lambda: explained(self._objects.of(obj) or Uses()))
        return text

    def has_waited_for(self, event: Hashable) -> bool:
        """Say whether the host has certainly waited for a command that was seen."""
        node = self._order.nodes.get(event)
        return node is not None and not node.live()

    # The steps

    def _before(self, command: Command) -> None:
        if self._report.unsaid:
            self._report.say()
        order = self._order
        node = order.plan(command)
        for access in node.accesses:
            if access.alias is not None:
                node.accesses = self._objects.placed(node.accesses)
                break
        surveys: list[Survey] = []
        found: list[Finding] | None = None
        if not node.pending:
            if self._survey(node, node.accesses, surveys):
                found = judged(surveys)
        elif command.blocking:
            found = endless(order, node, Party.of(node))
        if command.raw and command.waits:
            if self._later:
                self._catch_up()
            found = [*(found or ()), *unflushed(order, node, command.waits)]
        if found:
            self._report.add(found)
        order.commit(command, node)
        for number, one in enumerate(surveys):
            surveys[number] = one[0].record(one)
        self._in_flight[id(command)] = command, node, surveys

    def _after(self, command: Command) -> None:
        known = self._in_flight.pop(id(command), None)
        if known is None:
            return
        node = known[1]
        self._order.enqueued(command.event, node)
        if command.blocking:
            node.queue.flushed = self._order.number
            self._settle(node)

    def _abandoned(self, command: Command) -> None:
        _, node, undo = self._in_flight.pop(id(command), (None, None, None))
        if node is None or undo is None:
            return
        for one in reversed(undo):
            one.uses.forget(one)
        if node.start is not None:
            node.start.mapped = True
        self._order.take_back(command, node)

    def _host(self, record: HostRecord) -> None:
        self._report.say()
        order = self._order
        if isinstance(record, UserEventSet):
            self._report.add(self._open(record.event))
        elif isinstance(record, Flushed):
            if record.queue in order.queues:
                order.queues[record.queue].flushed = order.number
        elif isinstance(record, Released):
            if order.waiting:
                self._released.add(record.obj)
            else:
                self._objects.forget(record.obj)
        else:
            self._wait(record)

    def _wait(self, record: HostWait) -> None:
        order = self._order
        nodes = [order.nodes.get(event) or order.adopt(event) for event in record.events]
        if record.queue in order.queues:
            nodes += order.queues[record.queue].ends()
        for node in nodes:
            node.queue.flushed = order.number
            if record.returned:
                self._settle(node)
            elif found := endless(order, node, Party("host wait", "", 0, record.site)):
                self._report.add(found)

    def _close(self, _: None) -> None:
        self._report.say()
        self._report.add(self._open(None))

    def _declare(self, told: tuple[Hashable, tuple[Access, ...], Hashable | None, bool, str]) -> None:
        event, accesses, queue, out_of_order, site = told
        self._report.say()
        node = self._order.nodes.get(event)
        if node is None:
            node = self._order.adopt(event, None if queue is None else self._order.queue(queue, out_of_order))
            node.site = site
        elif node is self._order.settled:
            raise ValueError("this is a user event: no command belongs to it")
        node.accesses += accesses
        if not node.pending:
            self._report.add(self._take(node, accesses))

    def _survey(self, node: Node, accesses: tuple[Access, ...], surveys: list[Survey]) -> bool:
        """Append what the accesses of a command that has its place find; return whether that is to be judged."""
        if node.start is not None:
            node.start.mapped = False  # only now can the unmap stand for its map
        wrong, by_number = False, self._objects.uses
        for access in accesses:
            if access.start < access.stop:
                uses = by_number.get(access.obj)
                if uses is None:
                    uses = by_number[access.obj] = Uses()
                elif len(uses.segments) > uses.limit:
                    uses.compact()
                one = survey(uses, node, access)
                surveys.append(one)
                if one[4] or one[5]:
                    wrong = True
        return wrong

    def _take(self, node: Node, accesses: tuple[Access, ...]) -> list[Finding]:
        """Judge a command that is enqueued already, and let later ones be judged against it."""
        surveys: list[Survey] = []
        found = judged(surveys) if self._survey(node, accesses, surveys) else []
        for one in surveys:
            one.uses.record(one)
        return found

    def _open(self, event: Hashable | None) -> list[Finding]:
        """Judge what gets its place because a user event (None: every one) is set."""
        found: list[Finding] = []
        for node in self._order.opened(event):
            found += self._take(node, node.accesses)
        if not self._order.waiting:
            for obj in self._released:
                self._objects.forget(obj)
            self._released.clear()
        return found

    def _settle(self, node: Node) -> None:
        """The host has waited for a command. If it hung on user events, they have been set without our knowledge."""
        for event in self._order.gates(node):
            self._report.add(self._open(event), quietly=True)
        for each in [p for p in node.preds if not p.pending] if node.pending else [node]:
            self._order.settle(each)
