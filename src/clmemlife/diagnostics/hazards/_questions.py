"""What may be asked of the hazard checker: what an access would have to wait for, and the history of an object."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from ..._journal import Access
from ...exceptions import MapConflictError
from ._clocks import Node
from ._findings import Party
from ._order import Order
from ._uses import Objects, Uses


def dependencies(order: Order, objects: Objects, accesses: Iterable[Access]) -> list[Hashable]:
    """Return the fewest events that order such accesses behind all that they collide with."""
    found: dict[Node, None] = {}
    for access in accesses:
        for node in _collisions(order, objects, access):
            if node.mapped and node.unmap is None:
                raise MapConflictError(f"{access.label or access.site} is mapped at {node.site}: unmap it first")
            node = node.unmap if node.mapped and node.unmap is not None else node
            if node.live() and node.event is not None:
                found[node] = None
    return [node.event for node in order.ends(found)]


def _collisions(order: Order, objects: Objects, access: Access) -> Iterator[Node]:
    uses = objects.of(access.obj)
    if uses is not None:
        yield from (node for node, _ in uses.colliding(access))
    for node in order.waiting:
        if any(a.obj == access.obj and (a.writes or access.writes) and a.overlaps(access) for a in node.accesses):
            yield node


def explained(uses: Uses) -> str:
    """Return the recent uses of a memory object, oldest first, as text."""
    live = {node for segment in uses.segments for node, _ in segment[2] if node.mapped or node.live()}
    if not uses.recent:
        return "no use on record"
    a = uses.recent[-1][-1]
    lines = [f"{a.label or 'memory object'} ({a.size} bytes, created at {a.site})"]
    for node, a in uses.recent:
        does = " and ".join(verb for verb, on in (("reads", a.reads), ("writes", a.writes)) if on)
        party = Party.of(node, a)
        state = ": what comes next must be ordered behind it" if node in live else ""
        lines.append(f"  {party} {party.using(does)}{state}")
    return "\n".join(lines)
