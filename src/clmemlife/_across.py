"""From the memory of one device into that of another, through pinned host memory and in chunks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from . import _waitlist
from ._access import check_maps
from ._arguments import check_host_access
from ._copy import _linear, enqueue_copy
from ._handle import MemHandle
from ._images import image_region
from ._site import caller_site
from ._staging import staging, transfer
from ._submit import check_queue, marker, migrate, target, whole
from .exceptions import CallError, ContextMismatchError
from .flags import MemFlags, MigrationFlags

__all__ = ["enqueue_copy_across"]

# Between two H200 over PCIe 5, pipelines of 4 to 8 MiB chunks reach 50 GB/s, larger and smaller ones less.
_LARGEST_CHUNK = 8 << 20
_SMALLEST_CHUNK = 512 << 10
_CHUNKS_IN_FLIGHT = 4
PAYS_BYTES = 4 << 20
"""From this size on, ``via="auto"`` stages: between two H200, 1 MiB goes faster by the driver, 4 MiB do not."""

_BUFFER = cl.mem_object_type.BUFFER
_NO_HOST_READ = MemFlags.HOST_NO_ACCESS | MemFlags.HOST_WRITE_ONLY


def enqueue_copy_across(
    source_queue: cl.CommandQueue, queue: cl.CommandQueue, dest: Any, src: Any, *,
    wait_for: Any = None, chunk_bytes: int | None = None, src_offset: int = 0, dst_offset: int = 0,
    byte_count: int | None = None,
) -> cl.Event:  # fmt: skip
    """Copy from a buffer that is on one device to a buffer of another, at the speed of the link.

    Chunks are read on `source_queue` into pinned host memory and written from it on `queue`, several at once.

    Parameters
    ----------
    source_queue, queue : pyopencl.CommandQueue
        A queue of the device that has `src`, and one of the device that is to have `dest`; of one context.
    dest, src : MemHandle or PyOpenCL buffer
    wait_for
        See `wait_list`; every part of the copy comes after it.
    chunk_bytes : int, optional
        Size of the chunks in bytes. By default they suit the size of the copy, and where both queues are of one device
        or both devices share the host's memory, ``clEnqueueCopyBuffer`` on `queue` does it all.
    src_offset, dst_offset, byte_count : int
        Bytes, as for `enqueue_copy`.

    Returns
    -------
    pyopencl.Event
        Complete with the last chunk. If a chunk fails, so does this event.

    Raises
    ------
    TypeError, ValueError
        Not buffers; a range outside; ranges that overlap in one object; ``HOST_*`` flags that forbid it.
    ContextMismatchError, DependencyError, MapConflictError, ReleasedError, AlignmentError

    Notes
    -----
    Does not block, except that the first use allocates pinned memory. Any thread. Both buffers are held until
    the copy is complete; `src` stays where it is. OpenCL specification: ``clEnqueueReadBuffer``,
    ``clEnqueueWriteBuffer``, "Memory Objects".
    """
    check_queue(source_queue)
    check_queue(queue)
    if source_queue.context != queue.context:
        raise ContextMismatchError("source_queue and queue belong to two contexts; events cannot order them")
    for one in (dest, src):
        if not isinstance(one, (MemHandle, cl.MemoryObjectHolder)) or one.type != _BUFFER:
            raise TypeError(f"enqueue_copy_across copies between buffers, not {one!r}")
    src_offset, dst_offset = operator.index(src_offset), operator.index(dst_offset)
    if byte_count is None:
        byte_count = min(src.size - src_offset, dest.size - dst_offset)
    byte_count = operator.index(byte_count)
    if chunk_bytes is not None and operator.index(chunk_bytes) <= 0:
        raise ValueError(f"chunk_bytes must be at least 1 byte, not {chunk_bytes}")
    if chunk_bytes is None and not apart(source_queue, queue):
        return enqueue_copy(
            queue, dest, src, wait_for=wait_for, src_offset=src_offset, dst_offset=dst_offset, byte_count=byte_count
        )
    return _pipeline(source_queue, queue, dest, src, wait_for, chunk_bytes, (src_offset, dst_offset, byte_count))


def apart(source_queue: cl.CommandQueue, queue: cl.CommandQueue) -> bool:
    """Say whether two queues are of two devices of which none shares the host's memory."""
    devices = source_queue.device, queue.device
    return devices[0] != devices[1] and not any(one.host_unified_memory for one in devices)


def _pipeline(
    source_queue: cl.CommandQueue, queue: cl.CommandQueue, dest: Any, src: Any, wait_for: Any,
    chunk_bytes: int | None, where: tuple[int, int, int],
) -> cl.Event:  # fmt: skip
    """Copy by chunks; each waits for the one that had its block of pinned memory before."""
    src_offset, dst_offset, count = where
    dest_mem, dest_use = target(queue, dest, reads=False, writes=True)
    src_mem, src_use = target(source_queue, src, reads=True, writes=False)
    check_host_access(MemFlags(dest_mem.flags), "a copy to it", reads=False, writes=True)
    check_host_access(MemFlags(src_mem.flags), "a copy from it", reads=True, writes=False)
    src_start, dest_start = src_use.start, dest_use.start
    _linear(src_use, src_offset, count, src_mem.size)
    _linear(dest_use, dst_offset, count, dest_mem.size)
    if src_use.root is dest_use.root and src_use.start < dest_use.stop and dest_use.start < src_use.stop:
        raise ValueError("source and destination overlap in one memory object, which the standard forbids")
    if not count:
        return marker(queue, wait_for, "enqueue_copy_across")
    step = min(chunk_bytes or min(max(count >> 3, _SMALLEST_CHUNK), _LARGEST_CHUNK), count)
    pool = staging(queue.context)
    blocks = [pool._lend(step) for _ in range(min(_CHUNKS_IN_FLIGHT, -(-count // step)))]
    busy: list[list[cl.Event]] = [[] for _ in blocks]
    first = _waitlist.prepare(source_queue, wait_for)
    try:
        for number, done in enumerate(range(0, count, step)):
            size = min(step, count - done)
            block, events = blocks[number % len(blocks)], busy[number % len(blocks)]
            waits = _waitlist.prepare(source_queue, events) if events else first
            src_use.start, dest_use.start = src_start + src_offset + done, dest_start + dst_offset + done
            src_use.stop, dest_use.stop = src_use.start + size, dest_use.start + size
            read = transfer(source_queue, src_mem, src_use, block, size, src_offset + done, waits, to_device=False)
            events[:] = [read]
            waits = _waitlist.prepare(queue, read)
            events[:] = [transfer(queue, dest_mem, dest_use, block, size, dst_offset + done, waits, to_device=True)]
    finally:
        for block, events in zip(blocks, busy, strict=True):
            pool._give_back(block, events)
    if len(busy) == 1:
        return busy[0][0]
    return marker(queue, busy, "enqueue_copy_across")


# -- staged migration --------------------------------------------------------------------------------------------------


def can_stage(
    source_queue: cl.CommandQueue, queue: cl.CommandQueue, handles: Sequence[MemHandle], flags: MigrationFlags
) -> bool:
    """Say whether there are bytes to carry from one device to another, and objects whose bytes can be carried."""
    return (
        bool(handles)
        and not flags & (MigrationFlags.HOST | MigrationFlags.CONTENT_UNDEFINED)
        and source_queue.device != queue.device
        and not any(one.type == cl.mem_object_type.IMAGE1D_BUFFER for one in handles)
    )


def pays(source_queue: cl.CommandQueue, queue: cl.CommandQueue, handles: Sequence[MemHandle]) -> bool:
    """Say whether staging is faster than the driver's own way."""
    return apart(source_queue, queue) and sum(one.size for one in handles) >= PAYS_BYTES


def staged(
    source_queue: cl.CommandQueue, queue: cl.CommandQueue, handles: Sequence[MemHandle], wait_for: Any, *, auto: bool
) -> cl.Event | None:
    """Carry each object over: copy it across into a temporary buffer, let go of its content, copy it back in.

    Chunks of the object itself could not be under way at once: what is written on one device is invalid on the other.
    One after the other, because parts of one object may overlap. With `auto`, ``None`` where there is no memory for
    the temporary buffer; then nothing of the objects was touched.
    """
    if source_queue.context != queue.context:
        raise ContextMismatchError("source_queue and queue belong to two contexts; events cannot order them")
    waits = _waitlist.wait_list(wait_for)
    for one in handles:
        check_maps(whole(one, reads=True, writes=True), "Migration", caller_site())
    size = max(_packed_bytes(one) for one in handles)
    try:
        there = MemHandle.create_buffer(queue.context, size, label="staged migration")
    except cl.MemoryError:
        if auto:
            return None
        raise
    with there:
        try:
            made = _without_content(queue, there, None)  # drivers allocate at the first use: fail before the objects do
        except (cl.Error, CallError):
            if auto:
                return None
            raise
        event = [*waits, made]
        for handle in handles:
            event = [_carry(source_queue, queue, handle, there, event)]
    return event[0]


def _carry(
    source_queue: cl.CommandQueue, queue: cl.CommandQueue, handle: MemHandle, there: MemHandle, wait_for: Any
) -> cl.Event:
    mem = handle._share()
    nbytes = _packed_bytes(handle)
    is_buffer = handle.type == _BUFFER
    into: dict[str, Any] = {"byte_count": nbytes}
    if not is_buffer:
        into = {"offset": 0, "origin": (0, 0, 0), "region": image_region(mem)}
    if is_buffer and not handle.flags & _NO_HOST_READ:
        across = _pipeline(source_queue, queue, there, handle, wait_for, None, (0, 0, nbytes))
    else:
        with MemHandle.create_buffer(queue.context, nbytes, label="staged migration") as here:
            packed = enqueue_copy(source_queue, here, handle, wait_for=wait_for, **into)
            across = _pipeline(source_queue, queue, there, here, packed, None, (0, 0, nbytes))
    gone: Any = None
    try:
        gone = _without_content(queue, handle, across)
        return enqueue_copy(queue, handle, there, wait_for=gone, **into)
    except Exception as error:
        if hasattr(error, "migration"):  # it is enqueued, and its event may be early
            gone = across, error.migration
        if gone is not None:
            back = enqueue_copy(source_queue, handle, there, wait_for=gone, **into)
            error.event = back  # type: ignore[attr-defined]
        raise


def _without_content(queue: cl.CommandQueue, handle: MemHandle, wait_for: Any) -> cl.Event:
    """Bring an object to the device of `queue`, its content undefined: else a write would drag the old one along."""
    mem, use = target(queue, handle, reads=False, writes=True)
    return migrate(queue, [mem], MigrationFlags.CONTENT_UNDEFINED, (use,), _waitlist.prepare(queue, wait_for))


def _packed_bytes(handle: MemHandle) -> int:
    """Return the bytes of an object without the pitches of an image."""
    if handle.type == _BUFFER:
        return handle.size
    mem = handle._share()
    width, height, depth = image_region(mem)
    return int(width * height * depth * mem.element_size)
