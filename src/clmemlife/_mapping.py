"""`Mapping`: host access to a memory object from map to unmap, and not a moment longer."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import pyopencl as cl

from . import _ledger, _waitlist
from ._access import check_maps
from ._arguments import check_bool
from ._handle import MemHandle
from ._layout import BufferLayout, ImageLayout, buffer_layout
from ._openmap import INHERITED, NOT_YET, MapState, OpenMap, abandoned, decode
from ._room import with_room
from ._site import caller_site, report_at, warn_at
from ._submit import check_queue, check_usable, submit
from ._unwritten import mark
from .exceptions import HazardWarning, LiveViewError, UnmappedError, ViewWarning
from .flags import MapFlags, require

__all__ = ["MapState", "Mapping"]


class Mapping:
    """Map a region of a memory object into host memory; unmap it on every path.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
    handle : MemHandle
        Its memory object is held until the unmap; releasing the handle first is fine.
    flags : MapFlags
        ``READ`` alone gives a read-only array; ``WRITE_INVALIDATE_REGION`` (old content is lost) excludes the others.
    shape, dtype, order
        Of the array over a buffer; by default all of the region as bytes.
    offset, size : int
        Region of a buffer in bytes; `size` defaults to what `shape` needs, else to the rest.
    origin, region : tuple of int
        Window of an image in pixels; by default all of it. The array has shape (slices, rows, pixels, channels), less
        the directions that the image has not and the channels where there is one, and the returned pitches as strides.
    wait_for
        See `wait_list`.
    is_blocking : bool
        Wait for the map here instead of at the first use of `array`.
    views : {"warn", "raise"}
        What to do about plain views of the array that live on at unmap: `ViewWarning`, or `LiveViewError` after
        unmapping.
    debug : bool, optional
        Report bytes of a discarding map that were not written (`HazardWarning`); by default as the environment
        variable ``CLMEMLIFE_DEBUG`` says.

    Raises
    ------
    TypeError, ValueError
        Flags that are no `MapFlags` or exclude each other; a region, shape or dtype that does not fit; a ``HOST_*``
        flag of the object that forbids it.
    MapConflictError
        The region overlaps an open map, and one of the two writes.
    DependencyError, ContextMismatchError, ReleasedError, AlignmentError

    Notes
    -----
    Any thread; one at a time should use the array. OpenCL specification: "Accessing mapped regions of a memory
    object", ``clEnqueueMapBuffer``, ``clEnqueueMapImage``, ``clEnqueueUnmapMemObject``.
    """

    __slots__ = ("__weakref__", "_finalizer", "_flags", "_lock", "_open", "_views")

    def __init__(
        self, queue: cl.CommandQueue, handle: MemHandle, flags: MapFlags, *, shape: Any = None, dtype: Any = np.uint8,
        order: str = "C", offset: int = 0, size: int | None = None, origin: Any = None, region: Any = None,
        wait_for: Any = None, is_blocking: bool = False, views: str = "warn", debug: bool | None = None,
    ) -> None:  # fmt: skip
        check_queue(queue)
        if not isinstance(handle, MemHandle):
            raise TypeError(f"a Mapping needs a MemHandle, not {type(handle).__name__}; see MemHandle.retain")
        reads, writes = decode(require(flags, MapFlags), handle.flags)
        if views not in ("warn", "raise"):
            raise ValueError(f"views must be 'warn' or 'raise', not {views!r}")
        check_bool(is_blocking, "is_blocking")
        mem = handle._share()
        check_usable(handle, queue)
        held = handle._entry
        layout: BufferLayout | ImageLayout
        if handle._type == cl.mem_object_type.BUFFER:
            if origin is not None or region is not None:
                raise TypeError("origin and region are for images; a buffer has offset and size in bytes")
            layout = buffer_layout(held.size, shape, dtype, order, offset, size)
        else:
            if shape is not None or size is not None or offset:
                raise TypeError("shape, offset and size are for buffers; an image has origin and region in pixels")
            layout = ImageLayout(mem, origin, region)
        waits = None if wait_for is None else _waitlist.prepare(queue, wait_for)
        site = caller_site()
        start, stop = held.offset + layout.start, held.offset + layout.stop
        entry = _ledger.MapEntry(held.root, start, stop, layout.box, (0, 0), writes, site, weakref.ref(self))
        debug = flags is MapFlags.WRITE_INVALIDATE_REGION and (
            bool(os.environ.get("CLMEMLIFE_DEBUG")) if debug is None else debug
        )
        self._open = open_ = OpenMap(entry, held, queue, reads, layout, debug)
        # Other threads, exit and fork can reach the mapping from here on.
        self._lock = threading.RLock()
        self._flags, self._views = flags, views
        self._finalizer = NOT_YET
        _ledger.open_map(entry, lambda: check_maps(open_.use, "Mapping", site) if held.root.maps else None)
        try:
            call, arguments = layout.call(queue, mem, flags._value_, waits, is_blocking)
            result = submit(
                "map", queue, open_.uses(), waits, None, call, *arguments,
                mapping=entry.number, blocking=is_blocking, check=False,
            )  # fmt: skip
        except BaseException:
            _ledger.remove(entry)
            raise
        open_.map_event, open_.memory_map = result[1], result[0].base
        self._finalizer = weakref.finalize(self, abandoned, open_)
        self._finalizer.atexit = False
        if not writes:
            result[0].flags.writeable = False
        open_.anchor = layout.anchor(result)

    # -- while mapped ----------------------------------------------------------------------------------------

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The host array; waits for the map on first use.

        The memory belongs to the map: the array is emptied in place at unmap (shape ``(0,)``, dtype ``V1``), so a name
        kept too long reaches nothing. Raises `UnmappedError` after unmap, `DependencyError` if the map failed. OpenCL
        specification: ``clWaitForEvents``.
        """
        open_ = self._open
        if open_.array is None:
            self.wait()
            with self._lock:
                open_.check()
                if open_.array is None:
                    array = open_.layout.view(open_.anchor)
                    if open_.debug:
                        mark(open_.layout.as_bytes(open_.anchor))
                    open_.array = array
        return open_.array  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Block until the memory is mapped.

        Raises
        ------
        DependencyError
            The map failed.
        UnmappedError, ForkedProcessError
            There is nothing to wait for any more.

        Notes
        -----
        OpenCL specification: ``clWaitForEvents``.
        """
        self._open.check()
        event = self._open.map_event
        try:
            event.wait()
        except cl.Error as error:
            raise _waitlist.failure(event, f"the {self._open.text}", error) from error

    def copy(self) -> np.ndarray[Any, Any]:
        """Copy the mapped data; waits for the map.

        Returns
        -------
        numpy.ndarray
            Memory of its own, which may outlive the map.
        """
        return np.array(self.array)

    @property
    def state(self) -> MapState:
        """``PENDING`` until the map is complete, then ``MAPPED``, after unmap ``UNMAPPED``."""
        if self._open.ended:
            return MapState.UNMAPPED
        event = self._open.map_event  # none yet, where another thread looks while the map is being enqueued
        return MapState.PENDING if event is None or event.command_execution_status else MapState.MAPPED

    @property
    def flags(self) -> MapFlags:
        """What it was mapped for."""
        return self._flags

    @property
    def map_event(self) -> cl.Event:
        """Complete when the host may use the array."""
        return self._open.map_event

    @property
    def unmap_event(self) -> cl.Event:
        """Complete when the device may use the memory again; raises `UnmappedError` until unmapped."""
        if self._open.unmap_event is None:
            self._open.check()
            raise UnmappedError(f"the {self._open.text} is still open; call unmap() or leave the with block first")
        return self._open.unmap_event

    # -- the end ---------------------------------------------------------------------------------------------

    def unmap(self, *, wait_for: Any = None, queue: cl.CommandQueue | None = None) -> cl.Event:
        """Enqueue the unmap and empty the array; a second call returns the same event.

        Parameters
        ----------
        wait_for
            See `wait_list`. The map itself, and copies from or to the array, are waited for anyway.
        queue : pyopencl.CommandQueue, optional
            Another queue of the same context.

        Returns
        -------
        pyopencl.Event
            What the next user of the memory must wait for.

        Raises
        ------
        LiveViewError
            With ``views="raise"``, after unmapping.
        DependencyError, ContextMismatchError, pyopencl.Error
            Nothing was enqueued; the mapping is still open.

        Notes
        -----
        Does not block. The memory object is held until the unmap is complete. OpenCL specification:
        ``clEnqueueUnmapMemObject``.
        """
        if queue is not None:
            check_queue(queue)
        event, problem, unwritten = self._end(wait_for, queue)
        if problem and self._views == "raise":
            raise LiveViewError(problem)
        if problem:
            warn_at(caller_site(), problem, ViewWarning)
        if unwritten:
            warn_at(caller_site(), unwritten, HazardWarning)
        return event

    def _end(self, wait_for: Any = None, queue: cl.CommandQueue | None = None) -> tuple[cl.Event, str, str]:
        """Unmap once; return the event and what is to be said about views and about bytes not written."""
        open_ = self._open
        with self._lock:
            if open_.unmap_event is not None:
                return open_.unmap_event, "", ""
            open_.check()
            unwritten = open_.unwritten() if open_.debug else ""
            problem = ""
            try:
                event = open_.close(wait_for, queue)
            finally:
                if open_.ended:
                    self._finalizer.detach()
                    problem = open_.empty_array()
            return event, problem, unwritten

    def __enter__(self) -> Mapping:
        self._open.check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._open.ended == INHERITED:  # the child of a fork leaves the block of its parent
            return
        if error is None:
            try:
                with_room(self.unmap)
            except cl.Error as refusal:
                self._abandon(refusal)
                raise
            return
        try:
            _, problem, _ = with_room(self._end)
        except Exception as refusal:
            self._abandon(refusal)
        else:
            if problem:
                report_at(self._open.entry.site, problem, ViewWarning)

    def _abandon(self, refusal: Exception) -> None:
        with self._lock:
            if self._finalizer.detach():
                self._open.give_up(refusal)
                self._open.empty_array()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied: it stands for one map, which ends once")

    def __repr__(self) -> str:
        return f"<Mapping {self.state.value}, {self._flags}: {self._open.text}>"
