"""Every form of `enqueue_copy` against NumPy, what is refused before the driver, and copies of nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import MapFlags, Mapping, MemFlags, MemHandle
from clmemlife.exceptions import ContextMismatchError, DependencyError, MapConflictError, ReleasedError

N = 1024
RGBA8 = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
COMPLETE = cl.command_execution_status.COMPLETE


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, N, np.uint8)


@pytest.fixture
def buffer(context: cl.Context, data: np.ndarray) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, hostbuf=data, flags=MemFlags.COPY_HOST_PTR, label="source") as handle:
        yield handle


@pytest.fixture
def empty(context: cl.Context, queue: cl.CommandQueue) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, N, label="target") as handle:
        cml.enqueue_fill(queue, handle, np.uint8(0))
        yield handle


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (8, 12, 4), np.uint8)


@pytest.fixture
def image(context: cl.Context, pixels: np.ndarray) -> Iterator[MemHandle]:
    with MemHandle.create_image(
        context, (12, 8), RGBA8, hostbuf=pixels, flags=MemFlags.COPY_HOST_PTR, label="picture"
    ) as handle:
        yield handle


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a copy is enqueued."""
    monkeypatch.setattr(cml._opencl, "enqueue_copy", lambda *_, **__: pytest.fail("the driver was asked"))


def content(queue: cl.CommandQueue, mem: Any) -> np.ndarray:
    out = np.empty(mem.size, np.uint8)
    cl.enqueue_copy(queue, out, mem.mem if isinstance(mem, MemHandle) else mem)
    return out


def raw(handle: MemHandle) -> Any:
    return handle.mem


BOTH = pytest.mark.parametrize("side", [lambda handle: handle, raw], ids=["handle", "raw"])
Side = Callable[[MemHandle], Any]


# -- linear ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("count", "offset"), [(N, 0), (100, 0), (100, 7), (1, N - 1)])
def test_bytes_from_a_buffer(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray, side: Side, count: int, offset: int
) -> None:
    out = np.zeros(count, np.uint8)
    event = cml.enqueue_copy(queue, out, side(buffer), src_offset=offset)
    assert (out == data[offset : offset + count]).all()
    assert event.command_execution_status == COMPLETE


@BOTH
@pytest.mark.parametrize(("count", "offset"), [(N, 0), (100, 0), (100, 7), (1, N - 1)])
def test_bytes_to_a_buffer(
    queue: cl.CommandQueue, empty: MemHandle, data: np.ndarray, side: Side, count: int, offset: int
) -> None:
    cml.enqueue_copy(queue, side(empty), data[:count], dst_offset=offset)
    expected = np.zeros(N, np.uint8)
    expected[offset : offset + count] = data[:count]
    assert (content(queue, empty) == expected).all()


@pytest.mark.parametrize(
    "where", [{}, {"byte_count": 64}, {"src_offset": 32, "dst_offset": 96, "byte_count": 64}, {"src_offset": N - 16}]
)
def test_bytes_between_buffers(
    queue: cl.CommandQueue, buffer: MemHandle, empty: MemHandle, data: np.ndarray, where: dict[str, int]
) -> None:
    cml.enqueue_copy(queue, empty, buffer, **where).wait()
    source, target = where.get("src_offset", 0), where.get("dst_offset", 0)
    count = where.get("byte_count", N - max(source, target))
    expected = np.zeros(N, np.uint8)
    expected[target : target + count] = data[source : source + count]
    assert (content(queue, empty) == expected).all()


def test_bytes_between_parts_of_one_buffer_that_do_not_overlap(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray
) -> None:
    with buffer.sub_buffer(0, 256) as first, buffer.sub_buffer(512, 256) as second:
        cml.enqueue_copy(queue, second, first).wait()
    assert (content(queue, buffer)[512:768] == data[:256]).all()


@pytest.mark.parametrize(
    "host", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, ">u2"), lambda b: np.frombuffer(b, np.int64)]
)
def test_host_memory_of_every_kind_is_a_source(
    queue: cl.CommandQueue, empty: MemHandle, data: np.ndarray, host: Callable[[bytes], Any]
) -> None:
    cml.enqueue_copy(queue, empty, host(data.tobytes()))
    assert (content(queue, empty) == data).all()


@pytest.mark.parametrize("host", [bytearray, lambda b: memoryview(bytearray(b)), lambda b: np.array(bytearray(b))])
def test_writable_host_memory_of_every_kind_is_a_target(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray, host: Callable[[bytes], Any]
) -> None:
    target = host(bytes(N))
    cml.enqueue_copy(queue, target, buffer)
    assert bytes(target) == data.tobytes()


def test_fortran_order_and_scalars_are_taken_as_they_lie(queue: cl.CommandQueue, empty: MemHandle) -> None:
    array = np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4))
    cml.enqueue_copy(queue, empty, array)
    out = np.empty((3, 4), np.int32, order="F")
    cml.enqueue_copy(queue, out, empty)
    assert (out == array).all()
    cml.enqueue_copy(queue, empty, np.float64(2.5))
    assert content(queue, empty)[:8].view(np.float64)[0] == 2.5


# -- rectangles ------------------------------------------------------------------------------------------------------


def test_a_rectangle_from_a_buffer_into_a_window_of_the_host(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray
) -> None:
    out = np.zeros((16, 32), np.uint8)
    cml.enqueue_copy(
        queue, out, buffer, buffer_origin=(4, 2), host_origin=(3, 5), region=(10, 6),
        buffer_pitches=(64,), host_pitches=(32,),
    )  # fmt: skip
    expected = np.zeros((16, 32), np.uint8)
    expected[5:11, 3:13] = data.reshape(16, 64)[2:8, 4:14]
    assert (out == expected).all()


def test_a_rectangle_from_the_host_into_a_box_of_a_buffer(
    queue: cl.CommandQueue, empty: MemHandle, data: np.ndarray
) -> None:
    cube = data.reshape(4, 8, 32)
    cml.enqueue_copy(
        queue, empty, cube, buffer_origin=(8, 1, 1), host_origin=(2, 3, 0), region=(12, 4, 3),
        buffer_pitches=(32, 256), host_pitches=(32, 256),
    )  # fmt: skip
    expected = np.zeros((4, 8, 32), np.uint8)
    expected[1:4, 1:5, 8:20] = cube[0:3, 3:7, 2:14]
    assert (content(queue, empty) == expected.ravel()).all()


def test_a_rectangle_between_buffers(
    queue: cl.CommandQueue, buffer: MemHandle, empty: MemHandle, data: np.ndarray
) -> None:
    cml.enqueue_copy(
        queue, empty, buffer, src_origin=(0, 3), dst_origin=(16, 0), region=(8, 5), src_pitches=(32,), dst_pitches=(64,)
    ).wait()
    expected = np.zeros((16, 64), np.uint8)
    expected[0:5, 16:24] = data.reshape(32, 32)[3:8, 0:8]
    assert (content(queue, empty) == expected.ravel()).all()


def test_a_rectangle_without_pitches_is_tightly_packed(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray
) -> None:
    out = np.zeros(24, np.uint8)
    cml.enqueue_copy(queue, out, buffer, buffer_origin=(0, 0, 0), host_origin=(0, 0, 0), region=(4, 3, 2))
    assert (out == data[:24]).all()


# -- images ----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_region_of_an_image_to_the_host(
    queue: cl.CommandQueue, image: MemHandle, pixels: np.ndarray, side: Side
) -> None:
    out = np.zeros((3, 5, 4), np.uint8)
    cml.enqueue_copy(queue, out, side(image), origin=(2, 4), region=(5, 3))
    assert (out == pixels[4:7, 2:7]).all()


def test_a_region_of_an_image_to_the_host_with_a_pitch(
    queue: cl.CommandQueue, image: MemHandle, pixels: np.ndarray
) -> None:
    out = np.zeros((3, 8, 4), np.uint8)
    cml.enqueue_copy(queue, out, image, origin=(2, 4), region=(5, 3), pitches=(32,))
    assert (out[:, :5] == pixels[4:7, 2:7]).all()
    assert not out[:, 5:].any()


def test_host_memory_to_a_region_of_an_image(queue: cl.CommandQueue, image: MemHandle, pixels: np.ndarray) -> None:
    block = np.full((2, 3, 4), 200, np.uint8)
    cml.enqueue_copy(queue, image, block, origin=(1, 1), region=(3, 2))
    out = np.zeros_like(pixels)
    cml.enqueue_copy(queue, out, image, origin=(0, 0), region=(12, 8))
    expected = pixels.copy()
    expected[1:3, 1:4] = 200
    assert (out == expected).all()


def test_an_image_to_a_buffer_and_back(
    context: cl.Context, queue: cl.CommandQueue, image: MemHandle, empty: MemHandle, pixels: np.ndarray
) -> None:
    first = cml.enqueue_copy(queue, empty, image, offset=64, origin=(2, 1), region=(5, 3))
    first.wait()
    assert (content(queue, empty)[64 : 64 + 60] == pixels[1:4, 2:7].ravel()).all()
    with MemHandle.create_image(context, (12, 8), RGBA8) as other:
        cml.enqueue_fill(queue, other, np.zeros(4, np.uint32))
        cml.enqueue_copy(queue, other, empty, offset=64, origin=(0, 0), region=(5, 3)).wait()
        out = np.zeros((3, 5, 4), np.uint8)
        cml.enqueue_copy(queue, out, other, origin=(0, 0), region=(5, 3))
    assert (out == pixels[1:4, 2:7]).all()


def test_an_image_to_an_image(
    context: cl.Context, queue: cl.CommandQueue, image: MemHandle, pixels: np.ndarray
) -> None:
    with MemHandle.create_image(context, (12, 8), RGBA8) as other:
        cml.enqueue_copy(queue, other, image, src_origin=(3, 2), dest_origin=(1, 0), region=(4, 5)).wait()
        out = np.zeros((5, 4, 4), np.uint8)
        cml.enqueue_copy(queue, out, other, origin=(1, 0), region=(4, 5))
    assert (out == pixels[2:7, 3:7]).all()


def test_a_volume_and_its_pitches(context: cl.Context, queue: cl.CommandQueue) -> None:
    volume = np.random.default_rng(5).integers(0, 256, (3, 4, 5, 4), np.uint8)
    with MemHandle.create_image(context, (5, 4, 3), RGBA8) as image:
        cml.enqueue_copy(queue, image, volume, origin=(0, 0, 0), region=(5, 4, 3))
        out = np.zeros((2, 6, 8, 4), np.uint8)
        cml.enqueue_copy(queue, out, image, origin=(1, 1, 1), region=(3, 2, 2), pitches=(32, 192))
        assert (out[:, :2, :3] == volume[1:3, 1:3, 1:4]).all()


# -- copies of nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["from", "to", "between", "rectangle", "image"])
def test_a_copy_of_nothing_is_a_marker_that_carries_the_chain(
    out_of_order_queue: cl.CommandQueue, buffer: MemHandle, empty: MemHandle, image: MemHandle, gate: cl.UserEvent,
    form: str, marker_types: tuple[int, ...],
) -> None:  # fmt: skip
    nothing = np.empty(0, np.uint8)
    event = {
        "from": lambda: cml.enqueue_copy(out_of_order_queue, nothing, buffer, wait_for=gate),
        "to": lambda: cml.enqueue_copy(out_of_order_queue, buffer, nothing, dst_offset=N, wait_for=gate),
        "between": lambda: cml.enqueue_copy(out_of_order_queue, empty, buffer, byte_count=0, wait_for=gate),
        "rectangle": lambda: cml.enqueue_copy(
            out_of_order_queue, nothing, buffer, buffer_origin=(0,), host_origin=(0,), region=(4, 0), wait_for=gate
        ),
        "image": lambda: cml.enqueue_copy(
            out_of_order_queue, nothing, image, origin=(0, 0), region=(0, 4), wait_for=gate
        ),
    }[form]()
    assert event.command_type in marker_types
    assert event.command_execution_status > 0
    gate.set_status(COMPLETE)
    event.wait()
    assert event.command_execution_status == COMPLETE


# -- what is refused before the driver -------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_driver")
class TestRefusedBeforeTheDriver:
    def test_two_host_sides(self, queue: cl.CommandQueue) -> None:
        with pytest.raises(TypeError, match="one side must be a memory object, not ndarray and bytes"):
            cml.enqueue_copy(queue, np.zeros(4), b"1234")

    def test_something_that_is_no_memory(self, queue: cl.CommandQueue, buffer: MemHandle) -> None:
        for wrong in ([1, 2, 3], None, 5, "text", {}):
            with pytest.raises(TypeError, match="neither a memory object nor contiguous host memory"):
                cml.enqueue_copy(queue, buffer, wrong)

    def test_something_that_is_no_queue(self, buffer: MemHandle) -> None:
        with pytest.raises(TypeError, match="queue must be"):
            cml.enqueue_copy(buffer, np.zeros(4), buffer)  # type: ignore[arg-type]

    def test_strided_host_memory(self, queue: cl.CommandQueue, buffer: MemHandle) -> None:
        for strided in (np.zeros((8, 8), np.uint8)[:, ::2], np.zeros(16, np.uint8)[::-1], memoryview(bytes(16))[::2]):
            with pytest.raises((ValueError, TypeError), match="contiguous"):
                cml.enqueue_copy(queue, buffer, strided)

    def test_python_objects(self, queue: cl.CommandQueue, buffer: MemHandle) -> None:
        with pytest.raises(TypeError, match="Python objects"):
            cml.enqueue_copy(queue, buffer, np.array([None, 1], object))

    def test_a_read_only_target(self, queue: cl.CommandQueue, buffer: MemHandle) -> None:
        frozen = np.zeros(4, np.uint8)
        frozen.flags.writeable = False
        for target in (frozen, bytes(4), memoryview(b"1234")):
            with pytest.raises(ValueError, match="read-only host memory"):
                cml.enqueue_copy(queue, target, buffer)
        with pytest.raises(TypeError, match="neither a memory object nor"):
            cml.enqueue_copy(queue, 4.5, buffer)

    @pytest.mark.parametrize(("count", "offset"), [(N + 1, 0), (1, N), (8, -1), (N, 1)])
    def test_bytes_outside_the_buffer(self, queue: cl.CommandQueue, buffer: MemHandle, count: int, offset: int) -> None:
        with pytest.raises(ValueError, match=f"are not within the {N} bytes of 'source'"):
            cml.enqueue_copy(queue, np.zeros(count, np.uint8), buffer, src_offset=offset)
        with pytest.raises(ValueError, match=f"are not within the {N} bytes of 'source'"):
            cml.enqueue_copy(queue, buffer, np.zeros(count, np.uint8), dst_offset=offset)

    @pytest.mark.parametrize(
        "where",
        [{"byte_count": N + 1}, {"src_offset": -1}, {"dst_offset": N + 1}, {"src_offset": 1, "byte_count": N},
         {"byte_count": -1}],
    )  # fmt: skip
    def test_bytes_outside_either_buffer(
        self, queue: cl.CommandQueue, buffer: MemHandle, empty: MemHandle, where: dict[str, int]
    ) -> None:
        with pytest.raises(ValueError, match="are not within"):
            cml.enqueue_copy(queue, empty, buffer, **where)

    def test_overlapping_parts_of_one_buffer(self, queue: cl.CommandQueue, buffer: MemHandle, alignment: int) -> None:
        with pytest.raises(ValueError, match="overlap in one memory object"):
            cml.enqueue_copy(queue, buffer, buffer, src_offset=0, dst_offset=10, byte_count=11)
        with (
            buffer.sub_buffer(alignment, 256) as part,
            pytest.raises(ValueError, match="overlap in one memory object"),
        ):
            cml.enqueue_copy(queue, part, buffer, src_offset=alignment - 128, byte_count=256)

    @pytest.mark.parametrize(
        "change",
        [
            {"buffer_origin": (60, 0)}, {"buffer_origin": (0, 16)}, {"buffer_origin": (-1, 0)},
            {"buffer_pitches": (4,)}, {"host_origin": (1, 1)}, {"region": (8, 17)}, {"region": (8, -1)},
            {"host_pitches": (9,)}, {"region": (8, 4, 1, 1)}, {"region": ()},
        ],
    )  # fmt: skip
    def test_rectangles_outside(self, queue: cl.CommandQueue, buffer: MemHandle, change: dict[str, Any]) -> None:
        where = {"buffer_origin": (0, 0), "host_origin": (0, 0), "region": (8, 4), "buffer_pitches": (64,)}
        if change == {"buffer_origin": (60, 0)}:
            change = {"buffer_origin": (60, 12)}
        with pytest.raises(ValueError, match=r"is not within the .* bytes of|must have one to three numbers"):
            cml.enqueue_copy(queue, np.zeros(32, np.uint8), buffer, **{**where, **change})

    @pytest.mark.parametrize(
        "change",
        [{"origin": (5, 0)}, {"origin": (0, -1)}, {"region": (8, 9)}, {"region": (8, -8)}, {"region": (8, 8, 2)}],
    )
    def test_windows_outside_an_image(
        self, queue: cl.CommandQueue, image: MemHandle, empty: MemHandle, change: dict[str, Any]
    ) -> None:
        where = {"origin": (0, 0), "region": (8, 8), **change}
        host = np.zeros((16, 16, 4), np.uint8)
        for call in (
            lambda: cml.enqueue_copy(queue, host, image, **where),
            lambda: cml.enqueue_copy(queue, image, host, **where),
            lambda: cml.enqueue_copy(queue, empty, image, offset=0, **where),
            lambda: cml.enqueue_copy(queue, image, empty, offset=0, **where),
        ):
            with pytest.raises(ValueError, match=r"is not within the image's \(12, 8, 1\)"):
                call()

    @pytest.mark.parametrize(
        ("host", "pitches", "message"),
        [
            (np.zeros((8, 12, 3), np.uint8), None, "needs 384 bytes of host memory, not 288"),
            (np.zeros((8, 12, 4), np.uint8), (64,), "needs 496 bytes of host memory, not 384"),
            (np.zeros((8, 12, 4), np.uint8), (8,), "smaller than a row of 48"),
        ],
    )
    def test_host_memory_that_is_too_small_for_an_image(
        self, queue: cl.CommandQueue, image: MemHandle, host: np.ndarray, pitches: Any, message: str
    ) -> None:
        where = {"origin": (0, 0), "region": (12, 8), **({} if pitches is None else {"pitches": pitches})}
        with pytest.raises(ValueError, match=message):
            cml.enqueue_copy(queue, host, image, **where)
        with pytest.raises(ValueError, match=message):
            cml.enqueue_copy(queue, image, host, **where)

    def test_a_buffer_that_is_too_small_for_an_image(
        self, queue: cl.CommandQueue, image: MemHandle, empty: MemHandle
    ) -> None:
        with pytest.raises(ValueError, match=f"are not within the {N} bytes of 'target'"):
            cml.enqueue_copy(queue, empty, image, offset=N - 383, origin=(0, 0), region=(12, 8))

    def test_missing_and_unknown_keywords(
        self, queue: cl.CommandQueue, image: MemHandle, buffer: MemHandle, empty: MemHandle
    ) -> None:
        host = np.zeros(N, np.uint8)
        for dest, src, where, message in (
            (
                host,
                image,
                {},
                "takes origin, region, .pitches., .wait_for., .is_blocking.: origin= is missing, region= is missing",
            ),
            (host, image, {"origin": (0, 0), "region": (1, 1), "src_offset": 3}, "src_offset= is unknown"),
            (host, buffer, {"dst_offset": 4}, "dst_offset= is unknown"),
            (host, buffer, {"device_offset": 4}, "device_offset= is unknown"),
            (host, buffer, {"byte_count": 4}, "byte_count= is unknown"),
            (
                host,
                buffer,
                {"blocking": False},
                r"takes \[src_offset\], \[wait_for\], \[is_blocking\]: blocking= is unk",
            ),
            (host, buffer, {"buffer_origin": (0,), "region": (4,)}, "host_origin= is missing"),
            (empty, buffer, {"dest_offset": 4}, "dest_offset= is unknown"),
            (empty, buffer, {"src_origin": (0,), "region": (4,)}, "dst_origin= is missing"),
            (empty, image, {"origin": (0, 0), "region": (1, 1)}, "offset= is missing"),
            (image, image, {"origin": (0, 0), "region": (1, 1)}, "src_origin= is missing"),
        ):
            with pytest.raises(TypeError, match=message):
                cml.enqueue_copy(queue, dest, src, **where)

    def test_a_released_handle(self, context: cl.Context, queue: cl.CommandQueue, empty: MemHandle) -> None:
        gone = MemHandle.create_buffer(context, 16, label="gone")
        gone.release()
        for dest, src in ((np.zeros(4, np.uint8), gone), (gone, b"1234"), (empty, gone), (gone, empty)):
            with pytest.raises(ReleasedError, match=r"'gone' \(16 bytes"):
                cml.enqueue_copy(queue, dest, src)

    def test_a_failed_event(self, context: cl.Context, queue: cl.CommandQueue, buffer: MemHandle) -> None:
        failed = cl.UserEvent(context)
        failed.set_status(-5)
        for out in (np.zeros(4, np.uint8), np.zeros(0, np.uint8)):
            with pytest.raises(DependencyError, match="OUT_OF_RESOURCES"):
                cml.enqueue_copy(queue, out, buffer, wait_for=failed)

    def test_an_object_of_another_context(self, devices: list[cl.Device], buffer: MemHandle) -> None:
        other = cl.Context(devices[:1])  # Intel's queue does not keep it
        elsewhere = cl.CommandQueue(other, devices[0])
        with pytest.raises(ContextMismatchError, match="'source'"):
            cml.enqueue_copy(elsewhere, np.zeros(4, np.uint8), buffer)

    @pytest.mark.parametrize(
        ("flag", "reads", "writes"),
        [
            (MemFlags.HOST_READ_ONLY, True, False),
            (MemFlags.HOST_WRITE_ONLY, False, True),
            (MemFlags.HOST_NO_ACCESS, False, False),
        ],
    )
    def test_what_the_host_access_flags_forbid(
        self, context: cl.Context, queue: cl.CommandQueue, flag: MemFlags, reads: bool, writes: bool
    ) -> None:
        host = np.zeros(16, np.uint8)
        with (
            MemHandle.create_buffer(context, 1024, MemFlags.READ_WRITE | flag) as handle,
            handle.sub_buffer(0, 512) as part,
        ):
            for mem in (handle, handle.mem, part):
                if not reads:
                    with pytest.raises(ValueError, match=f"created with {flag}, which forbids a copy from it"):
                        cml.enqueue_copy(queue, host, mem)
                if not writes:
                    with pytest.raises(ValueError, match=f"created with {flag}, which forbids a copy to it"):
                        cml.enqueue_copy(queue, mem, host)

    def test_memory_that_is_mapped(self, queue: cl.CommandQueue, buffer: MemHandle, empty: MemHandle) -> None:
        out = np.zeros(N, np.uint8)
        with Mapping(queue, buffer, MapFlags.WRITE, offset=100, size=50) as mapping:
            mapping.wait()
            for call in (
                lambda: cml.enqueue_copy(queue, out, buffer),
                lambda: cml.enqueue_copy(queue, buffer, out[:1], dst_offset=149),
                lambda: cml.enqueue_copy(queue, empty, buffer, src_offset=99, byte_count=2),
                lambda: cml.enqueue_copy(queue, buffer.mem, empty, dst_offset=0, byte_count=101),
            ):
                with pytest.raises(MapConflictError, match=r"enqueue_copy at .*bytes \[100, 150\) are mapped for writ"):
                    call()


@pytest.mark.parametrize("flag", [MemFlags.HOST_READ_ONLY, MemFlags.HOST_WRITE_ONLY, MemFlags.HOST_NO_ACCESS])
def test_host_access_flags_do_not_concern_copies_on_the_device(
    context: cl.Context, queue: cl.CommandQueue, buffer: MemHandle, flag: MemFlags
) -> None:
    with MemHandle.create_buffer(context, N, MemFlags.READ_WRITE | flag) as handle:
        cml.enqueue_fill(queue, handle, np.uint8(1)).wait()
        cml.enqueue_copy(queue, handle, buffer).wait()


# -- precision about maps --------------------------------------------------------------------------------------------


def test_a_rectangle_that_leaves_the_mapped_bytes_out_is_no_conflict(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray
) -> None:
    columns = {"buffer_pitches": (64,), "host_pitches": (8,), "host_origin": (0, 0), "region": (8, 16)}
    out = np.zeros((16, 8), np.uint8)
    with Mapping(queue, buffer, MapFlags.WRITE, offset=64 * 3 + 16, size=32) as mapping:
        mapping.wait()
        cml.enqueue_copy(queue, out, buffer, buffer_origin=(8, 0), **columns)
        assert (out == data.reshape(16, 64)[:, 8:16]).all()
        cml.enqueue_copy(queue, out, buffer, buffer_origin=(48, 0), **columns)
        for x in (9, 16, 40, 47):
            with pytest.raises(MapConflictError):
                cml.enqueue_copy(queue, out, buffer, buffer_origin=(x, 0), **columns)


def test_a_box_in_a_sub_buffer_is_compared_byte_by_byte_too(
    queue: cl.CommandQueue, buffer: MemHandle, alignment: int
) -> None:
    out = np.zeros((2, 2, 4), np.uint8)
    box = {"host_origin": (0,), "region": (4, 2, 2), "buffer_pitches": (16, 64), "buffer_origin": (4, 1, 1)}
    first = max(256, alignment)
    touched = {first + 64 * z + 16 * y + x for z in (1, 2) for y in (1, 2) for x in range(4, 8)}
    with buffer.sub_buffer(first, 512) as part:
        for start in range(first + 44, first + 204, 3):
            with Mapping(queue, buffer, MapFlags.WRITE, offset=start, size=5) as mapping:
                mapping.wait()
                if touched & set(range(start, start + 5)):
                    with pytest.raises(MapConflictError):
                        cml.enqueue_copy(queue, out, part, **box)
                else:
                    cml.enqueue_copy(queue, out, part, **box)


# -- blocking or not -------------------------------------------------------------------------------------------------


def test_a_non_blocking_copy_comes_back_at_once_and_waits_for_its_list(
    queue: cl.CommandQueue, buffer: MemHandle, data: np.ndarray, gate: cl.UserEvent
) -> None:
    out = np.zeros(N, np.uint8)
    event = cml.enqueue_copy(queue, out, buffer, is_blocking=False, wait_for=gate)
    assert event.command_execution_status > 0
    assert not isinstance(event, cl.NannyEvent)
    gate.set_status(COMPLETE)
    event.wait()
    assert (out == data).all()


def test_a_copy_from_a_temporary_arrives(
    queue: cl.CommandQueue, empty: MemHandle, data: np.ndarray, gate: cl.UserEvent
) -> None:
    event = cml.enqueue_copy(queue, empty, data.tobytes(), is_blocking=False, wait_for=gate)
    noise = [np.full(N, 255, np.uint8) for _ in range(16)]
    gate.set_status(COMPLETE)
    event.wait()
    assert (content(queue, empty) == data).all()
    assert len(noise) == 16


def test_svm_goes_both_ways(context: cl.Context, queue: cl.CommandQueue, data: np.ndarray) -> None:
    if not queue.device.svm_capabilities:
        pytest.skip("the device has no shared virtual memory")
    memory = cl.SVM(cl.svm_empty(context, cl.svm_mem_flags.READ_WRITE, N, np.uint8))
    cml.enqueue_copy(queue, memory, data)
    out = np.zeros(N, np.uint8)
    event = cml.enqueue_copy(queue, out, memory, is_blocking=False)
    event.wait()
    assert (out == data).all()


# -- images of kinds that PyOpenCL's own function refuses --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["line", "lines", "over a buffer", "array"])
def test_images_of_every_kind_are_copied(context: cl.Context, queue: cl.CommandQueue, kind: str) -> None:
    shape = {"line": (16,), "lines": (16, 3), "over a buffer": (16,), "array": (16, 3, 2)}[kind]
    window: dict[str, Any] = {"origin": (2, 1, 0)[: len(shape)], "region": (5, 2, 2)[: len(shape)]}
    pixels = np.random.default_rng(6).integers(0, 256, (*shape[::-1], 4), np.uint8)
    inside = tuple(slice(o, o + n) for o, n in zip(window["origin"], window["region"], strict=True))[::-1]
    with (
        MemHandle.create_buffer(context, 512) as memory,
        MemHandle.create_image(
            context,
            shape,
            RGBA8,
            is_array=kind in ("lines", "array"),
            buffer=memory if kind == "over a buffer" else None,
        ) as image,
    ):
        everything = {"origin": (0,) * len(shape), "region": shape}
        cml.enqueue_copy(queue, image, pixels, **everything)
        out = np.zeros_like(pixels[inside])
        cml.enqueue_copy(queue, out, image, **window)
        assert (out == pixels[inside]).all()
        block = 255 - pixels[inside]
        cml.enqueue_copy(queue, image, np.ascontiguousarray(block), is_blocking=False, **window).wait()
        found = np.zeros_like(pixels)
        cml.enqueue_copy(queue, found, image, **everything)
        pixels[inside] = block
        assert (found == pixels).all()


@pytest.mark.parametrize(
    "shape",
    [(16,), pytest.param((16, 3), marks=pytest.mark.nvidia_fault("lines to a buffer", run=True)), (16, 3, 2)],
)
def test_lines_and_arrays_go_to_buffers_and_images_and_back(
    context: cl.Context, queue: cl.CommandQueue, empty: MemHandle, shape: tuple[int, ...]
) -> None:
    origin, region = (3, 1, 0)[: len(shape)], (5, 2, 2)[: len(shape)]
    inside = tuple(slice(o, o + n) for o, n in zip(origin, region, strict=True))[::-1]
    pixels = np.random.default_rng(8).integers(0, 256, (*shape[::-1], 4), np.uint8)
    options = {"is_array": len(shape) > 1}
    with (
        MemHandle.create_image(context, shape, RGBA8, MemFlags.COPY_HOST_PTR, hostbuf=pixels, **options) as image,
        MemHandle.create_image(context, shape, RGBA8, **options) as other,
    ):
        cml.enqueue_copy(queue, empty, image, offset=16, origin=origin, region=region).wait()
        assert (content(queue, empty)[16 : 16 + pixels[inside].size] == pixels[inside].ravel()).all()
        cml.enqueue_copy(queue, other, empty, offset=16, origin=origin, region=region).wait()
        cml.enqueue_copy(
            queue, image, other, src_origin=origin, dest_origin=(0,) * len(shape), region=region
        ).wait()  # fmt: skip
        out = np.zeros_like(pixels[inside])
        cml.enqueue_copy(queue, out, image, origin=(0,) * len(shape), region=region)
        assert (out == pixels[inside]).all()


@pytest.mark.parametrize("pitches", [{}, range(3), "ab"])
def test_pitches_of_a_rectangle_are_checked_before_the_driver(queue, buffer, pitches):
    where = {"buffer_origin": (0, 0), "host_origin": (0, 0), "region": (16, 4)}
    with suppress(TypeError, ValueError):
        cml.enqueue_copy(queue, np.zeros(N, np.uint8), buffer, **where, buffer_pitches=pitches)


@pytest.mark.parametrize("side", ["to an image", "from an image", "to SVM"])
def test_process_a_blocking_copy_lets_other_threads_run(run, side):
    """PyOpenCL holds the interpreter in these: a thread that is to open the gate never came to it."""
    run(
        f"""
        side = {side!r}
        context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
        queue = cl.CommandQueue(context)
        gate = cl.UserEvent(context)
        opener = threading.Timer(0.1, gate.set_status, (0,))
        pixels = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
        if side == "to SVM":
            svm = cl.SVMAllocation(context, 64, 64, cl.svm_mem_flags.READ_WRITE, queue=queue)
            opener.start()
            event = cml.enqueue_copy(queue, svm, pixels, wait_for=gate)
        else:
            format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
            with cml.MemHandle.create_image(context, (4, 4), format) as image:
                opener.start()
                dest, src = (image, pixels) if side == "to an image" else (pixels, image)
                event = cml.enqueue_copy(queue, dest, src, origin=(0, 0), region=(4, 4), wait_for=gate)
        assert event.command_execution_status == 0
        opener.join()
        """,
        timeout=30,
    )
