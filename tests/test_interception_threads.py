"""`sanitize` in programs of many threads: nothing of it fails where other threads make, map and release."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife.diagnostics import interception
from clmemlife.diagnostics.interception import _install, _mapped

mf, mapf = cl.mem_flags, cl.map_flags


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Have threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(count: int, work: Callable[[], object]) -> list[Exception]:
    """Run `work` in threads at the same time; return what they raised."""
    errors: list[Exception] = []

    def one() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_that_keep_the_arrays_of_their_maps_go_on(context) -> None:
    def work() -> None:
        queue, kept = cl.CommandQueue(context), []
        buffer = cl.Buffer(context, mf.READ_WRITE, 64)
        for _ in range(200):
            array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ, 0, (16,), np.int32)
            array.base.release()
            kept.append(array)
        queue.finish()

    with cml.sanitize(hazards=False) as sanitizer:
        errors = together(8, work)
    assert errors == []
    assert sanitizer.findings == ()


@pytest.mark.parametrize("shared", [False, True])
def test_no_map_is_lost_or_left_where_threads_map_and_release_the_same_buffer(context, queue, shared) -> None:
    buffer = cl.Buffer(context, mf.READ_WRITE, 16 * 64)
    places = iter(range(16))

    def work() -> None:
        own, place = queue if shared else cl.CommandQueue(context), 64 * next(places)
        for _ in range(100):
            array, _ = cl.enqueue_map_buffer(own, buffer, mapf.WRITE, place, (16,), np.int32)
            number = _mapped.mapped_by(array.base).number
            if not any(one.number == number for one in _mapped.open_maps[root]):
                raise AssertionError("an open map is not known")
            array.base.release(own)
        own.finish()

    with cml.sanitize(hazards=False) as sanitizer:
        kept, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ, 0, (1,), np.int32)
        (root,) = _mapped.open_maps
        kept.base.release(queue).wait()
        assert together(16, work) == []
        assert _mapped.open_maps == {}
        assert _mapped.everything == {}
    assert sanitizer.findings == ()


def test_a_sanitizer_ends_while_other_threads_make_and_map_buffers(context) -> None:
    done = threading.Event()

    def work() -> None:
        queue = cl.CommandQueue(context)
        while not done.is_set():
            buffers = [cl.Buffer(context, mf.READ_WRITE, 64) for _ in range(20)]
            arrays = [cl.enqueue_map_buffer(queue, one, mapf.READ, 0, (8,), np.int32)[0] for one in buffers]
            for array in arrays:
                array.base.release()
            cl.MemoryObject.from_int_ptr(buffers[0].int_ptr, retain=True)
        queue.finish()

    def judge() -> None:
        try:
            for _ in range(3):
                with cml.sanitize(hazards=False) as sanitizer:
                    kept = [cl.Buffer(context, mf.READ_WRITE, 64) for _ in range(500)]
                    assert len(sanitizer.leaks) <= 1000
                    del kept
        finally:
            done.set()

    roles = iter((judge, work, work))
    assert together(3, lambda: next(roles)()) == []
    assert _install._users == 0


def test_pyopencl_is_put_back_if_the_judgement_fails(monkeypatch) -> None:
    plain = cl.Buffer.get_sub_region

    def fail(*_: object) -> None:
        raise RuntimeError("no judgement")

    sanitizer = cml.sanitize()
    monkeypatch.setattr(interception, "leaked", fail)
    sanitizer.start()
    with pytest.raises(RuntimeError, match="no judgement"):
        sanitizer.stop()
    assert cl.Buffer.get_sub_region is plain
    assert _install._users == 0
    sanitizer.stop()


def test_two_threads_may_stop_the_same_sanitizer() -> None:
    plain = cl.Buffer.get_sub_region
    for _ in range(5):
        sanitizer = cml.sanitize()
        sanitizer.start()
        assert together(4, sanitizer.stop) == []
        assert _install._users == 0
    with cml.sanitize():
        assert cl.Buffer.get_sub_region is not plain
    assert cl.Buffer.get_sub_region is plain
