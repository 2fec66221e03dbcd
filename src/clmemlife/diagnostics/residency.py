"""Which device holds what: read off the records of migrations, kernels, copies and maps.

This is the picture that follows from what commands declare, in the order in which they were enqueued. A driver may move
more (all of a buffer for a kernel that reads a part) or nothing at all (devices that share the host's memory).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .. import _journal
from .._handle import MemHandle
from .._journal import Access, Command
from .._meminfo import locate
from .._staging import LABEL as STAGING

__all__ = ["Move", "Residency", "ResidencyFinding", "record_residency", "residency"]

Segment = tuple[int, int, frozenset[Any], bool]  # bytes [start, stop), where they are valid, whether undefined
HOST = None

_active: list[Recorder] = []


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes that went from one place to another; a place is a device, or ``None`` for the host.

    Attributes
    ----------
    source, destination : pyopencl.Device or None
    explicit : bool
        By a migration or a copy with host memory; else because a command or a map needed them there.
    nbytes : int
        Bytes, all times together.
    count : int
        How often.
    """

    source: Any
    destination: Any
    explicit: bool
    nbytes: int
    count: int

    def __str__(self) -> str:
        how = "explicit" if self.explicit else "implicit"
        return f"{place_name(self.source)} -> {place_name(self.destination)}: {self.nbytes} bytes, {self.count} x {how}"


@dataclass(frozen=True, slots=True)
class Residency:
    """Where a memory object is, as far as was recorded. Bytes that no command has touched yet are nowhere.

    Attributes
    ----------
    label : str or None
    size : int
        Bytes.
    places : dict
        Maps each place (a `pyopencl.Device`, or ``None`` for the host) to how many bytes are valid there.
    undefined_bytes : int
        Bytes that a migration left without content.
    moves : tuple of Move
        What went where.
    """

    label: str | None
    size: int
    places: dict[Any, int]
    undefined_bytes: int
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        where = [f"{place_name(place)}: {nbytes}" for place, nbytes in self.places.items()]
        lines = [f"{self.label or 'unlabelled'} ({self.size} bytes), valid bytes: {', '.join(where) or 'not known'}"]
        if self.undefined_bytes:
            lines.append(f"  {self.undefined_bytes} bytes are undefined since a migration with CONTENT_UNDEFINED")
        return "\n".join([*lines, *(f"  {move}" for move in self.moves)])


@dataclass(frozen=True, slots=True)
class ResidencyFinding:
    """Something that costs time or data.

    Attributes
    ----------
    kind : str
        ``"ping_pong"``, ``"needless_migration"`` or ``"undefined_read"``.
    label : str or None
        Of the memory object.
    site : str
        ``file:line`` of the command.
    text : str
        What happens there.
    """

    kind: str
    label: str | None
    site: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.label or 'an unlabelled object'} at {self.site}: {self.text}"


class record_residency:  # noqa: N801 - used like a function, as contextlib.suppress is
    """Record where memory objects are while the block runs; `residency` asks.

    Notes
    -----
    It sees the commands of this library in all threads of the process. Blocks nest. It only looks: nothing is raised,
    `findings` tells what is wrong or needless. OpenCL specification: ``clEnqueueMigrateMemObjects``.
    """

    def __init__(self) -> None:
        self._recorder = Recorder()

    @property
    def findings(self) -> tuple[ResidencyFinding, ...]:
        """What was found so far, each once for an object and a place in the program."""
        return tuple(self._recorder.findings.values())

    @property
    def moves(self) -> tuple[Move, ...]:
        """Bytes moved between each two places, all objects together, those that are gone included."""
        return self._recorder.moves()

    def start(self) -> None:
        """Begin to listen, as entering the block does."""
        _journal.subscribe(self._recorder)
        _active.append(self._recorder)

    def stop(self) -> None:
        """Stop listening, as leaving the block does."""
        if self._recorder in _active:
            _active.remove(self._recorder)
            _journal.unsubscribe(self._recorder)

    def __enter__(self) -> record_residency:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def residency(mem: Any) -> Residency:
    """Return where a memory object is, as far as was recorded.

    Parameters
    ----------
    mem : MemHandle or PyOpenCL memory object
        For a part, its whole is looked at.

    Returns
    -------
    Residency

    Raises
    ------
    RuntimeError
        Nothing is recorded.

    Notes
    -----
    Any thread; does not block. The innermost open block answers.
    """
    if not _active:
        raise RuntimeError("residency needs records: use it within 'with clmemlife.record_residency():'")
    root = mem._alive().root if isinstance(mem, MemHandle) else locate(mem)[0]
    return _active[-1].report(root.number, root.label, root.size)


class _Object:
    """One memory object: its segments, in order and without gaps."""

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


class Recorder:
    """The listener of the journal behind `record_residency`. Pure: a place is whatever ``queue.device`` is."""

    def __init__(self) -> None:
        self.findings: dict[tuple[str, int, str], ResidencyFinding] = {}
        self._objects: dict[int, _Object] = {}
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

    def moves(self) -> tuple[Move, ...]:
        """Return all moves."""
        with self._lock:
            return _as_moves(self._moves)

    def report(self, number: int, label: str | None, size: int) -> Residency:
        """Return what is known of an object."""
        with self._lock:
            known = self._objects.get(number) or _Object(size)
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
            known = self._objects.setdefault(access.obj, _Object(access.size))
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

    def _migrate(self, known: _Object, command: Command, access: Access, place: Any) -> None:
        if command.undefined:
            for _ in known.change(access.start, access.stop, lambda _: (frozenset([place]), True)):
                pass
            return
        before = list(known.change(access.start, access.stop, lambda one: one[2:]))
        if all(place in places for _, _, places, _ in before):
            self._find("needless_migration", command, access, f"all of it is valid on {place_name(place)} already")
        self._arrive(known, command, access, place, explicit=True)

    def _arrive(self, known: _Object, command: Command, access: Access, place: Any, *, explicit: bool) -> None:
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

    def _write(self, known: _Object, access: Access, place: Any) -> None:
        for _ in known.change(access.start, access.stop, lambda _: (frozenset([place]), False)):
            pass

    def _count(self, known: _Object, source: Any, place: Any, explicit: bool, nbytes: int) -> None:
        for moves in (known.moves, self._moves):
            sums = moves.setdefault((source, place, explicit), [0, 0])
            sums[0] += nbytes
            sums[1] += 1

    def _find(self, kind: str, command: Command, access: Access, text: str) -> None:
        finding = ResidencyFinding(kind, access.label, command.site, text)
        self.findings.setdefault((kind, access.obj, command.site), finding)


def place_name(place: Any) -> str:
    """Return what messages call a place."""
    return "the host" if place is HOST else str(getattr(place, "name", place)).strip()


def _as_moves(moves: dict[tuple[Any, Any, bool], list[int]]) -> tuple[Move, ...]:
    return tuple(Move(*edge, nbytes, count) for edge, (nbytes, count) in moves.items())
