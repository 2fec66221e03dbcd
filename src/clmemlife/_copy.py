"""Copies between host memory, buffers and images: `enqueue_copy`, with PyOpenCL's keywords."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from . import _ledger, _opencl, _waitlist
from ._access import Use
from ._arguments import check_bool, check_host_access, whole_numbers
from ._handle import MemHandle
from ._images import image_bytes, image_region
from ._submit import check_queue, marker, plain_event, submit, target
from .flags import MemFlags

__all__ = ["enqueue_copy"]

_BUFFER = cl.mem_object_type.BUFFER


def enqueue_copy(
    queue: cl.CommandQueue, dest: Any, src: Any, *, wait_for: Any = None, is_blocking: bool = True, **where: Any
) -> cl.Event:
    """Copy between host memory, buffers and images; at least one side is on the device.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
    dest, src : MemHandle, PyOpenCL memory object, or contiguous host memory (buffer protocol)
    wait_for
        See `wait_list`.
    is_blocking : bool
        Whether a copy from or to host memory is complete when this returns. Between device objects it means
        nothing.
    **where
        As PyOpenCL takes them. Bytes: ``src_offset``, ``dst_offset``, ``byte_count``. Rectangles (bytes, rows,
        slices): ``buffer_origin``, ``host_origin``, ``region``, ``buffer_pitches``, ``host_pitches``, or between
        buffers ``src_origin``, ``dst_origin``, ``region``, ``src_pitches``, ``dst_pitches``. Images (pixels):
        ``origin``, ``region``, ``pitches`` (bytes), or between images ``src_origin``, ``dest_origin``, ``region``,
        or with a buffer ``offset``, ``origin``, ``region``.

    Returns
    -------
    pyopencl.Event
        Dropping it never blocks. Host memory is held until the copy is complete; if it is the array of a
        `Mapping`, the unmap waits for the copy.

    Raises
    ------
    TypeError, ValueError
        Two host sides; a range outside; memory that is not contiguous or not writable; ``HOST_*`` flags that forbid
        it.
    MapConflictError, DependencyError, ContextMismatchError, ReleasedError

    Notes
    -----
    Any thread. OpenCL specification: ``clEnqueueReadBuffer``, ``clEnqueueWriteBuffer``, ``clEnqueueCopyBuffer``, their
    ``Rect`` forms, and the image forms.
    """
    check_queue(queue)
    check_bool(is_blocking, "is_blocking")
    if isinstance(dest, cl.SVMPointer) or isinstance(src, cl.SVMPointer):
        return _submit(queue, (), dest, src, wait_for, is_blocking, {"is_blocking": is_blocking, **where})
    to_device, from_device = _is_device(dest), _is_device(src)
    if not to_device and not from_device:
        raise TypeError(f"one side must be a memory object, not {type(dest).__name__} and {type(src).__name__}")
    if to_device:
        dest_mem, dest_use = target(queue, dest, reads=False, writes=True)
    if from_device:
        src_mem, src_use = target(queue, src, reads=True, writes=False)
    if to_device and from_device:
        uses = _between(dest_mem, dest_use, src_mem, src_use, where)
        if uses is None:
            return marker(queue, wait_for, "enqueue_copy")
        return _submit(queue, uses, dest_mem, src_mem, wait_for, False, where)
    mem, use = (dest_mem, dest_use) if to_device else (src_mem, src_use)
    host = _host_array(src if to_device else dest, writable=not to_device)
    check_host_access(
        MemFlags(mem.flags), "a copy to it" if to_device else "a copy from it", reads=not to_device, writes=to_device
    )
    if not _with_host(mem, use, host, where, "dst_offset" if to_device else "src_offset"):
        return marker(queue, wait_for, "enqueue_copy")
    event = _submit(
        queue, (use,), mem if to_device else host, host if to_device else mem, wait_for, is_blocking,
        {"is_blocking": is_blocking, **where},
    )  # fmt: skip
    if not is_blocking:
        _tell_maps(host, event)
    return event


def _submit(
    queue: cl.CommandQueue,
    uses: Sequence[Use],
    dest: Any,
    src: Any,
    wait_for: Any,
    blocking: bool,
    where: dict[str, Any],
) -> cl.Event:
    waits = _waitlist.prepare(queue, wait_for)

    def call() -> cl.Event:
        return _opencl.enqueue_copy(queue, dest, src, wait_for=waits, **where)

    return plain_event(submit("enqueue_copy", queue, uses, waits, (dest, src), call, blocking=blocking))


def _is_device(side: Any) -> bool:
    return isinstance(side, (MemHandle, cl.MemoryObjectHolder))


def _host_array(side: Any, *, writable: bool) -> np.ndarray[Any, Any]:
    """Return host memory as an array that PyOpenCL takes as it is."""
    if isinstance(side, np.ndarray):
        array = side
    elif isinstance(side, np.generic) and not writable:
        array = np.asarray(side)
    else:
        try:
            array = np.frombuffer(memoryview(side).cast("B"), np.uint8)
        except TypeError:
            raise TypeError(f"{type(side).__name__} is neither a memory object nor contiguous host memory") from None
    if not array.flags.forc:
        raise ValueError("host memory must be contiguous; use numpy.ascontiguousarray, or a rectangle of the whole")
    if array.dtype.hasobject:
        raise TypeError("host memory has elements that are Python objects; they mean nothing to a device")
    if writable and not array.flags.writeable:
        raise ValueError("the destination is read-only host memory")
    return array


def _with_host(mem: Any, use: Use, host: np.ndarray[Any, Any], where: dict[str, Any], offset_name: str) -> bool:
    """Set the bytes that a copy with host memory touches; return whether there are any."""
    if mem.type != _BUFFER:
        _check_names("a copy between an image and host memory", where, ("origin", "region"), ("pitches",))
        some, region = _image_part(mem, use, where, "origin"), _triple(where, "region", 1)
        is_1d_array = mem.type == cl.mem_object_type.IMAGE1D_ARRAY
        needed = image_bytes(region[:2] if is_1d_array else region, mem.element_size, _pitches(where, "pitches"))
        if some and host.nbytes < needed:
            raise ValueError(f"the region of {region} pixels needs {needed} bytes of host memory, not {host.nbytes}")
        return some
    if "buffer_origin" in where:
        _check_names(
            "a rectangle copy", where, ("buffer_origin", "host_origin", "region"), ("buffer_pitches", "host_pitches")
        )
        region = _triple(where, "region", 1)
        _rectangle(use, where, "buffer_origin", region, "buffer_pitches", mem.size, "buffer")
        other = Use(use.root, 0, host.nbytes, reads=False, writes=False)
        _rectangle(other, where, "host_origin", region, "host_pitches", host.nbytes, "host memory")
        return 0 not in region
    _check_names("a copy between a buffer and host memory", where, (), (offset_name,))
    offset = operator.index(where.get(offset_name, 0))
    _linear(use, offset, host.nbytes, mem.size)
    return host.nbytes > 0


def _between(dest: Any, dest_use: Use, src: Any, src_use: Use, where: dict[str, Any]) -> tuple[Use, Use] | None:
    """Set the bytes that a copy between device objects touches; ``None`` if there are none."""
    some = True
    if dest.type == _BUFFER and src.type == _BUFFER:
        if "src_origin" in where:
            _check_names(
                "a rectangle copy", where, ("src_origin", "dst_origin", "region"), ("src_pitches", "dst_pitches")
            )
            region = _triple(where, "region", 1)
            _rectangle(src_use, where, "src_origin", region, "src_pitches", src.size, "source")
            _rectangle(dest_use, where, "dst_origin", region, "dst_pitches", dest.size, "destination")
            some = 0 not in region
        else:
            _check_names("a copy between buffers", where, (), ("src_offset", "dst_offset", "byte_count"))
            src_offset, dst_offset = (operator.index(where.get(name, 0)) for name in ("src_offset", "dst_offset"))
            count = where.get("byte_count")
            count = min(src.size - src_offset, dest.size - dst_offset) if count is None else operator.index(count)
            _linear(src_use, src_offset, count, src.size)
            _linear(dest_use, dst_offset, count, dest.size)
            where["byte_count"] = count
            some = count > 0
            same = src_use.root is dest_use.root
            if same and src_use.start < dest_use.stop and dest_use.start < src_use.stop:
                raise ValueError("source and destination overlap in one memory object, which the standard forbids")
    elif dest.type != _BUFFER and src.type != _BUFFER:
        _check_names("a copy between images", where, ("src_origin", "dest_origin", "region"))
        some = _image_part(src, src_use, where, "src_origin") and _image_part(dest, dest_use, where, "dest_origin")
    else:
        image, image_use, buffer, buffer_use = (
            (dest, dest_use, src, src_use) if src.type == _BUFFER else (src, src_use, dest, dest_use)
        )
        _check_names("a copy between an image and a buffer", where, ("offset", "origin", "region"))
        some = _image_part(image, image_use, where, "origin")
        width, height, depth = _triple(where, "region", 1)
        _linear(buffer_use, operator.index(where["offset"]), width * height * depth * image.element_size, buffer.size)
    return (dest_use, src_use) if some else None


def _check_names(what: str, where: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Refuse a keyword that this form of a copy has not, which PyOpenCL may ignore, and the lack of one it needs."""
    wrong = [f"{name}= is missing" for name in required if name not in where]
    wrong += [f"{name}= is unknown" for name in where if name not in required and name not in optional]
    if wrong:
        known = ", ".join((*required, *(f"[{name}]" for name in (*optional, "wait_for", "is_blocking"))))
        raise TypeError(f"{what} takes {known}: {', '.join(wrong)}")


def _linear(use: Use, offset: int, count: int, size: int) -> None:
    if offset < 0 or count < 0 or offset + count > size:
        raise ValueError(
            f"bytes [{offset}, {offset + count}) are not within the {size} bytes of {use.label or 'the object'!r}"
        )
    use.start += offset
    use.stop = use.start + count


def _triple(where: dict[str, Any], name: str, rest: int) -> tuple[int, int, int]:
    numbers = whole_numbers(where[name], name)
    if not 1 <= len(numbers) <= 3:
        raise ValueError(f"{name} must have one to three numbers, not {numbers}")
    one, two, three = (*numbers, rest, rest)[:3]
    return one, two, three


def _pitches(where: dict[str, Any], name: str) -> tuple[int, ...]:
    if where.get(name) is None:
        return ()
    where[name] = numbers = whole_numbers(where[name], name)
    if len(numbers) > 2:
        raise ValueError(f"{name} has the bytes from row to row and from slice to slice, not {numbers}")
    return numbers


def _rectangle(
    use: Use, where: dict[str, Any], origin: str, region: tuple[int, int, int], pitches: str, size: int, side: str
) -> None:
    x, y, z = _triple(where, origin, 0)
    width, height, depth = region
    row, slice_ = (*_pitches(where, pitches), 0, 0)[:2]
    row = row or width
    slice_ = slice_ or row * height
    start = z * slice_ + y * row + x
    stop = start if 0 in region else start + (depth - 1) * slice_ + (height - 1) * row + width
    if min(x, y, z, *region) < 0 or row < width or (depth > 1 and slice_ < row * height) or stop > size:
        raise ValueError(
            f"the rectangle at {(x, y, z)} of {region} bytes, rows and slices with pitches {(row, slice_)} is not "
            f"within the {size} bytes of the {side}"
        )
    if not use.start:
        use.box, use.pitches = ((x, y, z), region), (row, slice_)
    use.rows = (use.start + start, width, row, height, slice_, depth)
    use.start += start
    use.stop = use.start + stop - start


def _image_part(image: Any, use: Use, where: dict[str, Any], origin_name: str) -> bool:
    origin, region, limits = _triple(where, origin_name, 0), _triple(where, "region", 1), image_region(image)
    if any(o < 0 or n < 0 or o + n > limit for o, n, limit in zip(origin, region, limits, strict=True)):
        raise ValueError(f"the region of {region} pixels at {origin} is not within the image's {limits}")
    if image.type == cl.mem_object_type.IMAGE1D_BUFFER:
        itemsize = image.element_size
        use.stop = use.start + (origin[0] + region[0]) * itemsize
        use.start += origin[0] * itemsize
    else:
        use.box = (origin, region)
    return 0 not in region


def _tell_maps(host: np.ndarray[Any, Any], event: cl.Event) -> None:
    """Let the maps whose memory `host` is wait for `event` before they end."""
    start = host.__array_interface__["data"][0]
    for entry in _ledger.open_maps():
        mapping = entry.owner()
        if mapping is not None and mapping._open.overlaps(start, start + host.nbytes):
            pending = entry.pending
            pending.append(event)
            if not len(pending) % 64:  # a map may serve as staging memory for as long as the program runs
                pending[:] = [one for one in pending if one.command_execution_status > 0]
