"""Calls that the driver refused with a bare error code, where more can be said of the reason."""

from __future__ import annotations

from typing import Any

import pyopencl as cl

from ... import _limits
from ...flags import MemFlags
from . import _copies, _faults
from ._places import KEY
from ._wrapped import Wrapper

_STATUS = cl.status_code
_HOST_PTR = cl.mem_flags.USE_HOST_PTR | cl.mem_flags.ALLOC_HOST_PTR
_ACCESS = (cl.mem_flags.READ_WRITE, cl.mem_flags.READ_ONLY, cl.mem_flags.WRITE_ONLY)
_HOST_ACCESS = (cl.mem_flags.HOST_READ_ONLY, cl.mem_flags.HOST_WRITE_ONLY, cl.mem_flags.HOST_NO_ACCESS)
_BY_HOST = sum(_HOST_ACCESS)


def _report(text: str, site: str, remedy: str, thing: str = "") -> None:
    _faults.report("refused_call", text, site, thing=thing, remedy=remedy, quietly=True)


def creation(error: cl.Error, context: Any, flags: Any, size: Any, hostbuf: Any, site: str) -> None:
    """Say why a buffer could not be made."""
    if error.code == _STATUS.INVALID_BUFFER_SIZE:
        if not size:
            _report("a buffer of 0 bytes is refused", site, "Make no buffer for nothing, or one of at least 1 byte.")
        else:
            limits = _limits.context_limits(context)
            _report(
                f"a buffer of {size} bytes is refused: the largest allocation of {limits.largest_device} is "
                f"{limits.max_mem_alloc_size} bytes", site, "Split the data over several buffers.",
            )  # fmt: skip
    elif isinstance(flags, int) and any(_several(flags, group) for group in (_ACCESS, _HOST_ACCESS)):
        _report(f"{MemFlags(flags)} contradict each other", site, "Give one flag of each kind.")
    elif isinstance(flags, int) and flags & cl.mem_flags.USE_HOST_PTR and hostbuf is None:
        _report("USE_HOST_PTR is given without host memory", site, "Pass hostbuf=.")


def _several(flags: int, group: tuple[int, ...]) -> bool:
    return sum(bool(flags & one) for one in group) > 1


def part(error: cl.Error, whole: Wrapper, context: Any, origin: int, size: int, site: str) -> None:
    """Say why a part of a buffer could not be made."""
    if error.code == _STATUS.MISALIGNED_SUB_BUFFER_OFFSET:
        step = max(_limits.context_limits(context).alignments.values(), default=1)
        below = origin // step * step
        _report(
            f"a sub-buffer that begins at byte {origin} is refused: the device needs a multiple of {step}", site,
            f"Begin at {below} or {below + step}, or pass an offset to the kernel instead.", str(whole),
        )  # fmt: skip
    elif whole.kind == "sub-buffer" and error.code == _STATUS.INVALID_MEM_OBJECT:
        _report(
            "a sub-buffer of a sub-buffer is refused", site,
            f"Cut it from the whole buffer, at byte {whole.offset + origin}.", str(whole),
        )  # fmt: skip
    elif origin + size > whole.size:
        _outside(whole, origin, origin + size, site)


def _outside(whole: Any, start: int, stop: int, site: str) -> None:
    _report(
        f"bytes [{start}, {stop}) are not within the {whole.size} bytes of the {whole.kind}", site,
        "Stay within its size.", str(whole),
    )  # fmt: skip


def command(error: cl.Error, wrappers: tuple[Any, ...], asked: tuple[int, int], site: str) -> None:
    """Say why a command could not be enqueued."""
    if error.code == _STATUS.INVALID_VALUE and wrappers and asked[1] > wrappers[0].size:
        _outside(wrappers[0], *asked, site)
    for wrapper in wrappers if error.code == _STATUS.INVALID_OPERATION else ():
        if wrapper.flags & _BY_HOST:
            _report(
                f"the host may not do this: the object was made with {MemFlags(wrapper.flags & _BY_HOST)}", site,
                "Make it without that flag, or use it by kernels and copies between device objects only.", str(wrapper),
            )  # fmt: skip
            return


def other_context(queue: Any, things: list[Any], site: str) -> None:
    """Say which object of a command is of another context than its queue."""
    if not isinstance(queue, cl.CommandQueue):
        return
    for thing in things:
        if isinstance(thing, (cl.MemoryObjectHolder, cl.Event, cl.Kernel)) and thing.context != queue.context:
            known = getattr(thing, KEY, None)
            what = "event" if isinstance(thing, cl.Event) else "kernel" if isinstance(thing, cl.Kernel) else "object"
            _faults.report(
                "refused_call", f"a command is refused: its queue is of one context, its {what} of another", site,
                known.about.site if known is not None else _copies.sites.get(thing.int_ptr, ""), quietly=True,
                thing=str(known.about) if known is not None else "", remedy=_INSTEAD[what],
            )  # fmt: skip


_INSTEAD = {
    "event": "Wait for the event on the host: no command can wait for one of another context.",
    "kernel": "Build the program in the context of the queue (queue.context).",
    "object": "Make the object in the context of the queue (queue.context), and copy through the host.",
}


def nothing_to_migrate(error: cl.Error, site: str) -> None:
    """Say why a migration of no objects could not be enqueued."""
    if error.code == _STATUS.INVALID_VALUE:
        _report("a migration of no objects is refused", site, "Migrate where there is something to migrate.")


def by_own_flags(whole: Wrapper) -> bool:
    """Say whether PyOpenCL's slices pass flags to a part of this object that a part cannot have."""
    return bool(whole.flags & _HOST_PTR)
