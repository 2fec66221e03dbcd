"""What each record means to the checker: what it has to be compared with, and what it finds by that."""

from __future__ import annotations

from collections.abc import Hashable

from ..._journal import Access, Command, Flushed, HostRecord, HostWait, Released, UserEventSet
from ._clocks import Node
from ._findings import Finding, Party, Report, judged
from ._hangs import endless, unflushed
from ._order import Order
from ._steps import Steps
from ._uses import Objects, Survey, Uses, survey


class Judge(Steps):
    """Know who uses which bytes and what orders them, step by step; whoever calls a step takes the lock."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._order = Order()
        self._objects = Objects()
        self._released: set[int] = set()
        self._in_flight: dict[int, tuple[Command, Node, list[Survey]]] = {}

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
            one[0].forget(one)
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
            one[0].record(one)
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
