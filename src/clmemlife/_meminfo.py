"""What the driver says of a memory object, and what a new one can be."""

from __future__ import annotations

import functools
import gc
from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from . import _inflight, _ledger, _opencl
from ._site import describe
from .flags import MemFlags, require

__all__ = ["MemInfo"]

ASSOCIATED = cl.mem_info.ASSOCIATED_MEMOBJECT
HOST_PTR_FLAGS = MemFlags.USE_HOST_PTR | MemFlags.ALLOC_HOST_PTR | MemFlags.COPY_HOST_PTR
ACCESS_FLAGS = MemFlags.READ_WRITE | MemFlags.READ_ONLY | MemFlags.WRITE_ONLY
HOST_ACCESS_FLAGS = MemFlags.HOST_READ_ONLY | MemFlags.HOST_WRITE_ONLY | MemFlags.HOST_NO_ACCESS


@dataclass(frozen=True, slots=True)
class MemInfo:
    """Every ``CL_MEM_*`` query of an object at one moment, under its lower-case name.

    ``map_count`` and ``reference_count`` are stale as soon as they are read; they are for debugging only. ``None``
    stands for what the platform does not answer. OpenCL specification: ``clGetMemObjectInfo``.
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
    associated = mem.get_info(what.ASSOCIATED_MEMOBJECT)
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


def locate(mem: Any, label: str | None = None, site: str = "outside this library") -> tuple[_ledger.Root, int]:
    """Return the root of a PyOpenCL object and its offset there in bytes."""
    offset, whole = 0, mem
    while True:
        parent = whole.get_info(ASSOCIATED)
        if not isinstance(parent, cl.MemoryObjectHolder):
            return _ledger.root_for(whole.int_ptr, whole.size, label, site), offset
        if whole.type == cl.mem_object_type.BUFFER:
            offset += whole.offset
        whole = parent


def check_flags(flags: object) -> MemFlags:
    """Return `flags` if a new memory object can have them."""
    return _checked(require(flags, MemFlags))


@functools.cache
def _checked(flags: MemFlags) -> MemFlags:
    for group in (ACCESS_FLAGS, HOST_ACCESS_FLAGS):
        chosen = flags & group
        if chosen.value & (chosen.value - 1):
            raise ValueError(f"{chosen} contradict each other: give one")
    if flags & MemFlags.USE_HOST_PTR and flags & (MemFlags.ALLOC_HOST_PTR | MemFlags.COPY_HOST_PTR):
        raise ValueError(f"{flags & HOST_PTR_FLAGS}: USE_HOST_PTR excludes the other two")
    return flags


def check_narrowing(mine: MemFlags, wanted: MemFlags) -> None:
    _, access = check_flags(wanted), wanted & ACCESS_FLAGS
    if access and mine & (MemFlags.READ_ONLY | MemFlags.WRITE_ONLY) and access != mine & ACCESS_FLAGS:
        raise ValueError(f"a sub-buffer of a {mine & ACCESS_FLAGS} buffer cannot be {access}")
    host = wanted & HOST_ACCESS_FLAGS
    if host and host != MemFlags.HOST_NO_ACCESS and mine & HOST_ACCESS_FLAGS and host != mine & HOST_ACCESS_FLAGS:
        raise ValueError(f"a sub-buffer of a {mine & HOST_ACCESS_FLAGS} buffer cannot be {host}")


def image_type(shape: tuple[int, ...], *, is_array: bool, over_buffer: bool) -> int:
    """Return the ``CL_MEM_TYPE`` of an image with this shape."""
    kinds = cl.mem_object_type
    names = {
        (1, False, False): kinds.IMAGE1D, (2, False, False): kinds.IMAGE2D, (3, False, False): kinds.IMAGE3D,
        (2, True, False): kinds.IMAGE1D_ARRAY, (3, True, False): kinds.IMAGE2D_ARRAY,
        (1, False, True): kinds.IMAGE1D_BUFFER,
    }  # fmt: skip
    if any(n <= 0 for n in shape):
        raise ValueError(f"an image has at least one pixel in each direction, not shape {shape}")
    try:
        return int(names[len(shape), is_array, over_buffer])
    except KeyError:
        raise ValueError(
            f"no image has shape {shape} with is_array={is_array} over {'a buffer' if over_buffer else 'no buffer'}: "
            "1 to 3 numbers, 2 or 3 for an array, 1 over a buffer"
        ) from None


def image_bytes(shape: tuple[int, ...], itemsize: int, pitches: tuple[int, ...] | None) -> int:
    """Return how many bytes of host memory an image of `shape` (pixels) reads, with `pitches` in bytes."""
    width, height, depth = (*shape, 1, 1)[:3]
    row, slice_ = (*(pitches or ()), 0, 0)[:2]
    row = row or width * itemsize
    if len(shape) == 2 and slice_:  # a 1D array has its pitch between slices
        row = slice_
    slice_ = slice_ or row * height
    if row < width * itemsize or (depth > 1 and slice_ < row * height):
        raise ValueError(
            f"pitches {pitches} are smaller than a row of {width * itemsize} or a slice of {row * height} bytes"
        )
    return (depth - 1) * slice_ + (height - 1) * row + width * itemsize


def image_region(image: Any) -> tuple[int, int, int]:
    """Return the size of a PyOpenCL image in pixels, rows and slices, with 1 for a direction that it has not."""
    kinds = cl.mem_object_type
    width, height, depth, count = image.width, image.height, image.depth, image.array_size
    if image.type == kinds.IMAGE1D_ARRAY:
        return width, count, 1
    return width, max(height, 1), count if image.type == kinds.IMAGE2D_ARRAY else max(depth, 1)


def pixel_size(format: cl.ImageFormat) -> int:
    """Return the bytes of one pixel; PyOpenCL counts each channel of a packed format, and knows no sRGB orders."""
    types = cl.channel_type
    packed = {types.UNORM_SHORT_565: 2, types.UNORM_SHORT_555: 2, types.UNORM_INT_101010: 4}
    if format.channel_data_type in packed:
        return packed[format.channel_data_type]
    try:
        return int(format.itemsize)
    except cl.Error:
        return 4


def allocate(create: Any, arguments: tuple[Any, ...], size: int, limits: _opencl.ContextLimits) -> Any:
    """Create; when memory is short collect once, try once more, then say what is alive."""
    try:
        return create(*arguments)
    except cl.MemoryError:
        gc.collect()
        _inflight.sweep()
    try:
        return create(*arguments)
    except cl.MemoryError as error:
        alive = sorted(_ledger.entries(), key=lambda entry: entry.size, reverse=True)
        listed = "; ".join(describe(one.label, one.size, one.site, one.kind) for one in alive[:5])
        message = (
            f"out of memory for {size} bytes on {limits.largest_device} (largest allocation there: "
            f"{limits.max_mem_alloc_size} bytes), also after a garbage collection; alive here: {len(alive)} handles, "
            f"{_ledger.counters.current_bytes} bytes{': ' + listed if listed else ''}"
        )
        record = cl._cl._ErrorRecord(msg=message, code=error.code, routine=error.routine)
        raise cl.MemoryError(record) from error
