"""What a stream is made of: slots on devices, and chunks in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from . import _waitlist
from ._access import Use
from ._block import Block
from ._handle import MemHandle


class Slot:
    """One of the places on a device where a chunk can be, as the ``launch`` of `stream_chunks` sees it.

    It is for the thread that iterates over the stream, and for the time of the call.

    Attributes
    ----------
    input, output : MemHandle
        Buffers of ``chunk_bytes`` and ``output_bytes``; one and the same when the stream works in place. They belong
        to the stream.
    queue : pyopencl.CommandQueue
        Where this device's kernels are meant to go.
    index : int
        Number of the chunk, from 0.
    input_bytes : int
        How many bytes of `input` are the chunk.
    output_bytes : int
        How many bytes of `output` are copied out; ``launch`` may lower it.
    shape, dtype
        Of the chunk.
    """

    __slots__ = (
        "_block", "_copied_in", "_copied_out", "_free", "_into", "_launched", "_out", "dtype", "index", "input",
        "input_bytes", "output", "output_bytes", "queue", "shape",
    )  # fmt: skip
    _block: Block
    _into: tuple[Any, Use]
    _out: tuple[Any, Use]
    input: MemHandle
    output: MemHandle

    def __init__(self, queue: cl.CommandQueue, first: list[cl.Event]) -> None:
        self.queue = queue
        self.index = self.input_bytes = self.output_bytes = 0
        self.shape: tuple[int, ...] = ()
        self.dtype = np.dtype(np.uint8)
        self._free = first  # what the next copy into the slot waits for
        self._copied_in: cl.Event | None = None
        self._launched: list[cl.Event] = []
        self._copied_out: cl.Event | None = None

    def _busy(self) -> bool:
        events = _waitlist.wait_list(self._copied_in, self._launched, self._copied_out)
        return any(one.command_execution_status > 0 for one in events)


class Lane:
    """One device: a queue for each direction, one for kernels, and its slots in turn."""

    def __init__(self, queues: Sequence[cl.CommandQueue], depth: int, first: list[cl.Event]) -> None:
        self.copy_in, self.kernels, self.copy_out = [*queues, *[queues[-1]] * 2][:3]
        self.slots = [Slot(self.kernels, first) for _ in range(depth)]
        self.dealt = 0


Launch = Callable[[Slot, "list[cl.Event]"], Any]


class Flight:
    """A chunk whose commands are enqueued and whose result nobody has had yet."""

    __slots__ = ("block", "dtype", "nbytes", "shape", "steps")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.nbytes = 0
        self.block: Block | None = None
        self.steps: dict[str, list[cl.Event]] = {}
