"""The listener behind `record_residency`: what each command does to the places where bytes are valid."""

from __future__ import annotations

import threading
from typing import Any

from ... import _journal
from ..._block import LABEL as STAGING
from ..._journal import Access, Command
from ._moves import HOST, Move, Residency, ResidencyFinding, place_name
from ._segments import Segments


class Recorder:
    """Follow the bytes of all objects, command by command. Pure: a place is whatever ``queue.device`` is."""

    def __init__(self) -> None:
        self.findings: dict[tuple[str, int, str], ResidencyFinding] = {}
        self._objects: dict[int, Segments] = {}
        self._moves: dict[tuple[Any, Any, bool], list[int]] = {}
        self._lock = threading.RLock()
        self._inside = False
        self._later: list[Command] = []  # what came while inside: a garbage collection may enqueue an unmap

    def before(self, command: Command) -> None:
        """Nothing is done before the driver has taken the command."""

    def abandoned(self, command: Command) -> None:
        """Nothing was done for a command that the driver refused."""

    def host(self, record: _journal.HostRecord) -> None:
        """Forget an object that is gone."""
        if isinstance(record, _journal.Released):
            with self._lock:
                self._objects.pop(record.obj, None)

    def after(self, command: Command) -> None:
        """Move bytes as the command does."""
        with self._lock:
            self._later.append(command)
            if self._inside:
                return
            self._inside = True
            try:
                while self._later:
                    self._take(self._later.pop(0))
            finally:
                self._inside = False

    def forget_in_child(self) -> None:
        """Let no other thread hold up a forked child."""
        self._lock, self._inside = threading.RLock(), False

    def moves(self) -> tuple[Move, ...]:
        """Return all moves."""
        with self._lock:
            return _as_moves(self._moves)

    def report(self, number: int, label: str | None, size: int) -> Residency:
        """Return what is known of an object."""
        with self._lock:
            known = self._objects.get(number) or Segments(size)
            places: dict[Any, int] = {}
            for low, high, where, undefined in known.segments:
                for place in () if undefined else where:
                    places[place] = places.get(place, 0) + high - low
            empty = sum(high - low for low, high, _, undefined in known.segments if undefined)
            return Residency(label, size, places, empty, _as_moves(known.moves))

    def _take(self, command: Command) -> None:
        accesses = [one for one in command.accesses if one.label != STAGING and one.start < one.stop]
        device = getattr(command.queue, "device", command.queue)
        kind = command.kind
        for access in sorted(accesses, key=lambda one: one.writes):  # a copy reads before it writes
            known = self._objects.setdefault(access.obj, Segments(access.size))
            if kind == "migrate":
                self._migrate(known, command, access, HOST if command.name else device)
            elif kind == "map":
                if access.reads:
                    self._arrive(known, command, access, HOST, explicit=False)
            elif kind == "unmap":
                if access.writes:
                    self._write(known, access, HOST)
            else:
                with_host = kind == "enqueue_copy" and len(accesses) == 1
                if access.reads:
                    self._arrive(known, command, access, device, explicit=False)
                    if with_host:
                        self._count(known, device, HOST, True, access.stop - access.start)
                if access.writes:
                    self._write(known, access, device)
                    if with_host:
                        self._count(known, HOST, device, True, access.stop - access.start)

    def _migrate(self, known: Segments, command: Command, access: Access, place: Any) -> None:
        if command.undefined:
            for _ in known.change(access.start, access.stop, lambda _: (frozenset([place]), True)):
                pass
            return
        before = list(known.change(access.start, access.stop, lambda one: one[2:]))
        if all(place in places for _, _, places, _ in before):
            self._find("needless_migration", command, access, f"all of it is valid on {place_name(place)} already")
        self._arrive(known, command, access, place, explicit=True)

    def _arrive(self, known: Segments, command: Command, access: Access, place: Any, *, explicit: bool) -> None:
        """Make the bytes valid in a place too."""
        undefined = 0
        moved: dict[Any, int] = {}
        for low, high, places, empty in known.change(
            access.start, access.stop, lambda one: (one[2] | {place} if one[2] else frozenset([place]), one[3])
        ):
            undefined += high - low if empty else 0
            if places and place not in places and not empty:
                source = HOST if HOST in places else next(iter(places))
                moved[source] = moved.get(source, 0) + high - low
        for source, nbytes in moved.items():
            self._count(known, source, place, explicit, nbytes)
            known.trail.append((source, place))
            trail = list(known.trail)
            if len(trail) == 4 and trail[:2] == trail[2:] and trail[0] == trail[1][::-1]:
                text = f"its bytes go to and fro between {place_name(source)} and {place_name(place)}"
                self._find("ping_pong", command, access, text)
        if undefined and not explicit and not access.assumed:
            text = f"{undefined} of the bytes read are undefined since a migration with CONTENT_UNDEFINED"
            self._find("undefined_read", command, access, text)

    def _write(self, known: Segments, access: Access, place: Any) -> None:
        for _ in known.change(access.start, access.stop, lambda _: (frozenset([place]), False)):
            pass

    def _count(self, known: Segments, source: Any, place: Any, explicit: bool, nbytes: int) -> None:
        for moves in (known.moves, self._moves):
            sums = moves.setdefault((source, place, explicit), [0, 0])
            sums[0] += nbytes
            sums[1] += 1

    def _find(self, kind: str, command: Command, access: Access, text: str) -> None:
        finding = ResidencyFinding(kind, access.label, command.site, text)
        self.findings.setdefault((kind, access.obj, command.site), finding)


def _as_moves(moves: dict[tuple[Any, Any, bool], list[int]]) -> tuple[Move, ...]:
    return tuple(Move(*edge, nbytes, count) for edge, (nbytes, count) in moves.items())
