"""Raw PyOpenCL during a test run: what was found in which test, and commands in another order. No pytest here."""

from __future__ import annotations

from typing import Any

from . import sanitize
from ._settings import parse_chaos
from .diagnostics import chaos
from .diagnostics.interception._faults import OF_THE_CHECKER


class Sanitizer:
    """Follow raw PyOpenCL during the whole run; `begin` and `end` enclose one test."""

    def __init__(self, looks: bool, seed: str, serialize: bool) -> None:
        self._sanitizer = sanitize("record", hazards=looks, leaks=False)
        self._sanitizer.start()
        self._seed = seed
        self._order: chaos.Chaos | chaos.Serializer | None = None
        self._known: dict[str, int] = {}
        if seed:
            self._order = chaos.Chaos(*parse_chaos(seed))
        elif serialize:
            self._order = chaos.Serializer()
        if self._order is not None:
            self._order.start()

    def begin(self, nodeid: str) -> None:
        """Begin a test, whose commands come in an order that depends on the seed and on the test only."""
        self._known = self._counts()
        if isinstance(self._order, chaos.Chaos):
            self._order.reseed(f"{self._seed} {nodeid}")

    def end(self, *, hazards: bool) -> list[Any]:
        """End a test; return what was found since it began, missing events only if `hazards`."""
        known = self._known
        self._known = self._counts()
        found = [one for one in self._sanitizer.findings if one.count > known.get(one.key, 0)]
        return [one for one in found if hazards or one.kind not in OF_THE_CHECKER]

    def close(self) -> None:
        """Stop to listen."""
        if self._order is not None:
            self._order.stop()
        self._sanitizer.stop()

    def _counts(self) -> dict[str, int]:
        return {one.key: one.count for one in self._sanitizer.findings}
