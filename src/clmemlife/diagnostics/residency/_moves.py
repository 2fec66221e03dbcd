"""What the records tell of places: moves between them, where an object is, and what costs time or data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HOST = None


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


def place_name(place: Any) -> str:
    """Return what messages call a place."""
    return "the host" if place is HOST else str(getattr(place, "name", place)).strip()
