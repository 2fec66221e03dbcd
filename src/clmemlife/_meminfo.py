"""What the driver says of a memory object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from . import _ledger, _limits, _opencl
from .flags import MemFlags

__all__ = ["MemInfo"]

ASSOCIATED = cl.mem_info.ASSOCIATED_MEMOBJECT


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
