"""`enqueue_fill`: a pattern over a buffer or SVM, a colour over an image."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pyopencl as cl

from . import _opencl, _waitlist
from ._handle import MemHandle
from ._images import image_region
from ._submit import check_queue, marker, submit, target

__all__ = ["enqueue_fill"]


def enqueue_fill(
    queue: cl.CommandQueue,
    dest: Any,
    pattern: Any,
    size: int | None = None,
    *,
    offset: int = 0,
    wait_for: Any = None,
) -> cl.Event:
    """Fill a buffer with a pattern, or a whole image with a colour.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
    dest : MemHandle or PyOpenCL memory object or SVM
    pattern : NumPy scalar or array, or bytes
        1, 2, 4, ... 128 bytes; for an image four channels.
    size, offset : int
        Bytes, multiples of the pattern's size; `size` defaults to the rest of the buffer.
    wait_for
        See `wait_list`.

    Returns
    -------
    pyopencl.Event
        With a size of zero that of a marker. `dest` and the pattern are held until it is complete.

    Raises
    ------
    TypeError, ValueError
        A pattern or range that the standard does not allow.
    MapConflictError, DependencyError, ContextMismatchError, ReleasedError

    Notes
    -----
    Does not block, any thread. OpenCL specification: ``clEnqueueFillBuffer``, ``clEnqueueFillImage``.
    """
    check_queue(queue)
    if isinstance(pattern, (bool, int, float, complex)):
        raise TypeError(
            f"pattern is the plain number {pattern!r}; say how many bytes it has, e.g. numpy.int32({pattern!r})"
        )
    pattern = (
        np.ascontiguousarray(pattern)
        if isinstance(pattern, (np.ndarray, np.generic))
        else np.frombuffer(pattern, np.uint8)
    )
    if pattern.dtype.hasobject:
        raise TypeError("pattern has elements that are Python objects; they mean nothing to a device")
    if isinstance(dest, cl.SVMPointer):
        return _fill_svm(queue, dest, pattern, size, offset, wait_for)
    if not isinstance(dest, (MemHandle, cl.MemoryObjectHolder)):
        raise TypeError(f"dest must be a MemHandle, a PyOpenCL memory object or SVM, not {type(dest).__name__}")
    mem, use = target(queue, dest, reads=False, writes=True)
    if mem.type != cl.mem_object_type.BUFFER:
        if offset or size is not None:
            raise ValueError("an image is filled as a whole: leave out size and offset")
        region, pattern = image_region(mem), _colour(pattern, mem.format)
        waits = _waitlist.prepare(queue, wait_for)
        return submit(
            "enqueue_fill", queue, (use,), waits, (mem, pattern), _opencl.enqueue_fill_image,
            queue, mem, pattern, (0, 0, 0), region, waits,
        )  # fmt: skip
    offset = operator.index(offset)
    size = mem.size - offset if size is None else operator.index(size)
    _check_range(dest, mem.size, pattern.nbytes, size, offset)
    if not size:
        return marker(queue, wait_for, "enqueue_fill")
    use.start += offset
    use.stop = use.start + size
    waits = _waitlist.prepare(queue, wait_for)
    return submit(
        "enqueue_fill", queue, (use,), waits, (mem, pattern), _opencl.enqueue_fill_buffer,
        queue, mem, pattern, offset, size, waits,
    )  # fmt: skip


def _fill_svm(
    queue: cl.CommandQueue, dest: cl.SVMPointer, pattern: np.ndarray[Any, Any], size: int | None, offset: int,
    wait_for: Any,
) -> cl.Event:  # fmt: skip
    total = operator.index(dest.size)
    size = total if size is None else operator.index(size)
    _check_range(dest, total, pattern.nbytes, size, offset)
    if not size:
        return marker(queue, wait_for, "enqueue_fill")
    if size != total:  # PyOpenCL 2026.1 takes a size and fills everything all the same
        raise ValueError(f"SVM of {total} bytes is filled as a whole, not {size} bytes; pass the part that is meant")
    waits = _waitlist.prepare(queue, wait_for)
    event: cl.Event = submit(
        "enqueue_fill", queue, (), waits, (dest, pattern), _opencl.enqueue_svm_memfill,
        queue, dest, pattern, size, waits,
    )  # fmt: skip
    return event


def _check_range(dest: object, total: int, step: int, size: int, offset: int) -> None:
    if step not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"a pattern has 1, 2, 4, ... 128 bytes, not {step}")
    if offset < 0 or size < 0 or offset + size > total:
        raise ValueError(f"bytes [{offset}, {offset + size}) are not within the {total} bytes of {dest!r}")
    if offset % step or size % step:
        raise ValueError(f"offset {offset} and size {size} must be multiples of the pattern's {step} bytes")


def _colour(pattern: np.ndarray[Any, Any], format: cl.ImageFormat) -> np.ndarray[Any, Any]:
    """Return the four numbers that fill an image, as the driver reads them whatever the image's channels are."""
    types = cl.channel_type
    kind: Any = np.float32
    if format.channel_data_type in (types.SIGNED_INT8, types.SIGNED_INT16, types.SIGNED_INT32):
        kind = np.int32
    elif format.channel_data_type in (types.UNSIGNED_INT8, types.UNSIGNED_INT16, types.UNSIGNED_INT32):
        kind = np.uint32
    if pattern.size != 4 or not np.can_cast(pattern.dtype, kind, "same_kind"):
        raise ValueError(
            f"an image of this format is filled with four numbers as {np.dtype(kind)}, not with {pattern.size} of "
            f"{pattern.dtype}"
        )
    return np.ascontiguousarray(pattern.ravel(), kind)
