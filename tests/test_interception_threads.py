"""`sanitize` in programs of many threads: nothing of it fails where other threads make, map and release."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife.diagnostics.interception import _install

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
