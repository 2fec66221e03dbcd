"""Where the elements of a mapped region lie: shape, dtype and strides of the array over it."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from . import _opencl
from ._arguments import whole_numbers
from ._images import image_region
from ._journal import Box

_BYTES = np.dtype(np.uint8)
_TYPES = cl.channel_type
_PACKED: dict[Any, Any] = {
    _TYPES.UNORM_SHORT_565: np.uint16,
    _TYPES.UNORM_SHORT_555: np.uint16,
    _TYPES.UNORM_INT_101010: np.uint32,
}
_CHANNELS: dict[Any, Any] = {
    _TYPES.SNORM_INT8: np.int8, _TYPES.SNORM_INT16: np.int16, _TYPES.UNORM_INT8: np.uint8,
    _TYPES.UNORM_INT16: np.uint16, _TYPES.SIGNED_INT8: np.int8, _TYPES.SIGNED_INT16: np.int16,
    _TYPES.SIGNED_INT32: np.int32, _TYPES.UNSIGNED_INT8: np.uint8, _TYPES.UNSIGNED_INT16: np.uint16,
    _TYPES.UNSIGNED_INT32: np.uint32, _TYPES.HALF_FLOAT: np.float16, _TYPES.FLOAT: np.float32,
}  # fmt: skip


class BufferLayout:
    """Bytes ``[start, stop)`` of a buffer as an array of any shape and dtype."""

    __slots__ = ("dtype", "nbytes", "order", "shape", "start", "stop")
    box = None

    def __init__(self, total: int, shape: Any, dtype: Any, order: str, offset: int, size: int | None) -> None:
        dtype = self.dtype = np.dtype(dtype)
        if dtype.hasobject or not dtype.itemsize or dtype.subdtype is not None:
            raise ValueError(f"an array of {dtype} cannot lie in device memory")
        if order not in ("C", "F"):
            raise ValueError(f"order must be 'C' or 'F', not {order!r}")
        self.order: Any = order
        offset = operator.index(offset)
        size = None if size is None else operator.index(size)
        if shape is None:
            room = max(total - offset if size is None else size, 0)
            if room % dtype.itemsize:
                raise ValueError(
                    f"{room} bytes are no whole number of {dtype} elements of {dtype.itemsize} bytes; give a shape"
                )
            shape = (room // dtype.itemsize,)
        elif hasattr(shape, "__index__"):
            shape = (operator.index(shape),)
        else:
            shape = whole_numbers(shape, "shape")
        if any(n < 0 for n in shape):
            raise ValueError(f"shape {shape} has a negative number")
        self.shape: tuple[int, ...] = shape
        self.nbytes = math.prod(shape) * dtype.itemsize
        size = self.nbytes if size is None else size
        self.start, self.stop = offset, offset + size
        if offset < 0 or size <= 0 or self.stop > total:
            raise ValueError(f"bytes [{offset}, {self.stop}) are no region of the buffer's {total} bytes")
        if self.nbytes > size:
            raise ValueError(f"shape {shape} of {dtype} needs {self.nbytes} bytes, more than the region's {size}")

    def call(
        self, queue: Any, mem: Any, flags: int, waits: Any, blocking: bool
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the driver's call and its arguments; it returns the region as bytes, and an event."""
        shape = (self.stop - self.start,)
        return _opencl.enqueue_map_buffer, (queue, mem, flags, self.start, shape, _BYTES, "C", None, waits, blocking)

    def anchor(self, result: Any) -> Any:
        """Return the array that all views collapse to."""
        return result[0]

    def host_range(self, anchor: Any) -> tuple[int, int]:
        """Return address and bytes of the mapped host memory."""
        return anchor.__array_interface__["data"][0], self.stop - self.start

    def as_bytes(self, anchor: Any) -> np.ndarray[Any, Any]:
        """Return the array's bytes, in any shape."""
        return anchor[: self.nbytes]  # type: ignore[no-any-return]

    def view(self, anchor: Any) -> np.ndarray[Any, Any]:
        """Return the array to hand out."""
        return anchor[: self.nbytes].view(self.dtype).reshape(self.shape, order=self.order)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256, typed=True)
def _remembered(total: int, shape: int | None, dtype: Any, order: str, offset: int, size: int | None) -> BufferLayout:
    return BufferLayout(total, shape, dtype, order, offset, size)


def buffer_layout(total: int, shape: Any, dtype: Any, order: str, offset: int, size: int | None) -> BufferLayout:
    """Return the layout of a region of a buffer of `total` bytes; the simple ones are remembered."""
    if (shape is None or type(shape) is int) and isinstance(dtype, type):
        return _remembered(total, shape, dtype, order, offset, size)
    return BufferLayout(total, shape, dtype, order, offset, size)


class _Memory:
    """Where the mapped memory begins, for NumPy: an array over it keeps the map alive through this object.

    (A view of the byte that the driver's array shows could not reach beyond it, and would not be the first array.)
    """

    __slots__ = ("__array_interface__", "first")

    def __init__(
        self, first: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
    ) -> None:
        self.first = first
        pointer = (first.__array_interface__["data"][0], not first.flags.writeable)
        self.__array_interface__ = {
            "version": 3, "data": pointer, "shape": shape, "strides": strides, "typestr": dtype.str,
        }  # fmt: skip


class ImageLayout:
    """A window of an image as (slices, rows, pixels, channels), with the pitches that the driver returns as strides."""

    __slots__ = ("box", "dims", "dtype", "is_1d_array", "pixel", "shape", "start", "stop", "window")

    def __init__(self, image: Any, origin: Any, region: Any) -> None:
        kinds = cl.mem_object_type
        limits = image_region(image)
        dims = {kinds.IMAGE1D: 1, kinds.IMAGE1D_BUFFER: 1, kinds.IMAGE2D: 2, kinds.IMAGE1D_ARRAY: 2}.get(image.type, 3)
        start = (0, 0, 0) if origin is None else _numbers(origin, "origin", dims, 0)
        rest = tuple(limit - one for limit, one in zip(limits, start, strict=True))
        size: Any = rest if region is None else _numbers(region, "region", dims, 1)
        if any(o < 0 or n < 1 or o + n > limit for o, n, limit in zip(start, size, limits, strict=True)):
            raise ValueError(f"region {size} at origin {start} is no window of the image, which has {limits} pixels")
        self.window: Any = (start, size)
        self.is_1d_array = image.type == kinds.IMAGE1D_ARRAY
        self.dims = dims
        self.pixel = pixel = int(image.element_size)
        data_type = image.format.channel_data_type
        self.dtype = np.dtype(_PACKED.get(data_type) or _CHANNELS.get(data_type, f"V{pixel}"))
        channels = pixel // self.dtype.itemsize
        self.shape: tuple[int, ...] = (*size[:dims][::-1], *([channels] if channels > 1 else []))
        self.box: Box | None
        if image.type == kinds.IMAGE1D_BUFFER:
            self.box, self.start, self.stop = None, start[0] * pixel, (start[0] + size[0]) * pixel
        else:
            self.box, self.start, self.stop = self.window, 0, image.size

    def call(
        self, queue: Any, mem: Any, flags: int, waits: Any, blocking: bool
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the driver's call and its arguments; it returns one byte, an event and the pitches in bytes."""
        return _opencl.enqueue_map_image, (queue, mem, flags, *self.window, (1,), _BYTES, "C", None, waits, blocking)

    def anchor(self, result: Any) -> Any:
        """Return the array that all views collapse to."""
        first, _, row, slice_ = result
        steps = [self.pixel, (slice_ or row) if self.is_1d_array else row, slice_][: self.dims]
        strides = (*steps[::-1], self.dtype.itemsize)[: len(self.shape)]
        return np.asarray(_Memory(first, self.shape, strides, self.dtype))

    def host_range(self, anchor: Any) -> tuple[int, int]:
        """Return address and bytes of the mapped host memory."""
        last = sum((n - 1) * step for n, step in zip(anchor.shape, anchor.strides, strict=True))
        return anchor.__array_interface__["data"][0], last + anchor.itemsize

    def as_bytes(self, anchor: Any) -> np.ndarray[Any, Any]:
        """Return the array's bytes, in any shape."""
        return anchor.view(_BYTES)  # type: ignore[no-any-return]

    def view(self, anchor: Any) -> np.ndarray[Any, Any]:
        """Return the array to hand out."""
        return anchor[...]  # type: ignore[no-any-return]


def _numbers(numbers: Any, name: str, dims: int, rest: int) -> tuple[int, int, int]:
    numbers = whole_numbers((numbers,) if isinstance(numbers, (int, np.integer)) else numbers, name)
    if not dims <= len(numbers) <= 3:
        raise ValueError(f"{name} {numbers} must have {dims} to 3 numbers for this image")
    one, two, three = (*numbers, rest, rest)[:3]
    return one, two, three
