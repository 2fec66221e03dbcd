"""`stream_chunks`: data larger than the device, through it in chunks, copies and kernels at the same time."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pyopencl as cl

from . import _waitlist
from ._chunks import Run
from ._pieces import pieces
from ._site import unraisable
from ._slots import Lane, Launch
from ._submit import check_queue
from .exceptions import ContextMismatchError

__all__ = ["ChunkStream", "stream_chunks"]

_MOST_SLOTS = 1 << 16


def stream_chunks(
    chunks: Any, launch: Launch, *, queues: cl.CommandQueue | Iterable[cl.CommandQueue], depth: int = 3,
    chunk_bytes: int | None = None, output_bytes: int | None = None, output_dtype: Any = None, in_place: bool = False,
    deal: str = "round_robin", wait_for: Any = None,
) -> ChunkStream:  # fmt: skip
    """Run chunks of host data through copy-in, kernels and copy-out, several at once; iterate over the results.

    Parameters
    ----------
    chunks : iterable of arrays, binary files or functions; array; memory map; binary file
        Arrays are copied into pinned memory. A single array or memory map (`numpy.memmap`, `mmap.mmap`) is cut into
        pieces of `chunk_bytes`, and so is each open binary file, from where it is to its end: it is read straight into
        pinned memory. A function ``fill(memory)`` writes a chunk into that itself (an array of `chunk_bytes` bytes,
        valid during the call) and returns how many bytes it wrote (``None``: all; 0 ends the stream).
    launch : callable
        ``launch(slot, wait_for)`` enqueues what is to be done with a `Slot`, after `wait_for`, and returns its event
        (or several).
    queues : pyopencl.CommandQueue or iterable of them
        Of one or several devices of one context. For each device the first takes copies in, the second kernels, the
        third copies out; where there are fewer, the last one does the rest. Three queues overlap all three.
    depth : int
        Chunks in flight on each device.
    chunk_bytes : int, optional
        Bytes of the largest chunk; by default those of the first array.
    output_bytes : int, optional
        Bytes of the largest result; by default `chunk_bytes`, and each result has as many bytes as its chunk. If
        given, each result has so many. With 0 nothing is copied out and the results are empty.
    output_dtype : dtype, optional
        Of the results; by default that of their chunk. With the bytes of its chunk a result has its shape too.
    in_place : bool
        The output is the input.
    deal : {"round_robin", "load"}
        How chunks are dealt to several devices: in turn, or to the one with the least to do. Results are in order.
    wait_for
        What the first command on each slot waits for; see `wait_list`.

    Returns
    -------
    ChunkStream
        An iterator over the results (arrays), in the order of the chunks; its `plan` shows the commands. A result is
        pinned memory and stays valid for as long as it is held (then other memory is taken for the next one); copy
        what is to be kept for long.

    Raises
    ------
    TypeError, ValueError, ContextMismatchError
        Arguments that do not fit.

    Notes
    -----
    Nothing happens before the first result is asked for (or a ``with`` block is entered: that makes the memory). The
    next chunk is asked for when a result has been taken, so that no more than `depth` of them are in flight. Iterating
    waits for results, nothing else blocks. What a producer or `launch` raises comes after the results of the chunks
    before; a failing command raises `DependencyError`. Either way the exception has a note that names chunk and step
    (`ChunkStream.failed`), and everything is given back, as it is when the stream is closed or dropped. One thread at a
    time iterates. OpenCL specification: ``clEnqueueWriteBuffer``, ``clEnqueueReadBuffer``,
    ``clEnqueueMarkerWithWaitList``, "Execution Model: Synchronization".
    """
    lanes = [queues] if isinstance(queues, cl.CommandQueue) else list(queues)
    if not lanes:
        raise ValueError("stream_chunks needs at least one queue")
    for queue in lanes:
        check_queue(queue)
        if queue.context != lanes[0].context:
            raise ContextMismatchError("the queues of a stream belong to two contexts")
    if not callable(launch):
        raise TypeError(f"launch must be callable, not {type(launch).__name__}")
    depth = operator.index(depth)
    if depth > _MOST_SLOTS:
        raise ValueError(f"depth is how many chunks are in flight on a device, {_MOST_SLOTS} at most, not {depth}")
    for name, number in (("depth", depth), ("chunk_bytes", chunk_bytes)):
        if number is not None and operator.index(number) < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if output_bytes is not None and (operator.index(output_bytes) < 0 or in_place):
        raise ValueError("output_bytes is 0 or more, and not given for a stream that works in place")
    if deal not in ("round_robin", "load"):
        raise ValueError(f"deal must be 'round_robin' or 'load', not {deal!r}")
    dtype = None if output_dtype is None else np.dtype(output_dtype)
    if dtype is not None and (dtype.hasobject or not dtype.itemsize):
        raise TypeError(f"output_dtype {dtype!r} has no bytes of its own on a device")
    by_device: dict[Any, list[cl.CommandQueue]] = {}
    for queue in lanes:
        by_device.setdefault(queue.device, []).append(queue)
    first = _waitlist.wait_list(wait_for)
    return ChunkStream(
        Run(
            pieces(chunks, chunk_bytes), launch, [Lane(mine, depth, first) for mine in by_device.values()],
            chunk_bytes, output_bytes, dtype,
            in_place=in_place, by_load=deal == "load" and len(by_device) > 1,
        )
    )  # fmt: skip


class ChunkStream(Iterator["np.ndarray[Any, Any]"]):
    """What `stream_chunks` returns: an iterator over the results; `close`, ``with`` or dropping it ends it early.

    Entering a ``with`` block makes the memory (if ``chunk_bytes`` was given), else the first result does.

    Notes
    -----
    It owns the buffers of its slots and gives them back when it ends. Only ``next`` waits. One thread at a time.
    OpenCL specification: ``clEnqueueWriteBuffer``, ``clEnqueueReadBuffer``, ``clEnqueueMarkerWithWaitList``.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._results = run.results()

    @property
    def failed(self) -> tuple[int, str] | None:
        """Which chunk ended the stream, and where: "producer", "memory", "copy in", "launch" or "copy out"."""
        return self._run.failed

    def __iter__(self) -> ChunkStream:
        return self

    def __next__(self) -> np.ndarray[Any, Any]:
        return next(self._results)

    def close(self) -> None:
        """End the stream and give everything back; never waits."""
        self._results.close()
        self._run.close()

    def __enter__(self) -> ChunkStream:
        self._run.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as late:
            if error is None:
                raise
            unraisable(late)

    def plan(self) -> str:
        """Say which commands there are for one chunk ``k`` of each device, each with its queue and its wait-list.

        Returns
        -------
        str
            One line for each command.
        """
        run, lines, count = self._run, [], len(self._run.lanes)
        for number, lane in enumerate(run.lanes):
            before = "of the slot's last chunk" if run.by_load else f"k-{len(lane.slots) * count}"
            own = list(dict.fromkeys((lane.copy_in, lane.kernels, lane.copy_out)))
            into, kernels, out = (own.index(one) + 1 for one in (lane.copy_in, lane.kernels, lane.copy_out))
            last = "launch" if run.output_bytes == 0 else "copy out"
            free = last if run.in_place else "launch"
            ready = "copy in k" if run.in_place or last == "launch" else f"copy in k, copy out {before}"
            dealt = "those dealt to it" if run.by_load else f"k % {count} == {number}" if count > 1 else "all"
            lines += [
                f"device {number} ({lane.kernels.device.name.strip()}), {len(lane.slots)} slots, chunks k: {dealt}",
                f"  copy in k   queue {into}  wait_for=[{free} {before}]",
                f"  launch k    queue {kernels}  wait_for=[{ready}]",
            ]
            if last == "copy out":
                lines.append(f"  copy out k  queue {out}  wait_for=[launch k]")
        return "\n".join(lines)
