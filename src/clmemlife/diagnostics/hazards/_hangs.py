"""Waits that may have no end: for a user event that nobody can set, for a command that nobody hands to its device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable

from ... import _journal
from ._clocks import Node
from ._findings import Finding, Party
from ._order import Order

announce: Callable[[Finding], None] | None = None
"""Told of a wait without an end before it begins: who waits in the driver may never come back to say so."""


def endless(order: Order, node: Node, waiter: Party) -> list[Finding]:
    """Return the finding that the host is about to wait for what only the host itself could let go."""
    gated = next(iter(order.gates(node).values()), None)
    others = {*threading.enumerate()} - {threading.current_thread()} if gated is not None else set()
    if gated is None or _journal.callbacks or any(not thread.name.startswith("clmemlife-") for thread in others):
        return []
    found = Finding("wait_cycle", waiter, Party.of(gated))
    if announce is not None:
        announce(found)
    return [found]


def unflushed(order: Order, node: Node, waits: Iterable[Hashable]) -> list[Finding]:
    """Return the findings that a command of others waits for one in another queue which may never be submitted.

    Each command up to `Queue.flushed` was handed to its device. Of an event that was met first in a wait-list nothing
    is known, and nothing is said.
    """
    found = []
    for event in waits:
        pred = order.nodes.get(event)
        if pred is None or pred.adopted or pred.queue is node.queue or not pred.queue.number:
            continue
        if pred.number > pred.queue.flushed:
            found.append(Finding("unflushed_wait", Party.of(node), Party.of(pred)))
    return found
