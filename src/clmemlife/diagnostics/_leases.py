"""Host memory that ``USE_HOST_PTR`` objects use: kept until the driver is done with it.

PyOpenCL lets go of the host memory with its object; the memory object may live longer, since a queued command or a
sub-buffer has a reference.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pyopencl as cl

from . import _faults

_get_info = cl.Event.get_info  # as it is without hooks

leases: list[tuple[Any, Any, str]] = []
"""Host memory that is kept since the memory object may still be used: with the object, and where that ended."""


def remember_host(wrapper: Any, hostbuf: Any) -> None:
    """Know the host memory of a ``USE_HOST_PTR`` object, without another reference to it where that can be."""
    try:
        wrapper.host = weakref.ref(hostbuf)
    except TypeError:
        wrapper.host = lambda: hostbuf


def keep_host_memory(wrapper: Any) -> None:
    """PyOpenCL is about to let go of the host memory: keep it as long as the driver has the memory object."""
    hostbuf = wrapper.host() if wrapper.host is not None else None
    if hostbuf is None:
        return
    watches = wrapper.shared.watch()
    if watches is None:
        return
    watches.lease(hostbuf, wrapper.size)
    busy = [one for event, one in wrapper.shared.pending if running(event)]
    if busy or wrapper.shared.parts:
        leases.append((hostbuf, wrapper, busy[-1] if busy else ""))


def running(event: Any) -> bool:
    try:
        return bool(_get_info(event, cl.event_info.COMMAND_EXECUTION_STATUS) > 0)
    except cl.Error:
        return False


def look_at_leases(site: str, closing: Any | None = None) -> None:
    """Report host memory that nobody but us keeps any more, while the driver still uses it."""
    for entry in leases.copy():
        wrapper, busy = entry[1], entry[2]
        theirs = wrapper.alive or wrapper is closing  # PyOpenCL's object still holds it, or is about to let go
        watches = wrapper.shared.watch()
        if watches is None or watches.dead:
            leases.remove(entry)
        elif not wrapper.alive and sys.getrefcount(entry[0]) <= _HELD_HERE + theirs:
            leases.remove(entry)
            why = f"the command enqueued at {busy} still uses it" if busy else "a sub-buffer of it is alive"
            _faults.report(
                "host_array_freed",
                f"the host memory of a USE_HOST_PTR buffer is freed while {why} (the sanitizer keeps it)",
                wrapper.released or site,
                busy or wrapper.site,
                thing=str(wrapper),
                remedy="Keep the array and the Buffer until the commands are complete and all sub-buffers are gone.",
                quietly=True,
            )


_HELD_HERE = 3  # by the lease, by `leases`, by the call that asks
