"""What the driver says of a memory object, and what a new one can be."""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyopencl as cl

from . import _inflight, _ledger, _limits, _opencl
from ._site import describe, plural
from .flags import MemFlags, require

__all__ = ["MemInfo"]

T = TypeVar("T")

ASSOCIATED = cl.mem_info.ASSOCIATED_MEMOBJECT
HOST_PTR_FLAGS = MemFlags.USE_HOST_PTR | MemFlags.ALLOC_HOST_PTR | MemFlags.COPY_HOST_PTR
ACCESS_FLAGS = MemFlags.READ_WRITE | MemFlags.READ_ONLY | MemFlags.WRITE_ONLY
_OUT_OF_MEMORY = frozenset(
    {
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.OUT_OF_RESOURCES,
        cl.status_code.OUT_OF_HOST_MEMORY,
    }
)
HOST_ACCESS_FLAGS = MemFlags.HOST_READ_ONLY | MemFlags.HOST_WRITE_ONLY | MemFlags.HOST_NO_ACCESS


@dataclass(frozen=True, slots=True)
class MemInfo:
    """Every ``CL_MEM_*`` query of an object at one moment, under its lower-case name.

    Attributes
    ----------
    type : int
        A value of `pyopencl.mem_object_type`.
    flags : MemFlags
        Bits that this library does not know are kept.
    size : int
        Bytes.
    host_ptr : int or None
        The address that a ``USE_HOST_PTR`` object was made with.
    map_count, reference_count : int
        Stale as soon as they are read, and for debugging only. The reference that the query needs is not counted.
    context : pyopencl.Context
    associated_memobject : int or None
        Address of the buffer or image that this one is a part or a view of.
    offset : int
        Where a sub-buffer begins in that, in bytes.
    uses_svm_pointer : bool or None
        ``None`` where the platform does not answer.

    Notes
    -----
    OpenCL specification: ``clGetMemObjectInfo``.
    """

    type: int
    flags: MemFlags
    size: int
    host_ptr: int | None
    map_count: int
    reference_count: int
    context: cl.Context
    associated_memobject: int | None
    offset: int
    uses_svm_pointer: bool | None


def query(mem: Any) -> MemInfo:
    """Ask the driver; `mem` is a wrapper whose own reference is not counted."""
    what = cl.mem_info
    associated = whole_of(mem)
    try:
        svm: bool | None = bool(mem.get_info(what.USES_SVM_POINTER))
    except cl.Error:
        svm = None
    return MemInfo(
        type=mem.get_info(what.TYPE),
        flags=MemFlags(mem.get_info(what.FLAGS)),
        size=mem.get_info(what.SIZE),
        host_ptr=_opencl.get_host_ptr(mem.int_ptr),
        map_count=mem.get_info(what.MAP_COUNT),
        reference_count=mem.get_info(what.REFERENCE_COUNT) - 1,
        context=mem.get_info(what.CONTEXT),
        associated_memobject=None if associated is None else associated.int_ptr,
        offset=mem.get_info(what.OFFSET),
        uses_svm_pointer=svm,
    )


@dataclass(slots=True)
class Facts:
    """What a handle remembers of its object; `misaligned` are the devices that cannot take a sub-buffer's origin."""

    type: int
    kind: str
    size: int
    flags: MemFlags
    context: cl.Context
    root: _ledger.Root
    offset: int
    misaligned: frozenset[int]


def measure(mem: Any, label: str | None, site: str) -> Facts:
    """Ask the driver for the facts about `mem`."""
    root, offset = locate(mem, label, site)
    kind = "buffer" if mem.int_ptr == root.int_ptr else "sub-buffer"
    if mem.type != cl.mem_object_type.BUFFER:
        kind = "image"
    context = mem.context
    alignments = _limits.context_limits(context).alignments if offset else {}
    misaligned = frozenset(device for device, step in alignments.items() if offset % step)
    return Facts(mem.type, kind, mem.size, MemFlags(mem.flags), context, root, offset, misaligned)


def whole_of(mem: Any) -> Any:
    """Return what `mem` is a part of, or ``None``."""
    try:
        whole = mem.get_info(ASSOCIATED)
    except cl.LogicError:  # the Intel CPU runtime does not name a root that nobody else holds
        return None
    return whole if isinstance(whole, cl.MemoryObjectHolder) else None


def locate(mem: Any, label: str | None = None, site: str = "outside this library") -> tuple[_ledger.Root, int]:
    """Return the root of a PyOpenCL object and its offset there in bytes."""
    offset, whole = 0, mem
    while True:
        parent = whole_of(whole)
        if parent is None:
            return _ledger.root_for(whole.int_ptr, whole.size, label, site), offset
        if whole.type == cl.mem_object_type.BUFFER:
            offset += whole.offset
        whole = parent


_sound: set[int] = set()


def check_flags(flags: MemFlags) -> MemFlags:
    """Return `flags` if a new memory object can have them."""
    if type(flags) is MemFlags and flags._value_ in _sound:  # the hash of a flag costs more than all the rest
        return flags
    require(flags, MemFlags)
    for group in (ACCESS_FLAGS, HOST_ACCESS_FLAGS):
        chosen = flags & group
        if chosen.value & (chosen.value - 1):
            raise ValueError(f"{chosen} contradict each other: give one")
    if flags & MemFlags.USE_HOST_PTR and flags & (MemFlags.ALLOC_HOST_PTR | MemFlags.COPY_HOST_PTR):
        raise ValueError(f"{flags & HOST_PTR_FLAGS}: USE_HOST_PTR excludes the other two")
    _sound.add(flags.value)
    return flags


def whole_number(value: object, name: str) -> int:
    """Return `value` as an ``int``; refuse what is none, ``bool`` included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__} {value!r}")
    return operator.index(value)


def whole_numbers(values: Any, name: str) -> tuple[int, ...]:
    """Return a sequence of numbers as a tuple of ``int``; refuse what has no order or is no number."""
    if isinstance(values, (str, bytes)) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
        raise TypeError(f"{name} must be a tuple of int, not {type(values).__name__} {values!r}")
    try:
        return tuple([operator.index(one) for one in values])
    except TypeError:
        raise TypeError(f"{name} must be a tuple of int, not {values!r}") from None


def check_narrowing(mine: MemFlags, wanted: MemFlags) -> None:
    _, access = check_flags(wanted), wanted & ACCESS_FLAGS
    if access and mine & (MemFlags.READ_ONLY | MemFlags.WRITE_ONLY) and access != mine & ACCESS_FLAGS:
        raise ValueError(f"a sub-buffer of a {mine & ACCESS_FLAGS} buffer cannot be {access}")
    host = wanted & HOST_ACCESS_FLAGS
    if host and host != MemFlags.HOST_NO_ACCESS and mine & HOST_ACCESS_FLAGS and host != mine & HOST_ACCESS_FLAGS:
        raise ValueError(f"a sub-buffer of a {mine & HOST_ACCESS_FLAGS} buffer cannot be {host}")


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


def allocate(create: Any, arguments: tuple[Any, ...], size: int, limits: _limits.ContextLimits) -> Any:
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


def buffer_size(size: object, host_bytes: int | None, limits: _limits.ContextLimits) -> int:
    """Return the size in bytes of a new buffer over `host_bytes` of host memory, checked."""
    if type(size) is int and 0 < size <= limits.max_mem_alloc_size and host_bytes is None:
        return size
    if size is None:
        if host_bytes is None:
            raise ValueError("create_buffer needs a size in bytes, or a hostbuf that has one")
        size = host_bytes
    nbytes = whole_number(size, "size (bytes)")
    if nbytes <= 0:
        raise ValueError(f"the size of a buffer must be at least 1 byte, not {nbytes}")
    if host_bytes is not None and host_bytes < nbytes:
        raise ValueError(f"hostbuf has {host_bytes} bytes, fewer than the buffer's size of {nbytes}")
    if nbytes > limits.max_mem_alloc_size:
        raise ValueError(
            f"a buffer of {nbytes} bytes is beyond the largest allocation of {limits.max_mem_alloc_size} bytes "
            f"(CL_DEVICE_MAX_MEM_ALLOC_SIZE of {limits.largest_device})"
        )
    return nbytes


def address_of(value: object, caller: str) -> int:
    """Return `value` as the address of a ``cl_mem`` that `caller` was given."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{caller} takes a PyOpenCL memory object or the address of a cl_mem, not {value!r}")
    address = operator.index(value)
    if address <= 0:
        raise ValueError(f"{address} is not the address of a cl_mem")
    return address


@functools.cache
def check_host_access(flags: MemFlags, what: str, *, reads: bool, writes: bool) -> None:
    """Refuse what the ``HOST_*`` flags of an object forbid to the host."""
    for forbidden, applies in (
        (MemFlags.HOST_NO_ACCESS, True), (MemFlags.HOST_WRITE_ONLY, reads), (MemFlags.HOST_READ_ONLY, writes),
    ):  # fmt: skip
        if applies and flags & forbidden:
            raise ValueError(f"the object was created with {forbidden}, which forbids {what}")
