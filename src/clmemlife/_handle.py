"""`MemHandle`: new memory objects, and parts of them."""

from __future__ import annotations

from typing import Any

import pyopencl as cl

from . import _hostmem, _limits, _opencl
from ._arguments import (
    HOST_PTR_FLAGS,
    buffer_size,
    check_flags,
    check_narrowing,
    check_order,
    whole_number,
    whole_numbers,
)
from ._images import check_image, image_bytes, pixel_size
from ._meminfo import ASSOCIATED
from ._reference import Reference
from ._room import allocate
from ._site import caller_site
from .exceptions import AlignmentError
from .flags import MemFlags, require

__all__ = ["MemHandle"]


class MemHandle(Reference):
    """Own one reference to an OpenCL memory object and give it back exactly once.

    Made by `create_buffer`, `create_image`, `retain`, `adopt` and `sub_buffer`, never by itself. The reference
    is given back by ``with``, `release` or, with a `LeakWarning`, by garbage collection. Afterwards `label`,
    `site`, `released`, ``repr`` and `release` still answer; everything else raises `ReleasedError` before any
    OpenCL call. Handles may be used from any thread; if several release one handle, one of them does it.

    OpenCL specification: "Retaining and Releasing Memory Objects" (``clRetainMemObject``, ``clReleaseMemObject``).
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("use MemHandle.create_buffer, create_image, retain or adopt")

    @classmethod
    def create_buffer(
        cls,
        context: cl.Context,
        size: int | None = None,
        flags: MemFlags = MemFlags.READ_WRITE,
        *,
        hostbuf: Any = None,
        label: str | None = None,
        allow_alias: bool = False,
        require_zero_copy: bool = False,
    ) -> MemHandle:
        """Create a buffer and own its creation reference.

        Parameters
        ----------
        context : pyopencl.Context
        size : int, optional
            Bytes; may be left out with `hostbuf`.
        flags : MemFlags
            With ``USE_HOST_PTR`` the memory of `hostbuf` is the buffer's and is kept alive until the runtime says
            that the memory object is gone; with ``COPY_HOST_PTR`` its content is copied now.
        hostbuf : object with the buffer protocol, optional
            Contiguous host memory of at least `size` bytes; writable unless the flags say ``READ_ONLY``.
        label : str, optional
            Name for messages and reports.
        allow_alias : bool
            Allow ``USE_HOST_PTR`` memory that overlaps that of another live memory object.
        require_zero_copy : bool
            Raise `AlignmentError` where ``USE_HOST_PTR`` memory is misaligned, instead of warning.

        Returns
        -------
        MemHandle
            Owns the reference; the caller releases it.

        Raises
        ------
        TypeError
            `flags` no `MemFlags`; `size` and `flags` swapped.
        ValueError
            A size of zero, beyond `hostbuf` or beyond what any device of the context takes; `hostbuf` without a
            flag to use it or a flag without `hostbuf`; contradictory flags; read-only memory for a writable buffer.
        AlignmentError, HostAliasError
            ``USE_HOST_PTR`` memory below element alignment; in use by another object.
        pyopencl.MemoryError, pyopencl.RuntimeError
            Out of memory, or of resources, after one garbage collection and one retry; quotes the limit, the device and
            what is alive.

        Notes
        -----
        Does not block, but for half a second at most where the memory of `hostbuf` is that of a released object whose
        end the driver has not told yet. OpenCL specification: ``clCreateBuffer``.
        """
        check_order(size, flags)
        flags = check_flags(flags)
        limits = _limits.context_limits(context)
        site = caller_site()
        host = _hostmem.open_hostbuf(hostbuf, flags)
        size = buffer_size(size, None if host is None else host.nbytes, limits)
        if host is not None and flags & MemFlags.USE_HOST_PTR:
            host.claim(context, size, label, site, allow_alias=allow_alias, require_zero_copy=require_zero_copy)
        arguments = (context, flags._value_, size, None if host is None else host.view)
        try:
            mem = allocate(_opencl.create_buffer, arguments, size, limits)
            return cls._take(mem, "create_buffer", label, site, None, host, (context, size, flags))
        except BaseException:
            _hostmem.give_up(host)
            raise

    @classmethod
    def create_image(
        cls,
        context: cl.Context,
        shape: tuple[int, ...],
        format: cl.ImageFormat,
        flags: MemFlags = MemFlags.READ_WRITE,
        *,
        is_array: bool = False,
        buffer: MemHandle | cl.Buffer | None = None,
        hostbuf: Any = None,
        pitches: tuple[int, ...] | None = None,
        label: str | None = None,
        allow_alias: bool = False,
        require_zero_copy: bool = False,
    ) -> MemHandle:
        """Create an image and own its creation reference.

        Parameters
        ----------
        context : pyopencl.Context
        shape : tuple of int
            ``(width[, height[, depth]])`` in pixels; with `is_array` the last number counts the images.
        format : pyopencl.ImageFormat
        flags : MemFlags
        is_array : bool
            A 1D or 2D image array.
        buffer : MemHandle or pyopencl.Buffer, optional
            Make a 1D image over this buffer's memory.
        hostbuf, label, allow_alias, require_zero_copy
            As for `create_buffer`.
        pitches : tuple of int, optional
            Row and slice pitch of `hostbuf` in bytes.

        Returns
        -------
        MemHandle
            Owns the reference; the caller releases it.

        Raises
        ------
        TypeError, ValueError
            As for `create_buffer`; a shape that is no image's; a format that the context does not list.
        UnsupportedError
            No device of the context has images.

        Notes
        -----
        Blocks as `create_buffer` does. OpenCL specification: ``clCreateImage``.
        """
        flags = check_flags(flags)
        limits = _limits.context_limits(context)
        site = caller_site()
        shape = whole_numbers(shape, "shape")
        check_image(context, shape, format, flags, is_array=is_array, over_buffer=buffer is not None)
        padded = None if pitches is None else (*whole_numbers(pitches, "pitches"), 0, 0)[:2]
        if pitches is not None and hostbuf is None:
            raise ValueError("pitches describe hostbuf, and there is none")
        host = _hostmem.open_hostbuf(hostbuf, flags)
        if host is not None:
            needed = image_bytes(shape, pixel_size(format), padded)
            if host.nbytes < needed:
                raise ValueError(f"hostbuf has {host.nbytes} bytes, fewer than the {needed} that the image needs")
        over = buffer._share() if isinstance(buffer, MemHandle) else buffer
        if host is not None and flags & MemFlags.USE_HOST_PTR:
            host.claim(context, needed, label, site, allow_alias=allow_alias, require_zero_copy=require_zero_copy)
        arguments = (context, flags.value, format, shape, padded, None if host is None else host.view, is_array, over)
        try:
            mem = allocate(_opencl.create_image, arguments, 0, limits)
            return cls._take(mem, "create_image", label, site, None, host)
        except BaseException:
            _hostmem.give_up(host)
            raise

    def sub_buffer(
        self, origin: int, size: int, flags: MemFlags = MemFlags(0), *, label: str | None = None
    ) -> MemHandle:
        """Create a sub-buffer and own its creation reference.

        Parameters
        ----------
        origin, size : int
            Bytes, relative to this buffer (which may itself be a sub-buffer).
        flags : MemFlags
            Device and host access; what is not given is inherited.
        label : str, optional
            Name for messages and reports; by default that of this handle with the bytes, ``field[0:256]``.

        Returns
        -------
        MemHandle
            Owns the sub-buffer; the caller releases it.

        Raises
        ------
        AlignmentError
            No device of the context takes this origin; names the nearest valid ones. (One that only some devices
            take is refused where it is used on another.)
        TypeError, ValueError
            Not a buffer; an empty region or one that leaves the buffer; flags that cannot be had.

        Notes
        -----
        The sub-buffer keeps its root alive, so this handle may be released first. Does not block. OpenCL specification:
        ``clCreateSubBuffer``.
        """
        flags = require(flags, MemFlags)
        origin, size = whole_number(origin, "origin (bytes)"), whole_number(size, "size (bytes)")
        mem = self._share()
        if self._type != cl.mem_object_type.BUFFER:
            raise TypeError(f"only buffers have sub-buffers, {self!r} is none")
        mine = self._entry
        if size <= 0 or origin < 0 or origin + size > mine.size:
            raise ValueError(f"bytes [{origin}, {origin + size}) are not a region of {self._text()}")
        if flags & HOST_PTR_FLAGS:
            raise ValueError(f"{flags & HOST_PTR_FLAGS} is inherited by a sub-buffer and cannot be given again")
        check_narrowing(self._flags, flags)
        origin += mine.offset
        alignments = sorted(set(_limits.context_limits(self._context).alignments.values()))
        if all(origin % step for step in alignments):
            step = alignments[0]
            below = origin // step * step - mine.offset
            nearest = [str(one) for one in (below, below + step) if 0 <= one < mine.size]
            raise AlignmentError(
                f"origin {origin - mine.offset} of a sub-buffer of {self._text()} must be a multiple of {step} bytes "
                f"in its root; nearest valid: {' and '.join(nearest) or 'none in this buffer'}"
            )
        root = mem if not mine.offset and mine.int_ptr == mine.root.int_ptr else mem.get_info(ASSOCIATED)
        if label is None and mine.label:
            label = f"{mine.label}[{origin - mine.offset}:{origin - mine.offset + size}]"
        child = _opencl.get_sub_region(root, origin, size, flags.value)
        return type(self)._take(child, "sub_buffer", label, caller_site(), self._parent or self)
