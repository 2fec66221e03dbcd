"""Which command happens before which, in logical time.

Commands form *chains*: each command of a chain happens after the one before it. An in-order queue is one chain;
in an out-of-order queue a command prolongs a chain whose end it waits for, or begins one. A command knows for each
chain how far it comes after it (its *clock*), so "does B happen before A" is one look into the clock of A, and a
clock is no longer than the number of live chains.

The host is one timeline for all threads. What it has waited for happens before everything that is enqueued later:
each chain remembers how far that reaches (`Chain.ordered`), and clocks need not mention it any more.

A command that hangs on a user event which is not set stays *pending*: its place in time is decided when the event
is set. Commands get their place one by one, and each only after all that happen before it.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Final

from ..._journal import Access, Command

Clock = dict["Chain", int]
Undo = tuple["Node | None", "Node | None", "list[Node]"]  # of a queue: last, barrier, loose


class Chain:
    """A sequence of commands each of which happens after the one before it."""

    __slots__ = ("length", "ordered", "owned")

    def __init__(self, *, owned: bool = False) -> None:
        self.length = 0
        self.ordered: float = 0  # the commands up to this one happen before all that the host enqueues from now on
        self.owned = owned  # by an in-order queue: nobody else may prolong it


NOWHERE: Final = Chain(owned=True)  # of a node without a place: before everything
_NO_CLOCK: Final[Clock] = {}
_NO_GATES: Final[frozenset[Hashable]] = frozenset()


class Node:
    """A command in logical time. It must not keep its `Command`: that holds events, and so whole histories."""

    __slots__ = (
        "accesses",
        "adopted",
        "chain",
        "clock",
        "event",
        "gates",
        "index",
        "kind",
        "mapped",
        "name",
        "number",
        "pending",
        "preds",
        "queue",
        "site",
        "start",
        "undefined",
        "undo",
        "unmap",
    )

    def __init__(self, command: Command, queue: Queue, preds: list[Node], number: int = 0) -> None:
        self.kind, self.name, self.site = command.kind, command.name, command.site
        self.accesses: tuple[Access, ...] = command.accesses
        self.undefined = command.undefined
        self.number = number  # in the order of the calls
        self.event: Hashable | None = None
        self.queue = queue
        self.preds = preds  # until it has its place
        self.gates = _NO_GATES  # user events in its own wait-list that are not set
        self.pending = False  # has no place yet
        self.adopted = False  # stands for an event whose command was never seen
        self.chain, self.index, self.clock = NOWHERE, 0, _NO_CLOCK
        self.mapped = command.kind == "map"  # the host may use the bytes: until its unmap has a place
        self.unmap: Node | None = None  # of a map: its unmap, once enqueued
        self.start: Node | None = None  # of an unmap: its map
        self.undo: Undo | None = None  # its queue before it, until the driver has taken it

    def live(self) -> bool:
        """Return whether something enqueued from now on may be unordered with this command."""
        return self.pending or self.index > self.chain.ordered

    def before(self, other: Node) -> bool:
        """Return whether this command happens before `other` (both have their place)."""
        chain, index = self.chain, self.index
        if index <= chain.ordered:
            return True
        if chain is other.chain:
            return index < other.index
        return other.clock.get(chain, 0) >= index


_index = attrgetter("index")


class Queue:
    """What the next command of a queue comes after."""

    __slots__ = ("barrier", "chain", "flushed", "last", "limit", "loose", "number")
    slack = 64  # what may pile up before it is looked through

    def __init__(self, number: int, *, out_of_order: bool) -> None:
        self.number = number
        self.chain = None if out_of_order else Chain(owned=True)
        self.last: Node | None = None  # in order: the latest command
        self.barrier: Node | None = None  # out of order: the latest barrier,
        self.loose: list[Node] = []  # and the ends of what may run beside it
        self.limit = self.slack
        self.flushed = 0  # the commands up to this number have been handed to the device, as far as is known

    def ends(self) -> list[Node]:
        """Return commands such that every command of the queue is among them or before one of them."""
        if self.chain is not None:
            return [] if self.last is None else [self.last]
        return self.loose.copy() if self.barrier is None else [self.barrier, *self.loose]

    def before(self, command: Command) -> list[Node]:
        """Return what `command` comes after by its queue alone."""
        if self.chain is not None:
            return [] if self.last is None else [self.last]
        if command.kind in ("marker", "barrier") and not command.waits:
            return self.ends()
        return [] if self.barrier is None else [self.barrier]

    def push(self, node: Node, *, alone: bool) -> None:
        """Append a command; `alone` says that it has no wait-list."""
        if self.chain is not None:
            self.last = node
            return
        if node.kind == "barrier":
            self.barrier = node
        if node.kind in ("marker", "barrier") and alone:
            self.loose = []
        self.loose.append(node)
        if len(self.loose) > self.limit:
            placed = sorted((node for node in self.loose if not node.pending and node.live()), key=_index)
            ends = {node.chain: node for node in placed}
            self.loose = [node for node in self.loose if node.pending] + list(ends.values())
            self.limit = 2 * len(self.loose) + self.slack

    def pull(self, node: Node, before: Undo) -> None:
        """Take back a command that was pushed last (or, under threads, nearly last)."""
        last, barrier, loose = before
        if self.last is node:
            self.last = last
        if self.barrier is node:
            self.barrier = barrier
        if self.loose == [node]:
            self.loose = loose
        if node in self.loose:
            self.loose.remove(node)


def joined(preds: list[Node], own: Chain | None) -> Clock:
    """Return the clock of a command that comes after all `preds`; clocks are shared and never changed."""
    clock, shared = _NO_CLOCK, True
    if own is not None and preds and preds[0].chain is own:
        clock = preds[0].clock
    for pred in preds:
        chain, index = pred.chain, pred.index
        if index <= chain.ordered or chain is own or clock.get(chain, 0) >= index:
            continue
        if shared:
            clock, shared = {c: i for c, i in clock.items() if i > c.ordered}, False
        for c, i in pred.clock.items():
            if i > c.ordered and clock.get(c, 0) < i:
                clock[c] = i
        clock[chain] = index
    return clock


def prolonged(preds: list[Node], clock: Clock) -> Chain:
    """Return a chain whose end comes before a command of an out-of-order queue, or a new one."""
    for pred in preds:
        if pred.chain.length == pred.index and not pred.chain.owned:
            return pred.chain
    for chain, index in clock.items():
        if chain.length == index and not chain.owned:
            return chain
    return Chain()
