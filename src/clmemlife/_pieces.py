"""What a stream takes as its chunks: arrays, files, functions that fill memory."""

from __future__ import annotations

import mmap
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ._block import Block
from ._handle import MemHandle

Array = np.ndarray[Any, Any]


class FilePart:
    """Fills memory from a file; that there is nothing left ends the file, not the stream."""

    __slots__ = ("got", "read")

    def __init__(self, read: Callable[[Array], int | None]) -> None:
        self.read = read
        self.got: int | None = 0

    def __call__(self, memory: Array) -> int:
        self.got = self.read(memory)
        if self.got is None:
            raise BlockingIOError("a file that does not block has nothing to read now")
        return self.got


def pieces(chunks: Any, chunk_bytes: int | None) -> Iterator[Any]:
    """Return the chunks of whatever `stream_chunks` takes."""
    if isinstance(chunks, mmap.mmap):
        chunks = np.frombuffer(chunks, np.uint8)
    whole = isinstance(chunks, np.ndarray)
    if isinstance(chunks, (str, bytes, bytearray, memoryview, MemHandle)):
        raise TypeError(f"chunks must be an iterable of arrays or functions, an array or a file, not {chunks!r:.40}")
    if not whole and not hasattr(chunks, "readinto"):
        return _without_files(iter(chunks))
    if chunk_bytes is None:
        raise ValueError("an array or a file is cut into chunks: give chunk_bytes=...")
    if not whole:
        return _without_files(iter([chunks]))
    if not chunks.flags.c_contiguous or chunk_bytes < chunks.itemsize:
        raise ValueError(f"chunks must be contiguous, chunk_bytes at least the {chunks.itemsize} bytes of an element")
    flat, step = chunks.reshape(-1), chunk_bytes // chunks.itemsize
    return (flat[start : start + step] for start in range(0, flat.size, step))


def _without_files(chunks: Iterator[Any]) -> Iterator[Any]:
    """Put what fills memory, chunk by chunk, in the place of each file."""
    for chunk in chunks:
        if hasattr(chunk, "readinto"):
            part = FilePart(chunk.readinto)
            yield part
            while part.got:
                yield part
        else:
            yield chunk


def as_array(chunk: Any) -> Array:
    """Return a chunk as an array; raise ``TypeError`` for what is none."""
    if not isinstance(chunk, (np.ndarray, np.generic)):
        try:
            return np.frombuffer(memoryview(chunk).cast("B"), np.uint8)
        except TypeError:
            what = type(chunk).__name__
            raise TypeError(f"a chunk must be an array or a function that fills one, not {what}") from None
    array = np.asarray(chunk)
    if array.dtype.hasobject:
        raise TypeError("a chunk of Python objects means nothing to a device")
    return array


def fill(block: Block, array: Array | None, chunk: Any, room: int | None) -> int:
    """Bring a chunk into pinned memory; return how many bytes it has."""
    assert room is not None
    if array is None:
        got = chunk(block.array[:room])
        nbytes = room if got is None else operator.index(got)
    else:
        nbytes = array.nbytes
    if not 0 <= nbytes <= room:
        raise ValueError(f"a chunk of {nbytes} bytes, where chunk_bytes is {room}")
    if array is not None:
        block.array[:nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return nbytes
