"""Maps of images against `enqueue_copy` of the same region: every format, kind and window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clmemlife as cml
from clmemlife import MapFlags, Mapping, MemFlags, MemHandle, _layout

READ, WRITE, DISCARD = MapFlags.READ, MapFlags.WRITE, MapFlags.WRITE_INVALIDATE_REGION
KINDS = {"IMAGE1D": 1, "IMAGE2D": 2, "IMAGE3D": 3, "IMAGE1D_ARRAY": 2, "IMAGE2D_ARRAY": 3, "IMAGE1D_BUFFER": 1}
SIZES = ((1, 70), (1, 12), (1, 6))


@contextmanager
def image_with(
    context: cl.Context, kind: str, format: cl.ImageFormat, shape: tuple[int, ...], pixels: np.ndarray
) -> Iterator[MemHandle]:
    """Make an image of one kind whose content is `pixels`, as bytes (slices, rows, columns, bytes of a pixel)."""
    with ExitStack() as stack:
        options: dict[str, Any] = {"is_array": kind.endswith("ARRAY")}
        if kind == "IMAGE1D_BUFFER":
            options["buffer"] = stack.enter_context(
                MemHandle.create_buffer(context, hostbuf=pixels, flags=MemFlags.COPY_HOST_PTR)
            )
        else:
            options.update(hostbuf=pixels, flags=MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR)
        yield stack.enter_context(MemHandle.create_image(context, shape, format, **options))


def fetch(
    queue: cl.CommandQueue, image: MemHandle, origin: tuple[int, ...], region: tuple[int, ...], wait_for: Any = None
) -> np.ndarray:
    """Return a copy of a region: (slices, rows, columns, bytes of a pixel)."""
    width, height, depth = (*region, 1, 1)[:3]
    out = np.empty((depth, height, width, image.mem.element_size), np.uint8)
    cml.enqueue_copy(queue, out, image, origin=origin, region=region, wait_for=wait_for)
    return out


def assert_same(array: np.ndarray, copied: np.ndarray, dims: int) -> None:
    """Compare a mapped array with the copy of its region: shape in array order, and every byte."""
    region = copied.shape[:3][3 - dims :]
    channels = copied.shape[3] // array.dtype.itemsize
    assert array.shape == ((*region, channels) if channels > 1 else region)
    assert np.ascontiguousarray(array).tobytes() == copied.tobytes()


def draw_image(data: st.DataObject, context: cl.Context, kind: str) -> Any:
    dims = KINDS[kind]
    formats = cl.get_supported_image_formats(context, cl.mem_flags.READ_WRITE, getattr(cl.mem_object_type, kind))
    format = data.draw(st.sampled_from(formats), "format")
    shape = tuple(data.draw(st.integers(*limits), "size") for limits in SIZES[:dims])
    origin = tuple(data.draw(st.integers(0, n - 1), "origin") for n in shape)
    region = tuple(data.draw(st.integers(1, n - o), "region") for n, o in zip(shape, origin, strict=True))
    return format, shape, origin, region, np.random.default_rng(data.draw(st.integers(0, 99), "seed"))


def make_pixels(rng: np.random.Generator, format: cl.ImageFormat, shape: tuple[int, ...]) -> np.ndarray:
    width, height, depth = (*shape, 1, 1)[:3]
    return rng.integers(0, 256, (depth, height, width, pixel_bytes(format)), np.uint8)


def pixel_bytes(format: cl.ImageFormat) -> int:
    try:
        return int(format.itemsize)
    except cl.Error:  # PyOpenCL knows no sRGB orders: four channels of one byte or, on Intel, two
        return 8 if "16" in cl.channel_type.to_string(format.channel_data_type) else 4


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_read_map_of_any_window_is_the_copy_of_that_window(
    context: cl.Context, queue: cl.CommandQueue, kind: str, data: st.DataObject
) -> None:
    format, shape, origin, region, rng = draw_image(data, context, kind)
    with (
        image_with(context, kind, format, shape, make_pixels(rng, format, shape)) as image,
        Mapping(queue, image, READ, origin=origin, region=region) as mapping,
    ):
        assert not mapping.array.flags.writeable
        assert_same(mapping.array, fetch(queue, image, origin, region), KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), flags=st.sampled_from([WRITE, READ | WRITE, DISCARD]))
def test_a_write_map_of_any_window_changes_that_window_and_nothing_else(
    context: cl.Context, queue: cl.CommandQueue, kind: str, data: st.DataObject, flags: MapFlags
) -> None:
    format, shape, origin, region, rng = draw_image(data, context, kind)
    pixels = make_pixels(rng, format, shape)
    with image_with(context, kind, format, shape, pixels) as image:
        expected = fetch(queue, image, (0,) * len(shape), shape)
        with Mapping(queue, image, flags, origin=origin, region=region) as mapping:
            array = mapping.array
            written = rng.integers(0, 256, array.nbytes, np.uint8)
            array[...] = written.view(array.dtype).reshape(array.shape)
            del array
        x, y, z = (*origin, 0, 0)[:3]
        width, height, depth = (*region, 1, 1)[:3]
        expected[z : z + depth, y : y + height, x : x + width] = written.reshape(depth, height, width, -1)
        found = fetch(queue, image, (0,) * len(shape), shape, mapping.unmap_event)
        assert found.tobytes() == expected.tobytes()


@given(
    data=st.data(),
    type_=st.sampled_from(["UNORM_SHORT_565", "UNORM_SHORT_555", "UNORM_INT_101010", "FLOAT", "UNORM_INT8"]),
)
def test_any_pitches_that_a_driver_may_return_become_the_strides(data: st.DataObject, type_: str) -> None:
    packed = {"UNORM_SHORT_565": np.uint16, "UNORM_SHORT_555": np.uint16, "UNORM_INT_101010": np.uint32}
    dtype = np.dtype(packed.get(type_) or {"FLOAT": np.float32, "UNORM_INT8": np.uint8}[type_])
    channels = 1 if type_ in packed else data.draw(st.sampled_from([1, 2, 4]), "channels")
    kind = data.draw(st.sampled_from(list(KINDS)), "kind")
    dims, pixel = KINDS[kind], channels * dtype.itemsize
    size = tuple(data.draw(st.integers(1, limit), "size") for limit in (9, 5, 4)[:dims])
    width, height, depth = (*size, 1, 1)[:3]
    row = width * pixel + dtype.itemsize * data.draw(st.integers(0, 9), "row padding")
    slice_ = row * height + dtype.itemsize * data.draw(st.integers(0, 9), "slice padding")
    memory = np.random.default_rng(0).integers(0, 256, slice_ * depth + 64, np.uint8)
    arrays = {"IMAGE1D_ARRAY": height, "IMAGE2D_ARRAY": depth}
    image = SimpleNamespace(
        type=getattr(cl.mem_object_type, kind), width=width, element_size=pixel, size=memory.nbytes,
        height=height if dims >= 2 and kind != "IMAGE1D_ARRAY" else 0, depth=depth if kind == "IMAGE3D" else 0,
        array_size=arrays.get(kind, 0), format=SimpleNamespace(channel_data_type=getattr(cl.channel_type, type_)),
    )  # fmt: skip
    layout = _layout.ImageLayout(image, None, None)
    if kind == "IMAGE1D_ARRAY":  # a slice of it is one row; drivers return that as slice pitch, or as row pitch
        returned = data.draw(st.sampled_from([(row, row), (row, 0), (width * pixel, row)]), "returned")
    else:
        returned = (row, slice_ if dims == 3 else 0)
    array = layout.view(layout.anchor((memory[:1], None, *returned)))
    assert array.dtype == dtype
    flat = [
        memory[z * slice_ + y * row + x * pixel :][:pixel].tobytes()
        for z in range(depth) for y in range(height) for x in range(width)
    ]  # fmt: skip
    assert np.ascontiguousarray(array).tobytes() == b"".join(flat)
    assert layout.host_range(array) == (memory.ctypes.data, (depth - 1) * slice_ + (height - 1) * row + width * pixel)


def test_every_listed_format_of_every_kind_maps_to_its_bytes(context: cl.Context, queue: cl.CommandQueue) -> None:
    seen = 0
    for kind, dims in KINDS.items():
        for format in cl.get_supported_image_formats(
            context, cl.mem_flags.READ_WRITE, getattr(cl.mem_object_type, kind)
        ):
            shape = (5, 3, 2)[:dims]
            pixels = make_pixels(np.random.default_rng(seen), format, shape)
            with image_with(context, kind, format, shape, pixels) as image, Mapping(queue, image, READ) as mapping:
                assert mapping.array.dtype.kind in "iufV", format
                assert_same(mapping.array, fetch(queue, image, (0,) * dims, shape), dims)
            seen += 1
    assert seen > 6


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [
        ("SNORM_INT8", np.int8), ("UNORM_INT8", np.uint8), ("UNORM_INT16", np.uint16), ("SIGNED_INT16", np.int16),
        ("SIGNED_INT32", np.int32), ("UNSIGNED_INT32", np.uint32), ("HALF_FLOAT", np.float16), ("FLOAT", np.float32),
    ],
)  # fmt: skip
def test_the_dtype_is_that_of_a_channel(context: cl.Context, queue: cl.CommandQueue, type_: str, dtype: Any) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, getattr(cl.channel_type, type_))
    if format not in cl.get_supported_image_formats(context, cl.mem_flags.READ_WRITE, cl.mem_object_type.IMAGE2D):
        pytest.skip(f"the devices have no {format!r}")
    with MemHandle.create_image(context, (4, 3), format) as image, Mapping(queue, image, READ) as mapping:
        assert mapping.array.dtype == dtype
        assert mapping.array.shape == (3, 4, 4)


def test_a_map_knows_the_window_of_the_image_it_was_made_of(context: cl.Context, queue: cl.CommandQueue) -> None:
    """C36: a 16 by 8 window at (8, 4) of a 64 by 32 image has the image's pitch, not its own."""
    format = cl.ImageFormat(cl.channel_order.R, cl.channel_type.FLOAT)
    pixels = np.arange(64 * 32, dtype=np.float32).reshape(32, 64)
    with (
        MemHandle.create_image(context, (64, 32), format, MemFlags.COPY_HOST_PTR, hostbuf=pixels) as image,
        Mapping(queue, image, READ, origin=(8, 4), region=(16, 8)) as mapping,
    ):
        assert (mapping.array == pixels[4:12, 8:24]).all()


def test_hostbuf_pitches_are_read(context: cl.Context, queue: cl.CommandQueue) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    padded = np.random.default_rng(2).integers(0, 256, (3, 5, 10, 4), np.uint8)
    with MemHandle.create_image(
        context, (7, 4, 3), format, MemFlags.COPY_HOST_PTR, hostbuf=padded, pitches=(40, 200)
    ) as image, Mapping(queue, image, READ) as mapping:  # fmt: skip
        assert (mapping.array == padded[:, :4, :7]).all()


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        ({"origin": (8, 0)}, ValueError, r"no window of the image, which has \(8, 6, 1\) pixels"),
        ({"origin": (0, 6)}, ValueError, "no window"),
        ({"origin": (-1, 0)}, ValueError, "no window"),
        ({"region": (9, 6)}, ValueError, "no window"),
        ({"region": (0, 6)}, ValueError, "no window"),
        ({"region": (8, -1)}, ValueError, "no window"),
        ({"origin": (4, 3), "region": (5, 3)}, ValueError, "no window"),
        ({"region": (8, 6, 2)}, ValueError, "no window"),
        ({"origin": (0,)}, ValueError, r"origin \(0,\) must have 2 to 3 numbers"),
        ({"region": (1, 1, 1, 1)}, ValueError, "must have 2 to 3 numbers"),
        ({"region": (1.0, 1)}, TypeError, r"region must be a tuple of int, not \(1.0, 1\)"),
        ({"shape": (3,)}, TypeError, "an image has origin and region in pixels"),
        ({"size": 4}, TypeError, "an image has origin and region in pixels"),
        ({"offset": 4}, TypeError, "an image has origin and region in pixels"),
    ],
    ids=str,
)
def test_a_window_outside_is_refused_with_the_limits(
    context: cl.Context, queue: cl.CommandQueue, window: dict[str, Any], error: type[Exception], message: str
) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    with MemHandle.create_image(context, (8, 6), format) as image, pytest.raises(error, match=message):
        Mapping(queue, image, READ, **window)


def test_one_number_does_for_a_line(context: cl.Context, queue: cl.CommandQueue) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    pixels = np.arange(64, dtype=np.uint8).reshape(16, 4)
    with (
        MemHandle.create_image(context, (16,), format, MemFlags.COPY_HOST_PTR, hostbuf=pixels) as image,
        Mapping(queue, image, READ, origin=3, region=4) as mapping,
    ):
        assert (mapping.array == pixels[3:7]).all()


def test_a_planted_fault_that_ignores_the_pitches_is_caught(
    context: cl.Context, queue: cl.CommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = _layout.ImageLayout.anchor

    def tight(self: Any, result: Any) -> Any:
        width, height, _ = self.window[1]
        first, event, row, _ = result
        if row == width * self.pixel:  # a driver that copies the window out, without gaps: there another pitch is wrong
            width //= 2
        return true(self, (first, event, width * self.pixel, width * height * self.pixel))

    format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    pixels = make_pixels(np.random.default_rng(1), format, (16, 16))
    with image_with(context, "IMAGE2D", format, (16, 16), pixels) as image:
        copied = fetch(queue, image, (2, 2), (8, 8))
        with Mapping(queue, image, READ, origin=(2, 2), region=(8, 8)) as mapping:
            assert_same(mapping.array, copied, 2)
        monkeypatch.setattr(_layout.ImageLayout, "anchor", tight)
        with Mapping(queue, image, READ, origin=(2, 2), region=(8, 8)) as mapping, pytest.raises(AssertionError):
            assert_same(mapping.array, copied, 2)


def test_a_planted_fault_in_the_axes_is_caught() -> None:
    copied = np.arange(24, dtype=np.uint8).reshape(1, 3, 2, 4)
    assert_same(copied[0], copied, 2)
    for wrong in (copied[0].transpose(1, 0, 2), copied[0][::-1], copied[0] + 1):
        with pytest.raises(AssertionError):
            assert_same(wrong, copied, 2)
