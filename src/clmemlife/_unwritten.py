"""Bytes of a discarding map that nobody wrote: they get a pattern at its begin, which is looked for at its end."""

from __future__ import annotations

from typing import Any

import numpy as np

_PATTERN = (np.arange(4093, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8)


def mark(data: np.ndarray[Any, Any]) -> None:
    """Fill bytes with a pattern that data are unlikely to have."""
    data[...] = np.resize(_PATTERN, data.shape)


def unwritten(data: np.ndarray[Any, Any], text: str) -> str:
    """Return what is to be said about the bytes of the map called `text` that still have the pattern."""
    untouched = int(np.count_nonzero(data == np.resize(_PATTERN, data.shape)))
    if untouched <= data.size // 64 + 1:  # one byte in 256 is like the pattern by chance
        return ""
    return (
        f"about {untouched} of {data.size} bytes of the discarding {text} were never written; "
        "their content is undefined"
    )
