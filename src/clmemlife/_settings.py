"""What a watched process is told by its environment, and the words of options that several ways in have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["MILLISECONDS", "VARIABLES", "Settings", "parse_chaos", "settings"]

VARIABLES = tuple(f"CLMEMLIFE_{one}" for one in ("SANITIZE", "JSON", "TRACE", "CHAOS", "SERIALIZE", "FIRST"))

_WORDS = ("", "0", "1", "hazards", "leaks", "none")

MILLISECONDS = 10.0
"""For how long a command is held back at most, unless told otherwise."""


class Settings(NamedTuple):
    """What the environment asks for."""

    hazards: bool = True
    leaks: bool = True
    chaos: str = ""
    serialize: bool = False
    json: str = ""
    trace: str = ""

    def variables(self) -> dict[str, str]:
        """Return the environment that asks for this."""
        words = [name for name in ("hazards", "leaks") if getattr(self, name)]
        values = ",".join(words) or "none", self.json, self.trace, self.chaos, "1" if self.serialize else ""
        return {name: value for name, value in zip(VARIABLES, values) if value}


def settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return what the variables say: ``CLMEMLIFE_SANITIZE`` is ``1``, or which of ``hazards,leaks``, or ``none``."""
    sanitize, json, trace, chaos, serialize = (environment.get(name, "") for name in VARIABLES[:5])
    words = {word.strip() for word in sanitize.split(",")}
    everything = not {"hazards", "leaks", "none"} & words
    return Settings(
        everything or "hazards" in words, everything or "leaks" in words, chaos, serialize not in ("", "0"), json, trace
    )


def unknown_words(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return what ``CLMEMLIFE_SANITIZE`` asks for and nobody knows."""
    words = [word.strip() for word in environment.get("CLMEMLIFE_SANITIZE", "").split(",")]
    return [word for word in words if word not in _WORDS]


def parse_chaos(text: str) -> tuple[int, float]:
    """Return seed and milliseconds of ``SEED[:MILLISECONDS]``; raise ``ValueError`` for anything else."""
    found = re.fullmatch(r"(-?\d+)(?::(\d+(?:\.\d+)?))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not SEED or SEED:MILLISECONDS")
    return int(found[1]), float(found[2] or MILLISECONDS)
