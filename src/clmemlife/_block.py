"""A block of pinned host memory: a mapped ``ALLOC_HOST_PTR`` buffer that is used as host memory only.

Memory that somebody still looks at is never unmapped: it goes with the last array over it.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import pyopencl as cl

from . import _ledger, _limits, _opencl
from ._room import allocate
from ._site import report_at
from .exceptions import CleanupWarning
from .flags import MapFlags, MemFlags

LABEL = "clmemlife staging"
_SMALLEST = 1 << 16
_PINNED = (MemFlags.READ_WRITE | MemFlags.ALLOC_HOST_PTR).value
_MAPPED = (MapFlags.READ | MapFlags.WRITE).value
_living: dict[int, tuple[weakref.ref[Any], Any]] = {}
_numbers = itertools.count()


class Block:
    """Pinned memory in one user's hands.

    Attributes
    ----------
    array : ndarray of uint8
        All of it, `nbytes` at `address`. Arrays that are derived from it stay valid for as long as they are held.
    root : Root
        What the transfers through it are told of; a new one each time that it is handed out.
    events : tuple of Event
        Of the commands that used it last, once it was given back.
    """

    __slots__ = ("_int_ptr", "_references", "address", "array", "events", "nbytes", "root")

    def __init__(self, context: cl.Context, queue: cl.CommandQueue, nbytes: int) -> None:
        limits = _limits.context_limits(context)
        buffer = allocate(_opencl.create_buffer, (context, _PINNED, nbytes), nbytes, limits)
        self._int_ptr = buffer.int_ptr
        self.array = _opencl.enqueue_map_buffer(
            queue, buffer, _MAPPED, 0, (nbytes,), np.dtype(np.uint8), "C", None, None, True
        )[0]
        self.nbytes = nbytes
        self.address: int = self.array.__array_interface__["data"][0]
        _ledger.count_staging(nbytes)
        number = next(_numbers)
        end = functools.partial(_gone, number, nbytes, self.array.base, queue)
        _living[number] = weakref.ref(self.array, end), self.array.base  # no `finalize`: that does nothing at exit
        self.events: tuple[cl.Event, ...] = ()
        self._references = sys.getrefcount(self.array)
        self.renew()

    def renew(self) -> None:
        """Begin a new use."""
        self.events = ()
        self.root = _ledger.Root(self._int_ptr, self.nbytes, LABEL, "the library")

    def shared(self) -> bool:
        """Say whether anybody else holds an array over the memory."""
        return sys.getrefcount(self.array) > self._references

    def status(self) -> int:
        """Return 1 while commands use the memory, 0 when they are complete, -1 where one has failed."""
        found = [event.command_execution_status for event in self.events]
        return 1 if any(one > 0 for one in found) else -1 if any(one < 0 for one in found) else 0


def _gone(number: int, nbytes: int, memory_map: cl.MemoryMap, queue: cl.CommandQueue, _: object) -> None:
    """Unmap after the last array over a block; a map's own destructor would abort the process where that is refused."""
    _living.pop(number, None)
    try:
        _opencl.enqueue_unmap_mem_object(memory_map, queue, None)
    except Exception as error:
        _opencl.immortalise(memory_map)
        report_at(LABEL, f"{nbytes} bytes of pinned memory could not be unmapped and stay: {error}", CleanupWarning)
        return
    _ledger.count_staging(-nbytes)
    with suppress(cl.Error):
        _opencl.flush(queue)


def forget() -> None:
    """Keep every block that there is for ever."""
    _opencl.immortalise([(array(), memory_map) for array, memory_map in tuple(_living.values())])
    _living.clear()


def size_class(nbytes: int) -> int:
    """Return the size of the block for `nbytes`, 64 KiB or at most a quarter more, so that few sizes serve all."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step
