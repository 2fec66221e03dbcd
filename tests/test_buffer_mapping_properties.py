"""Maps of buffers against a NumPy model: any offset, shape, dtype, order, flags, and parts of buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clmemlife import MapFlags, Mapping, MemFlags, MemHandle, _ledger
from clmemlife.exceptions import MapConflictError

READ, WRITE, DISCARD = MapFlags.READ, MapFlags.WRITE, MapFlags.WRITE_INVALIDATE_REGION
BYTES = 4096
DTYPES = [
    np.dtype(one)
    for one in ("u1", "?", "i2", ">u4", "f4", "f8", "c16", "V3", "S5", "U2", "M8[s]", [("a", "u1"), ("b", ">f8")])
]
shapes = st.lists(st.integers(1, 12), max_size=3).map(tuple)


@pytest.fixture
def model() -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, BYTES, np.uint8)


@pytest.fixture
def root(context: cl.Context, model: np.ndarray) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, hostbuf=model, flags=MemFlags.COPY_HOST_PTR, label="root") as handle:
        yield handle


@pytest.fixture
def part(root: MemHandle) -> Iterator[MemHandle]:
    with root.sub_buffer(1024, 2048) as handle:
        yield handle


def as_array(memory: np.ndarray, offset: int, shape: tuple[int, ...], dtype: np.dtype, order: Any) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    return memory[offset : offset + nbytes].view(dtype).reshape(shape, order=order)


@given(data=st.data(), shape=shapes, dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"), in_part=st.booleans())
def test_a_map_shows_the_bytes_of_its_region(
    queue: cl.CommandQueue, root: MemHandle, part: MemHandle, model: np.ndarray, data: st.DataObject,
    shape: tuple[int, ...], dtype: np.dtype, order: str, in_part: bool,
) -> None:  # fmt: skip
    handle, base = (part, 1024) if in_part else (root, 0)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > handle.size:
        with pytest.raises(ValueError, match="no region"):
            Mapping(queue, handle, READ, shape=shape, dtype=dtype)
        return
    offset = data.draw(st.integers(0, handle.size - nbytes), "offset")
    expected = as_array(model, base + offset, shape, dtype, order)
    with Mapping(queue, handle, READ, shape=shape, dtype=dtype, order=order, offset=offset) as mapping:  # type: ignore[arg-type]
        array = mapping.array
        assert (array.shape, array.dtype, array.strides) == (expected.shape, expected.dtype, expected.strides)
        assert array.tobytes(order) == expected.tobytes(order)  # type: ignore[arg-type]
        assert not array.flags.writeable


@given(
    data=st.data(), shape=shapes, dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"), in_part=st.booleans(),
    flags=st.sampled_from([WRITE, READ | WRITE, DISCARD]), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_is_written_lands_in_its_region_and_nowhere_else(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, root: MemHandle, part: MemHandle, data: st.DataObject,
    shape: tuple[int, ...], dtype: np.dtype, order: str, in_part: bool, flags: MapFlags, seed: int,
) -> None:  # fmt: skip
    handle, base = (part, 1024) if in_part else (root, 0)
    nbytes = math.prod(shape) * dtype.itemsize
    offset = data.draw(st.integers(0, max(handle.size - nbytes, 0)), "offset")
    if nbytes > handle.size:
        return
    expected = np.empty(BYTES, np.uint8)
    cl.enqueue_copy(queue, expected, root.mem)
    written = np.random.default_rng(seed).integers(0, 2, nbytes, np.uint8)
    values = written.view(dtype).reshape(shape, order=order)  # type: ignore[call-overload]
    with Mapping(queue, handle, flags, shape=shape, dtype=dtype, order=order, offset=offset) as mapping:  # type: ignore[arg-type]
        mapping.array[...] = values
        written = np.frombuffer(values.tobytes(order), np.uint8)  # type: ignore[arg-type]
    expected[base + offset : base + offset + nbytes] = written
    found = np.empty(BYTES, np.uint8)
    queue.flush()  # which PyOpenCL's own commands do not do for a wait-list
    cl.enqueue_copy(queue2, found, root.mem, wait_for=[mapping.unmap_event])
    assert np.flatnonzero(found != expected).tolist() == []


@given(
    shape=st.none() | st.lists(st.integers(-1, 80), max_size=3).map(tuple), dtype=st.sampled_from(DTYPES),
    offset=st.integers(-4, BYTES + 4), size=st.none() | st.integers(-4, BYTES + 4),
)  # fmt: skip
def test_a_request_is_refused_exactly_when_it_does_not_fit(
    queue: cl.CommandQueue, root: MemHandle, shape: tuple[int, ...] | None, dtype: np.dtype, offset: int,
    size: int | None,
) -> None:  # fmt: skip
    room = max(BYTES - offset if size is None else size, 0)
    if shape is None:
        fits, nbytes = room % dtype.itemsize == 0, room
    else:
        fits, nbytes = min(shape, default=0) >= 0, math.prod(shape) * dtype.itemsize
    region = nbytes if size is None else size
    fits = fits and offset >= 0 and region > 0 and offset + region <= BYTES and nbytes <= region
    if fits:
        with Mapping(queue, root, READ, shape=shape, dtype=dtype, offset=offset, size=size) as mapping:
            assert mapping.array.nbytes == nbytes
    else:
        with pytest.raises(ValueError):
            Mapping(queue, root, READ, shape=shape, dtype=dtype, offset=offset, size=size)
        assert _ledger.open_maps() == ()


regions = st.tuples(st.integers(0, 31), st.integers(1, 32)).map(lambda one: (one[0], min(one[1], 32 - one[0])))


@given(
    first=regions, second=regions, flags=st.tuples(*[st.sampled_from([READ, WRITE, READ | WRITE, DISCARD])] * 2),
    parts=st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip
def test_two_maps_conflict_exactly_when_they_share_a_byte_and_one_writes(
    queue: cl.CommandQueue, root: MemHandle, part: MemHandle, first: tuple[int, int], second: tuple[int, int],
    flags: tuple[MapFlags, MapFlags], parts: tuple[bool, bool],
) -> None:  # fmt: skip
    def place(region: tuple[int, int], in_part: bool) -> tuple[MemHandle, int]:
        return (part, region[0]) if in_part else (root, region[0] + 1024)

    shared = set(range(first[0], sum(first))) & set(range(second[0], sum(second)))
    (one, start), (two, start2) = place(first, parts[0]), place(second, parts[1])
    with Mapping(queue, one, flags[0], offset=start, size=first[1]):
        if shared and flags != (READ, READ):
            with pytest.raises(MapConflictError):
                Mapping(queue, two, flags[1], offset=start2, size=second[1])
        else:
            Mapping(queue, two, flags[1], offset=start2, size=second[1]).unmap()
