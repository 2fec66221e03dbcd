"""What is done when memory is short: make room, try once more, then say what is alive."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pyopencl as cl

from . import _inflight, _ledger
from ._limits import ContextLimits
from ._site import describe, plural

T = TypeVar("T")

_OUT_OF_MEMORY = frozenset(
    {
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.OUT_OF_RESOURCES,
        cl.status_code.OUT_OF_HOST_MEMORY,
    }
)

idle_memory: list[Callable[[cl.Context], object]] = []
"""What lets go of memory that modules above this one keep for later."""


def is_out_of_memory(error: cl.Error) -> bool:
    """Say whether `make_room` could help."""
    return error.code in _OUT_OF_MEMORY


def make_room(context: cl.Context | None = None) -> None:
    """Let go of what nobody needs: garbage, what completed commands used, idle memory in `context`."""
    gc.collect()
    _inflight.sweep()
    for let_go in idle_memory if context is not None else ():
        with suppress(cl.Error):
            let_go(context)


def with_room(call: Callable[[], T]) -> T:
    """Call; when memory is short make room and call once more."""
    try:
        return call()
    except cl.Error as error:
        if not is_out_of_memory(error):
            raise
    make_room()
    return call()


def allocate(create: Any, arguments: tuple[Any, ...], size: int, limits: ContextLimits) -> Any:
    """Create; when memory is short make room, try once more, then say what is alive."""
    try:
        return create(*arguments)
    except cl.Error as error:
        if not is_out_of_memory(error):
            raise
    make_room(arguments[0])
    try:
        return create(*arguments)
    except cl.Error as error:
        if not is_out_of_memory(error):
            raise
        alive = sorted(_ledger.entries(), key=lambda entry: entry.size, reverse=True)
        listed = "; ".join(describe(one.label, one.size, one.site, one.kind) for one in alive[:5])
        message = (
            f"out of memory for {size} bytes on {limits.largest_device} (largest allocation there: "
            f"{limits.max_mem_alloc_size} bytes), also after a garbage collection; alive here: "
            f"{plural(len(alive), 'handle')}, {_ledger.counters.current_bytes} bytes{': ' + listed if listed else ''}"
        )
        record = cl._cl._ErrorRecord(msg=message, code=error.code, routine=error.routine)
        raise type(error)(record) from error
