"""Images: which shapes and formats there are, and how many bytes they have."""

from __future__ import annotations

from typing import Any

import pyopencl as cl

from ._arguments import ACCESS_FLAGS
from .exceptions import UnsupportedError
from .flags import MemFlags


def check_image(
    context: cl.Context, shape: tuple[int, ...], format: Any, flags: MemFlags, *, is_array: bool, over_buffer: bool
) -> None:
    """Refuse an image that the context cannot have."""
    if not isinstance(format, cl.ImageFormat):
        raise TypeError(f"format must be a pyopencl.ImageFormat, not {type(format).__name__}")
    kind = image_type(shape, is_array=is_array, over_buffer=over_buffer)
    if not any(device.image_support for device in context.devices):
        raise UnsupportedError(f"no device of {context!r} supports images")
    access = flags & ACCESS_FLAGS or MemFlags.READ_WRITE
    if format not in cl.get_supported_image_formats(context, access.value, kind):
        raise ValueError(f"{format!r} is not among the formats that the context lists for this kind and access")


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
