"""Host memory that ``USE_HOST_PTR`` objects use: kept until the driver is done with it.

PyOpenCL lets go of the host memory with its object; the memory object may live longer, since a queued command or a
sub-buffer has a reference.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
import pyopencl as cl

from ... import _callbacks, _hostmem
from . import _faults

_get_info = cl.Event.get_info  # as it is without hooks


class _Lease:
    """Host memory that is kept since the memory object may still be used: the array that owns it, and whose it was."""

    __slots__ = ("owner", "view", "wrapper")

    def __init__(self, owner: Any, view: Any, wrapper: Any) -> None:
        self.owner, self.wrapper = owner, wrapper
        self.view = None if view is owner else weakref.ref(view)  # what PyOpenCL was given

    def unheld(self, theirs: bool) -> bool:
        """Say whether nobody else holds the memory, but for PyOpenCL where it still does (`theirs`)."""
        view = None if self.view is None else self.view()
        if view is None:
            return sys.getrefcount(self.owner) <= _HELD_HERE + (theirs and self.view is None)
        return sys.getrefcount(view) <= _LOOKED_AT + theirs and sys.getrefcount(self.owner) <= _HELD_HERE + 1


_HELD_HERE = 3  # by the watch, by `_Lease.owner`, by the call that asks
_LOOKED_AT = 2  # by the name, by the call that asks
leases: list[_Lease] = []
memory = _hostmem._Registry()
"""Which ``USE_HOST_PTR`` object lies where."""


def remember_host(wrapper: Any, hostbuf: Any) -> None:
    """Know the host memory of a ``USE_HOST_PTR`` object, without another reference to it where that can be."""
    try:
        wrapper.host = weakref.ref(hostbuf)
    except TypeError:
        wrapper.host = lambda: hostbuf
    _share(wrapper, hostbuf)


def _share(wrapper: Any, hostbuf: Any) -> None:
    """Know that an object has the bytes of an older one, where both lie on the same host memory."""
    watches = wrapper.shared.watch()
    if watches is None:
        return
    try:
        start = _hostmem.HostMemory(hostbuf).address
    except (TypeError, ValueError):
        return
    claim = _hostmem._Claim(start, start + wrapper.size, "")
    claim.root, claim.watch = wrapper.root, watches
    _callbacks.catch_up()
    older = memory.enter(claim, allow_alias=True)
    if older is not None and older.root is not None:
        number, offset = older.root.alias or (older.root.number, 0)
        wrapper.root.alias = number, offset + start - older.start


def owner_of(array: Any) -> Any:
    """Return the array whose end frees the memory of an array, ``None`` where that is something else."""
    while isinstance(array, np.ndarray):
        base = np.ndarray.base.__get__(array)
        if base is None:
            return array if array.flags.owndata else None
        array = base
    return None


def keep_host_memory(wrapper: Any) -> None:
    """PyOpenCL is about to let go of the host memory: keep it as long as the driver has the memory object."""
    hostbuf = wrapper.host() if wrapper.host is not None else None
    if hostbuf is None:
        return
    watches = wrapper.shared.watch()
    if watches is None:
        return
    owner = owner_of(hostbuf)
    watches.lease(hostbuf if owner is None else owner, wrapper.size)
    if _in_use(wrapper):
        if owner is None:
            _faults.unknown("host memory of a USE_HOST_PTR object whose owner is no array")
        else:
            leases.append(_Lease(owner, hostbuf, wrapper))


def _in_use(wrapper: Any) -> str:
    """Return what still uses the memory object, in words."""
    busy = [one for event, one in wrapper.shared.pending if running(event)]
    if busy:
        return f"the command enqueued at {busy[-1]} still uses it"
    return "a sub-buffer of it is alive" if wrapper.shared.parts else ""


def running(event: Any) -> bool:
    """Say whether a command is not complete."""
    try:
        return bool(_get_info(event, cl.event_info.COMMAND_EXECUTION_STATUS) > 0)
    except cl.Error:
        return False


def look_at_leases(site: str, closing: Any | None = None) -> None:
    """Report host memory that nobody but us keeps any more, while the driver still uses it."""
    for lease in leases.copy():
        wrapper = lease.wrapper
        watches = wrapper.shared.watch()
        why = _in_use(wrapper)
        if watches is None or watches.dead or not why:
            leases.remove(lease)
        elif not wrapper.alive and lease.unheld(wrapper is closing):  # PyOpenCL is just about to let go of it
            leases.remove(lease)
            _faults.report(
                "host_array_freed",
                f"the host memory of a USE_HOST_PTR buffer is freed while {why} (the sanitizer keeps it)",
                wrapper.released or site,
                wrapper.site,
                thing=str(wrapper),
                remedy="Keep the array and the Buffer until the commands are complete and all sub-buffers are gone.",
                quietly=True,
            )
