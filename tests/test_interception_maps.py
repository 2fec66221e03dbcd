"""`sanitize` and the arrays of maps: their strides where images have pitches, and what may be done with them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife.diagnostics.interception import _cpython

mf, mapf = cl.mem_flags, cl.map_flags
order, kind = cl.channel_order, cl.channel_type
RGBA8, R32F = cl.ImageFormat(order.RGBA, kind.UNSIGNED_INT8), cl.ImageFormat(order.R, kind.FLOAT)

pytestmark = pytest.mark.skipif(not _cpython.can_watch_arrays, reason="the class of an array cannot be changed here")


def use(queue, image, origin, region, shape, dtype, strides=None) -> list[str]:
    """Map a region with these strides ("row", "slice": its pitches), use it; return the kinds of what is found."""
    with cml.sanitize(hazards=False) as sanitizer:
        array, _, row, slice_ = cl.enqueue_map_image(queue, image, mapf.READ, origin, region, shape, dtype)
        array.base.release(queue)
        del array
        if strides is not None:
            words = {"row": row, "slice": slice_, "row/2": row // 2, "slice/2": slice_ // 2}
            strides = tuple([words.get(one, one) for one in strides])
        array, *_ = cl.enqueue_map_image(queue, image, mapf.READ, origin, region, shape, dtype, strides=strides)
        array.tobytes()  # its content is nobody's: no arithmetic
        array.base.release(queue)
        del array
        queue.finish()
    return [one.kind for one in sanitizer.findings]


@pytest.fixture
def colours(context: cl.Context) -> cl.Image:
    return cl.create_image(context, mf.READ_WRITE, RGBA8, shape=(64, 32))


@pytest.fixture
def greys(context: cl.Context) -> cl.Image:
    return cl.create_image(context, mf.READ_WRITE, R32F, shape=(64, 32))


@pytest.fixture
def volume(context: cl.Context) -> cl.Image:
    return cl.create_image(context, mf.READ_WRITE, RGBA8, shape=(64, 32, 4))


def test_a_last_axis_of_channels_is_no_axis_of_pixels(queue, colours) -> None:
    assert use(queue, colours, (0, 0), (64, 32), (32, 64, 4), np.uint8, ("row", 4, 1)) == []
    assert use(queue, colours, (8, 4), (16, 8), (8, 16, 4), np.uint8, ("row", 4, 1)) == []
    assert use(queue, colours, (8, 4), (16, 8), (8, 16, 4), np.uint8, ("row/2", 4, 1)) == ["wrong_map_strides"]
    assert use(queue, colours, (8, 4), (16, 4), (4, 16, 4), np.uint8, ("row/2", 4, 1)) == ["wrong_map_strides"]
    assert use(queue, colours, (8, 4), (16, 8), (8, 64), np.uint8, ("row", 1)) == []


def test_the_first_axis_may_go_along_the_row(queue, greys) -> None:
    assert use(queue, greys, (8, 4), (16, 8), (16, 8), np.float32, (4, "row")) == []
    assert use(queue, greys, (8, 4), (16, 16), (16, 16), np.float32, (4, "row")) == []
    assert use(queue, greys, (8, 4), (16, 16), (16, 16), np.float32, ("row", 4)) == []
    assert use(queue, greys, (8, 4), (16, 8), (16, 8), np.float32, (4, "row/2")) == ["wrong_map_strides"]
    assert use(queue, greys, (8, 4), (16, 16), (16, 16), np.float32, ("row/2", 4)) == ["wrong_map_strides"]


def test_slices_and_rows_of_length_one_count_as_what_they_are(queue, greys, volume) -> None:
    assert use(queue, greys, (8, 4), (16, 1), (1, 16), np.float32) == []
    assert use(queue, greys, (8, 4), (1, 8), (8, 1), np.float32, ("row", 4)) == []
    assert use(queue, greys, (8, 4), (16, 8), (1, 8, 16), np.float32, ("row", "row", 4)) == []
    args = queue, volume, (8, 4, 1), (16, 8, 2)
    assert use(*args, (2, 8, 16, 4), np.uint8, ("slice", "row", 4, 1)) == []
    assert use(*args, (4, 16, 8, 2), np.uint8, (1, 4, "row", "slice")) == []
    assert use(*args, (2, 8, 16, 4), np.uint8, ("slice/2", "row", 4, 1)) == ["wrong_map_strides"]
    assert use(*args, (2, 8, 16, 4), np.uint8, ("slice", "row/2", 4, 1)) == ["wrong_map_strides"]


def test_a_line_of_pixels_has_no_pitch(context, queue) -> None:
    line = cl.create_image(context, mf.READ_WRITE, RGBA8, shape=(64,))
    assert use(queue, line, (8,), (16,), (16, 4), np.uint8) == []
    assert use(queue, line, (8,), (16,), (4, 16), np.uint8, (1, 4)) == []


@pytest.fixture
def stale(context, queue) -> Iterator[np.ndarray]:
    """The array of a map that was released, while a sanitizer looks; the memory is there still."""
    buffer = cl.Buffer(context, mf.READ_WRITE, 64)
    cl.enqueue_fill_buffer(queue, buffer, np.int32(5), 0, 64).wait()
    with cml.sanitize(hazards=False) as sanitizer:
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ | mapf.WRITE, 0, (16,), np.int32)
        array.base.release(queue).wait()
        yield array
        assert {one.kind for one in sanitizer.findings} == {"stale_map_array"}
    assert type(array) is np.ndarray


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_the_array_of_a_released_map_can_be_pickled(stale, protocol) -> None:
    again = pickle.loads(pickle.dumps(stale, protocol))
    assert type(again) is np.ndarray
    assert np.array_equal(again, [5] * 16)


def test_the_array_of_a_map_that_is_waited_for_can_be_pickled(context, queue) -> None:
    buffer = cl.Buffer(context, mf.READ_WRITE, 64)
    with cml.sanitize(hazards=False) as sanitizer:
        array, event = cl.enqueue_map_buffer(queue, buffer, mapf.READ, 0, (16,), np.int32, is_blocking=False)
        view = array.view(np.uint8)
        event.wait()
        assert pickle.loads(pickle.dumps(array)).shape == (16,)
        assert pickle.loads(pickle.dumps(view)).shape == (64,)
        array.base.release(queue).wait()
    assert sanitizer.findings == ()


def test_a_function_of_many_results_gives_back_the_callers_arrays(stale) -> None:
    other = np.empty_like(stale)
    quotient, rest = np.divmod(stale, 3, out=(stale, other))
    assert quotient is stale
    assert rest is other
    quotient, rest = np.divmod(stale, 1, out=(None, stale))
    assert type(quotient) is np.ndarray
    assert rest is stale
    assert np.add(other, 1, out=stale) is stale
    assert np.add.reduce(stale[None], axis=0, out=stale) is stale
    assert np.add.at(stale, [0, 0], 1) is None
    assert stale[:2].tolist() == [5, 3]
    assert np.add(other, 1, out=other, where=np.greater(stale, 0)) is other


def test_what_comes_of_a_watched_array_is_plain(stale) -> None:
    made = [stale[1:3], stale.copy(), copy.copy(stale), copy.deepcopy(stale), stale.T, stale.reshape(4, 4)]
    made += [stale.astype(np.int64), np.zeros_like(stale), np.copy(stale, subok=True), stale.view(np.ndarray)]
    made += [np.concatenate([stale, stale]), stale.ravel(), stale[stale > 0], stale[[0, 1]], np.sort(stale)]
    assert {type(one) for one in made} == {np.ndarray}
    assert made[0].tolist() == [5, 5]


def test_a_view_of_a_stale_array_is_stale(context, queue) -> None:
    buffer = cl.Buffer(context, mf.READ_WRITE, 64)
    with cml.sanitize(hazards=False) as sanitizer:
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ, 0, (16,), np.int32)
        array.base.release(queue).wait()
        view = array.view(np.uint8)
        assert sanitizer.findings == ()
        assert view.sum() >= 0
    assert [one.kind for one in sanitizer.findings] == ["stale_map_array"]
    assert type(view) is np.ndarray
