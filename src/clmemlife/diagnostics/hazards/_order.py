"""What comes before each command: its wait-list, its queue, its barrier, its map, the user events that gate it.

`Order.plan` gives a command its place in logical time and leaves no trace; `Order.commit` lets others come after it;
`Order.enqueued` or `Order.take_back` follow when the driver has answered.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import count
from typing import Final

from ..._journal import Command
from ._clocks import Node, Queue, joined, prolonged

_NO_PREDS: Final[list[Node]] = []  # never changed


class Order:
    """All commands that matter, by event and by queue."""

    slack = 64  # what may pile up before it is looked through

    def __init__(self) -> None:
        self.nodes: dict[Hashable, Node] = {}
        self.queues: dict[Hashable, Queue] = {}
        self.maps: dict[int, Node] = {}
        self.waiting: dict[Node, None] = {}  # the pending ones, as they were enqueued
        self._nowhere = Queue(0, out_of_order=True)
        self.settled = Node(Command("user event", None), self._nowhere, [])
        self._queue_numbers = count(1)
        self.number = 0  # of the latest command
        self._limit = self._queue_limit = self.slack
        _orders.append(weakref.ref(self, _orders.remove))

    def queue(self, key: Hashable, out_of_order: bool) -> Queue:
        """Return the state of a queue, which begins when it is first seen."""
        queue = self.queues.get(key)
        if queue is None:
            if len(self.queues) >= self._queue_limit:
                self.queues = {k: q for k, q in self.queues.items() if any(end.live() for end in q.ends())}
                self._queue_limit = 2 * len(self.queues) + self.slack
            queue = self.queues[key] = Queue(next(self._queue_numbers), out_of_order=out_of_order)
        return queue

    def plan(self, command: Command) -> Node:
        """Return the command in logical time, without a trace of it here."""
        queue = self.queues.get(command.queue) or self.queue(command.queue, command.out_of_order)
        own, last = queue.chain, queue.last
        preds = queue.before(command) if own is None or last is None else [last]
        gates: list[Hashable] = []
        for event in command.waits:
            pred = self.nodes.get(event)
            if pred is not None:
                preds.append(pred)
                if pred.queue is not queue and not command.raw:
                    pred.queue.flushed = self.number  # as each of our commands does before it waits
            elif event in command.gates:
                gates.append(event)
            elif event not in command.opened:
                preds.append(self.adopt(event))
        self.number = number = self.number + 1
        node = Node(command, queue, preds, number)
        if command.mapping is not None and command.kind == "unmap" and command.mapping in self.maps:
            node.start = self.maps[command.mapping]
            node.accesses = node.accesses or node.start.accesses
            preds.append(node.start)
        if gates or (self.waiting and any(pred.pending for pred in preds)):
            node.pending, node.gates = True, frozenset(gates)
            return node
        if own is not None:
            for pred in preds:
                if pred.chain is not own and pred.index > pred.chain.ordered:
                    break
            else:  # as in most programs: nothing but the queue itself, and what the host has waited for
                node.chain, node.index = own, own.length + 1
                if last is not None:
                    node.clock = last.clock
                return node
        self._place(node)
        return node

    def commit(self, command: Command, node: Node) -> None:
        """Let later commands come after a planned one."""
        queue = node.queue
        node.undo = queue.last, queue.barrier, queue.loose
        if queue.chain is None:
            queue.push(node, alone=not command.waits)
        else:
            queue.last = node
        if node.pending:
            self.waiting[node] = None
        else:
            node.chain.length = node.index
            node.preds = _NO_PREDS
        if command.mapping is not None:
            if node.kind == "map":
                self.maps[command.mapping] = node
            elif node.start is not None:
                node.start.unmap = node
                del self.maps[command.mapping]

    def enqueued(self, event: Hashable, node: Node) -> None:
        """Name a committed command by its event."""
        node.undo, node.event = None, event
        self.nodes[event] = node
        if len(self.nodes) > self._limit:
            self._tidy()

    def take_back(self, command: Command, node: Node) -> None:
        """Remove a committed command that the driver refused. Its number in the chain stays unused."""
        if node.undo is not None:
            node.queue.pull(node, node.undo)
        if node.pending:
            del self.waiting[node]
            node.pending = False  # whoever was put behind it meanwhile need not wait
        if command.mapping is not None:
            if node.start is not None:
                node.start.unmap = None
                self.maps[command.mapping] = node.start
            elif node.kind == "map":
                self.maps.pop(command.mapping, None)

    def adopt(self, event: Hashable, queue: Queue | None = None) -> Node:
        """Take in an event whose command was not seen: it may come after everything that has been enqueued."""
        preds = self.everything() if queue is None else [*queue.ends(), *self.everything()]
        self.number += 1
        node = Node(Command("foreign", None), queue or self._nowhere, preds, self.number)
        node.adopted = True
        if queue is not None:
            queue.push(node, alone=False)
        node.pending = any(pred.pending for pred in node.preds)
        if node.pending:
            self.waiting[node] = None
        else:
            self._take_place(node)
        self.enqueued(event, node)
        return node

    def everything(self) -> list[Node]:
        """Return commands such that every command is among them or before one of them."""
        return [node for queue in self.queues.values() for node in queue.ends()]

    def settle(self, node: Node) -> None:
        """Let all that is enqueued from now on come after this command: the host has waited for it."""
        for chain, index in node.clock.items():
            chain.ordered = max(chain.ordered, index)
        node.chain.ordered = max(node.chain.ordered, node.index)

    def gates(self, node: Node) -> dict[Hashable, Node]:
        """Return the user events, not yet set, that a command certainly hangs on, each with a command gated by it."""
        found: dict[Hashable, Node] = {}
        seen, stack = {node}, [node]
        while stack:
            node = stack.pop()
            if node.pending and not node.adopted:
                found.update(dict.fromkeys(node.gates, node))
                stack += (fresh := set(node.preds) - seen)
                seen |= fresh
        return found

    def opened(self, event: Hashable | None) -> Iterator[Node]:
        """Say that a user event (None: each of them) is set; yield the commands that get their place by it.

        Their predecessors come first; each must be dealt with before the next is asked for.
        """
        if event is not None:
            self.remember(event, self.settled)
        for node in list(self.waiting):
            node.gates = frozenset() if event is None else node.gates - {event}
            if not node.gates and not any(pred.pending for pred in node.preds):
                del self.waiting[node]
                node.pending = False
                self._take_place(node)
                yield node

    def precedes(self, node: Node, later: Node) -> bool:
        """Return whether a command certainly happens before another one, either of them pending or not."""
        seen, stack = {later}, [later]
        while stack:
            each = stack.pop()
            if not each.pending:
                if not node.pending and (each is node or node.before(each)):
                    return True
            elif node in each.preds:
                return True
            else:
                stack += (fresh := set(each.preds) - seen)
                seen |= fresh
        return False

    def ends(self, nodes: Collection[Node]) -> list[Node]:
        """Return those commands that do not happen before another of them; know their events, whoever held them."""
        ends = [node for node in nodes if not any(self.precedes(node, other) for other in nodes if other is not node)]
        for node in ends:
            self.remember(node.event, node)
        return ends

    def remember(self, event: Hashable, node: Node) -> None:
        """Know an event for as long as somebody else holds it: only then can it come back in a wait-list."""
        self.nodes[event] = node
        if len(self.nodes) > self._limit:
            self._tidy()

    def _tidy(self) -> None:
        self.nodes = held_elsewhere(self.nodes, [order.nodes for order in _alive() if order is not self])
        self._limit = 4 * len(self.nodes) + self.slack

    def _place(self, node: Node) -> None:
        own = node.queue.chain
        node.clock = joined(node.preds, own)
        node.chain = chain = own if own is not None else prolonged(node.preds, node.clock)
        node.index = chain.length + 1

    def _take_place(self, node: Node) -> None:
        self._place(node)
        node.chain.length = node.index
        node.preds = _NO_PREDS


def _references(nodes: dict[Hashable, Node], others: Iterable[dict[Hashable, Node]] = ()) -> list[int]:
    """Count who holds each event, as far as those are not checkers."""
    counts = [sys.getrefcount(event) - (node.event is event) for event, node in nodes.items()]
    for other in others:
        for number, event in enumerate(nodes):
            theirs = other.get(event)
            if theirs is not None:
                counts[number] -= 1 + (theirs.event is event)
    return counts


def _unheld() -> int:
    node = Node(Command("marker", None), Queue(0, out_of_order=True), [])
    node.event = object()
    return _references({node.event: node})[0]


_UNHELD: Final = _unheld()  # what `_references` says of an event that nobody but checkers knows
_orders: Final[list[weakref.ref[Order]]] = []


def _alive() -> list[Order]:
    return [order for one in _orders.copy() if (order := one()) is not None]


def held_elsewhere(nodes: dict[Hashable, Node], others: Iterable[dict[Hashable, Node]]) -> dict[Hashable, Node]:
    """Return the entries whose event somebody else holds too; `others` are those of other checkers."""
    held = [count > _UNHELD for count in _references(nodes, others)]
    return {event: node for keep, (event, node) in zip(held, nodes.items(), strict=True) if keep}
