"""The bytes of one memory object, cut where they are valid in other places."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

Segment = tuple[int, int, frozenset[Any], bool]  # bytes [start, stop), where they are valid, whether undefined


class Segments:
    """One memory object: its segments, in order and without gaps, and what was moved of it."""

    def __init__(self, size: int) -> None:
        self.segments: list[Segment] = [(0, size, frozenset(), False)]
        self.moves: dict[tuple[Any, Any, bool], list[int]] = {}
        self.trail: deque[tuple[Any, Any]] = deque(maxlen=4)

    def change(self, start: int, stop: int, to: Callable[[Segment], tuple[frozenset[Any], bool]]) -> Iterator[Segment]:
        """Cut at the borders and change what is between them; yield what was there."""
        changed: list[Segment] = []
        for low, high, places, undefined in self.segments:
            for a, b in ((low, min(high, start)), (max(low, start), min(high, stop)), (max(low, stop), high)):
                if a >= b:
                    continue
                state = (places, undefined)
                if start <= a and b <= stop:
                    yield a, b, places, undefined
                    state = to((a, b, places, undefined))
                if changed and changed[-1][2:] == state:
                    changed[-1] = (changed[-1][0], b, *state)
                else:
                    changed.append((a, b, *state))
        self.segments = changed
