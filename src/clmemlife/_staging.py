"""Pinned host memory: lent to transfers, and lent again once nothing uses it any more.

A block is handed out when the commands that used it last are seen complete and no array over it lives elsewhere. That
adds no dependency between operations: to the hazard checker a block that is handed out again is a new object.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pyopencl as cl

from . import _block, _inflight, _journal, _opencl
from ._access import Use
from ._block import Block, size_class
from ._room import idle_memory
from ._submit import submit

__all__ = ["Staging", "staging"]

IDLE_BYTES = 256 << 20
"""How much pinned memory a context keeps for later by default."""

_IDLE_BLOCKS = 64
_POOLS = 8


class Staging:
    """The pinned memory of one context, as `staging` returns it; ``with`` lets go of what is idle when it is left.

    Attributes
    ----------
    idle_bytes_limit : int
        How many bytes are kept for later; set it as you like. What is lent out comes on top.

    Notes
    -----
    Any thread; nothing blocks. OpenCL specification: ``clCreateBuffer`` with ``CL_MEM_ALLOC_HOST_PTR``,
    ``clEnqueueMapBuffer``.
    """

    def __init__(self, context: cl.Context) -> None:
        self.idle_bytes_limit = IDLE_BYTES
        self._context = context
        self._queue = cl.CommandQueue(context, context.devices[0])  # only maps here: it never waits for anybody's work
        self._lock = threading.Lock()
        self._idle: deque[Block] = deque()
        self._kept = 0  # bytes of the idle ones
        self._returned: deque[Block] = deque()

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept for later now."""
        with self._lock:
            self._take_in()
            return self._kept

    def trim(self, nbytes: int = 0) -> None:
        """Let go of idle memory. Never blocks, any thread.

        Parameters
        ----------
        nbytes : int
            How many bytes may be kept.
        """
        with self._lock:
            self._take_in(nbytes)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.trim()

    def _lend(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` that no command uses and nobody looks at."""
        size = size_class(nbytes)
        with self._lock:
            self._take_in()
            for block in [one for one in self._idle if one.nbytes == size]:
                status = block.status()
                if status > 0 or (status == 0 and block.shared()):
                    continue
                self._idle.remove(block)
                self._kept -= size
                if status == 0:
                    block.renew()
                    return block
        _inflight.sweep()
        return Block(self._context, self._queue, size)

    def _give_back(self, block: Block, events: Sequence[cl.Event] = ()) -> None:
        """Take a block back that `events` may still use; never waits, also from a finalizer."""
        block.events = tuple(events)
        if _journal.listeners:
            _journal.host(_journal.Released(block.root.number))
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._lock.release()

    def _take_in(self, limit: int | None = None) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._idle.append(block)
            self._kept += block.nbytes
        limit = self.idle_bytes_limit if limit is None else limit
        if self._kept <= limit and len(self._idle) <= _IDLE_BLOCKS:
            return
        while self._idle and (self._kept > limit or len(self._idle) > _IDLE_BLOCKS):
            self._kept -= self._idle.popleft().nbytes  # what commands still use, the in-flight table holds


_pools: dict[int, Staging] = {}
_lock = threading.Lock()


def staging(context: cl.Context) -> Staging:
    """Return the pinned memory that this library's transfers in `context` go through.

    It is made at the first use, reused by size, bounded, and released at exit; ``with clmemlife.staging(context):``
    releases what is idle earlier. ``Statistics.staging_bytes`` tells how much there is.

    Parameters
    ----------
    context : pyopencl.Context

    Returns
    -------
    Staging
        The same one each time. The library owns it, and keeps those of the eight contexts that were used last.

    Raises
    ------
    TypeError
        Not a context.

    Notes
    -----
    Does not block, any thread. OpenCL specification: ``clCreateBuffer`` with ``CL_MEM_ALLOC_HOST_PTR``,
    ``clEnqueueMapBuffer``.
    """
    if not isinstance(context, cl.Context):
        raise TypeError(f"staging takes a pyopencl.Context, not {type(context).__name__}")
    with _lock:
        pool = _pools.pop(context.int_ptr, None) or Staging(context)
        _pools[context.int_ptr] = pool  # the latest is last
        while len(_pools) > _POOLS:
            _pools.pop(next(iter(_pools))).trim()
    return pool


def trim_idle(context: cl.Context) -> int:
    """Let go of all idle pinned memory of a context, for whoever found no memory there; return how many bytes.

    Waits for nothing but the unmaps, so that the memory is free when it returns; what commands still use is free when
    they are complete. Any thread.
    """
    with _lock:
        pool = _pools.get(context.int_ptr)
    nbytes = 0 if pool is None else pool.idle_bytes
    if pool is not None and nbytes:
        pool.trim()
        _opencl.finish(pool._queue)
    return nbytes


idle_memory.append(trim_idle)


def close() -> None:
    """Let go of everything that is idle, at exit; what is looked at is the operating system's."""
    while _pools:
        _pools.popitem()[1].trim()
    _block.forget()


def after_fork_in_child() -> None:
    """Forget what is the parent's, without a word to the driver."""
    global _lock
    _lock = threading.Lock()
    _opencl.immortalise(dict(_pools))
    _pools.clear()
    _block.forget()


def transfer(
    queue: cl.CommandQueue, mem: Any, use: Use, block: Block, nbytes: int, offset: int,
    waits: list[cl.Event] | None, *, to_device: bool,
) -> cl.Event:  # fmt: skip
    """Enqueue the copy of `nbytes` between the begin of `block` and byte `offset` of the buffer `mem`.

    `use` is that of the device's side; `waits` is a checked wait-list.
    """
    part = Use(block.root, 0, nbytes, reads=to_device, writes=not to_device)
    call = _opencl.enqueue_write_buffer if to_device else _opencl.enqueue_read_buffer
    event: cl.Event = submit(
        "enqueue_copy", queue, (use, part), waits, (mem, block), call,
        queue, mem, offset, nbytes, block.address, waits,
    )  # fmt: skip
    return event
