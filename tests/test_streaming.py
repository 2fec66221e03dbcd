"""Streams of chunks give NumPy's results in order, in bounded memory, and end without a trace however they end."""

from __future__ import annotations

import gc
import io
import itertools
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clmemlife as cml
from clmemlife import (
    ContextMismatchError,
    DependencyError,
    In,
    InOut,
    Out,
    UnorderedAccessError,
    _chunks,
    _journal,
    _opencl,
)

SOURCE = """
__kernel void blend(__global const uchar *x, __global uchar *y) { y[get_global_id(0)] = x[get_global_id(0)] * 3 + 1; }
__kernel void blend_here(__global uchar *x) { x[get_global_id(0)] = x[get_global_id(0)] * 3 + 1; }
__kernel void total(__global const uchar *x, uint n, __global uint *y) {
  uint s = 0;
  for (uint i = 0; i < n; ++i) s += x[i];
  y[0] = s; y[1] = n;
}
"""
OUT_OF_ORDER = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


@pytest.fixture(scope="module")
def kernels(context):
    program = cl.Program(context, SOURCE).build()
    return {name: cl.Kernel(program, name) for name in ("blend", "blend_here", "total")}


@pytest.fixture(scope="module")
def queues(context, devices):
    """Three queues of each device, in order."""
    return [cl.CommandQueue(context, device) for device in (devices[0], devices[-1]) for _ in range(3)]


@pytest.fixture
def mix(kernels):
    def launch(slot, wait_for):
        if slot.input is slot.output:
            uses = [InOut(slot.input, 0, slot.input_bytes)]
        else:
            uses = [In(slot.input, 0, slot.input_bytes), Out(slot.output, 0, slot.input_bytes)]
        kernel = kernels["blend" if len(uses) == 2 else "blend_here"]
        return cml.enqueue_kernel(slot.queue, kernel, (slot.input_bytes,), None, *uses, wait_for=wait_for)

    return launch


@pytest.fixture(autouse=True)
def nothing_of_the_stream_left(context, wait):
    yield
    gc.collect()
    cml.staging(context).trim()
    wait(lambda: cml.statistics().staging_bytes == 0, "all pinned memory is given back")


def mixed(data: np.ndarray) -> np.ndarray:
    return (data.view(np.uint8) * np.uint8(3) + np.uint8(1)).reshape(-1)


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# -- results -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=14),
    depth=st.integers(1, 4),
    spread=st.sampled_from([(0,), (0, 1), (0, 1, 2), (0, 3), (0, 1, 3, 4), (0, 1, 2, 3, 4, 5)]),
    deal=st.sampled_from(["round_robin", "load"]),
    in_place=st.booleans(),
    out_of_order=st.booleans(),
)
def test_results_are_numpy_s_in_order(context, queues, mix, sizes, depth, spread, deal, in_place, out_of_order):
    chosen = [queues[number] for number in spread]
    if out_of_order:
        chosen = [cl.CommandQueue(context, queue.device, OUT_OF_ORDER) for queue in chosen]
    chunks = [noise(size, number) for number, size in enumerate(sizes)]
    with cml.check_hazards():
        stream = cml.stream_chunks(
            chunks, mix, queues=chosen, depth=depth, chunk_bytes=3000, deal=deal, in_place=in_place
        )
        results = list(stream)
    assert len(results) == len(chunks)
    for result, chunk in zip(results, chunks, strict=True):
        assert np.array_equal(result, mixed(chunk))
    assert cml.live() == ()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 9),
    depth=st.integers(1, 3),
    lanes=st.sampled_from([1, 2]),
    fails=st.integers(0, 10),
    where=st.sampled_from(["producer", "launch", "after the launch", "size", "kernel", "consumer"]),
)
def test_whatever_fails_ends_the_stream_after_the_results_before(
    context, queues, mix, count, depth, lanes, fails, where
):
    class Planned(Exception):
        pass

    def producer():
        for number in range(count):
            if where == "producer" and number == fails:
                raise Planned
            yield noise(4000 if where == "size" and number == fails else 1000, number)

    def launch(slot, wait_for):
        if slot.index == fails and where == "launch":
            raise Planned
        if slot.index == fails and where == "kernel":
            gate = cl.UserEvent(context)
            gate.set_status(-5)
            return gate
        done = mix(slot, wait_for)
        if slot.index == fails and where == "after the launch":
            raise Planned
        return done

    got = []
    failed = fails < count
    with cml.check_hazards():
        stream = cml.stream_chunks(producer(), launch, queues=queues[: 3 * lanes], depth=depth, chunk_bytes=1000)
        raised = None
        try:
            for result in stream:
                assert np.array_equal(result, mixed(noise(1000, len(got))))
                if where == "consumer" and len(got) == fails:
                    raise Planned
                got.append(None)
        except (Planned, ValueError, DependencyError) as error:
            raised = error
        assert failed == (raised is not None)
        if failed:
            assert len(got) == fails
        if failed and where != "consumer":
            assert stream.failed is not None
            steps = {"size": "producer", "kernel": "launch", "after the launch": "launch"}
            assert stream.failed == (fails, steps.get(where, where))
            assert f"in chunk {fails} of stream_chunks: {stream.failed[1]}" in raised.__notes__
        result = raised = stream = None
    gc.collect()
    assert cml.live() == ()


def test_a_failing_kernel_is_told_apart_from_a_failing_copy(context, queues, mix):
    broken = cl.UserEvent(context)

    def launch(slot, wait_for):
        return mix(slot, [wait_for, broken]) if slot.index == 1 else mix(slot, wait_for)

    stream = cml.stream_chunks([noise(10)] * 3, launch, queues=queues[:3])
    next(stream)
    broken.set_status(-5)
    with pytest.raises(DependencyError, match="the launch of chunk 1 failed"):
        next(stream)
    assert stream.failed == (1, "launch")
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("where", ["producer", "fill", "launch", "after the launch", "consumer"])
def test_an_interrupt_ends_the_stream_and_leaves_nothing(queues, mix, where):
    def fill(memory):
        if where == "fill" and len(seen) == 4:
            raise KeyboardInterrupt
        memory[:] = 1

    def producer():
        for number in range(9):
            seen.append(number)
            if where == "producer" and number == 4:
                raise KeyboardInterrupt
            yield fill

    def launch(slot, wait_for):
        if where == "launch" and slot.index == 4:
            raise KeyboardInterrupt
        done = mix(slot, wait_for)
        if where == "after the launch" and slot.index == 4:
            raise KeyboardInterrupt
        return done

    seen: list[int] = []
    result = None
    stream = cml.stream_chunks(producer(), launch, queues=queues[:3], chunk_bytes=100)
    with pytest.raises(KeyboardInterrupt):
        for number, result in enumerate(stream):
            assert result.tolist() == [4] * 100
            if where == "consumer" and number == 4:
                raise KeyboardInterrupt
    del result, stream
    gc.collect()
    assert cml.live() == ()


@pytest.mark.parametrize("step", ["copy in", "launch"])
@pytest.mark.parametrize("deal", ["round_robin", "load"])
def test_what_has_failed_when_the_next_step_is_enqueued_is_told_by_its_own_name(
    context, queues, mix, monkeypatch, step, deal
):
    real = _chunks.transfer

    def broken() -> cl.Event:
        event = cl.UserEvent(context)
        event.set_status(-5)
        return event

    def transfer(*args, to_device):
        event = real(*args, to_device=to_device)
        return broken() if step == "copy in" and to_device else event

    def launch(slot, wait_for):
        return broken() if step == "launch" else mix(slot, wait_for)

    monkeypatch.setattr(_chunks, "transfer", transfer)
    stream = cml.stream_chunks([noise(10)] * 3, launch, queues=queues, deal=deal)
    with pytest.raises(DependencyError, match=f"the {step} of chunk 0 failed with .*-5") as caught:
        next(stream)
    assert stream.failed == (0, step)
    assert f"in chunk 0 of stream_chunks: {step}" in caught.value.__notes__


def test_what_launch_adds_to_its_wait_list_is_checked(context, queues, mix):
    broken = cl.UserEvent(context)
    broken.set_status(-5)

    def launch(slot, wait_for):
        if slot.index == 1:
            wait_for.append(broken)
        return mix(slot, wait_for)

    stream = cml.stream_chunks([noise(10)] * 2, launch, queues=queues[:3], depth=1)
    assert np.array_equal(next(stream), mixed(noise(10)))
    with pytest.raises(DependencyError, match="an event in wait_for has failed"):
        next(stream)
    assert stream.failed == (1, "launch")


def test_every_queue_of_the_stream_is_flushed_for_each_chunk(queues, mix, monkeypatch):
    flushed = []
    real = _opencl.flush
    monkeypatch.setattr(_opencl, "flush", lambda queue: (flushed.append(queue), real(queue)))
    stream = cml.stream_chunks([noise(10)] * 3, mix, queues=queues[:3])
    next(stream)
    assert all(flushed.count(one) >= 3 for one in (queues[0], queues[2]))
    flushed.clear()
    next(cml.stream_chunks([noise(10)] * 3, mix, queues=queues[:3], output_bytes=0))
    assert flushed.count(queues[1]) >= 3


def test_no_memory_for_the_slots_is_told_as_that(queues, mix, monkeypatch):
    def no_memory(*arguments, **keywords):
        raise MemoryError

    monkeypatch.setattr(_chunks.MemHandle, "create_buffer", no_memory)
    stream = cml.stream_chunks([noise(10)], mix, queues=queues[:3])
    with pytest.raises(MemoryError):
        next(stream)
    assert stream.failed == (0, "memory")


def test_results_keep_shape_and_dtype_of_their_chunk(queues, mix):
    chunks = [np.arange(12, dtype=np.int16).reshape(3, 4), np.arange(2.0), np.float32(1.5)]
    found = list(cml.stream_chunks(chunks, mix, queues=queues[0], chunk_bytes=64))
    assert [(one.shape, one.dtype) for one in found] == [((3, 4), np.int16), ((2,), np.float64), ((), np.float32)]


def test_chunks_need_not_be_contiguous(queues, mix):
    chunk = noise(400).reshape(20, 20)[::2, ::3]
    (found,) = cml.stream_chunks([chunk], mix, queues=queues[0])
    assert np.array_equal(found, chunk * np.uint8(3) + np.uint8(1))


def test_results_can_be_of_another_size_and_type(queues, kernels):
    def launch(slot, wait_for):
        return cml.enqueue_kernel(
            slot.queue, kernels["total"], (1,), None, In(slot.input, 0, slot.input_bytes), np.uint32(slot.input_bytes),
            Out(slot.output), wait_for=wait_for,
        )  # fmt: skip

    data = noise(10_001)
    with cml.check_hazards():
        stream = cml.stream_chunks(
            data, launch, queues=queues[:3], chunk_bytes=1000, output_bytes=8, output_dtype=np.uint32
        )
        found = np.array(list(stream))
    assert found.tolist() == [[data[k : k + 1000].sum(), min(1000, 10_001 - k)] for k in range(0, 10_001, 1000)]


def test_launch_may_lower_what_is_copied_out(queues, mix):
    def launch(slot, wait_for):
        slot.output_bytes = slot.index
        return mix(slot, wait_for)

    found = list(cml.stream_chunks([noise(100)] * 4, launch, queues=queues[:3]))
    assert [one.size for one in found] == [0, 1, 2, 3]
    assert np.array_equal(found[3], mixed(noise(100)[:3]))


def test_with_no_output_the_results_are_empty_and_the_kernels_are_done(context, queues, kernels):
    with cml.MemHandle.create_buffer(context, 64, label="sums") as sums:
        cml.enqueue_fill(queues[0], sums, np.uint32(0)).wait()
        done = []

        def launch(slot, wait_for):
            done.append(
                cml.enqueue_kernel(
                    slot.queue, kernels["total"], (1,), None, In(slot.input), np.uint32(slot.input_bytes),
                    InOut(sums), wait_for=wait_for,
                )
            )  # fmt: skip
            return done[-1]

        with cml.check_hazards():
            found = list(cml.stream_chunks([noise(100)] * 5, launch, queues=queues[:3], output_bytes=0))
        assert [one.size for one in found] == [0] * 5
        assert all(one.command_execution_status == 0 for one in done)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 5001])
def test_arrays_files_and_functions_are_cut_and_filled(tmp_path, queues, mix, size):
    data = noise(size)
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    sources = [data, io.BytesIO(data.tobytes())]
    if size:
        sources.append(np.memmap(path, np.uint8, "r"))
    with path.open("rb") as file, path.open("rb", buffering=0) as raw:
        sources += [file, itertools.repeat(raw.readinto)]
        for source in sources:
            found = [one.copy() for one in cml.stream_chunks(source, mix, queues=queues[:3], chunk_bytes=1000)]
            assert np.array_equal(np.concatenate([np.empty(0, np.uint8), *found]), mixed(data))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    elements=st.integers(0, 5000),
    dtype=st.sampled_from(["u1", "<i2", "<f4", "<c16"]),
    room=st.integers(16, 4000),
    depth=st.integers(1, 5),
    offset=st.integers(0, 100),
    source=st.sampled_from(["array", "memory map", "file", "raw file"]),
)
def test_whatever_is_cut_is_numpy_s(tmp_path_factory, queues, mix, elements, dtype, room, depth, offset, source):
    data = noise(elements * np.dtype(dtype).itemsize, offset).view(dtype)
    path = tmp_path_factory.mktemp("cut") / "data"
    path.write_bytes(bytes(offset) + data.tobytes())
    with path.open("rb", buffering=0 if source == "raw file" else -1) as file, cml.check_hazards():
        file.seek(offset)
        given_ = {"array": data, "file": file, "raw file": file}.get(source)
        if given_ is None:
            given_ = np.memmap(path, dtype, "r", offset) if elements else data
        found = [
            one.reshape(-1).view(np.uint8).copy()
            for one in cml.stream_chunks(given_, mix, queues=queues[:3], depth=depth, chunk_bytes=room)
        ]
    assert all(one.nbytes <= room for one in found)
    assert np.array_equal(np.concatenate([np.empty(0, np.uint8), *found]), mixed(data))
    assert cml.live() == ()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.one_of(st.just(0), st.integers(1, 3500)), max_size=5), depth=st.integers(1, 3), room=st.just(1000)
)
def test_files_and_arrays_may_be_mixed(queues, mix, sizes, depth, room):
    parts = [noise(size, number) for number, size in enumerate(sizes)]
    chunks = [part[:room] if number % 3 == 2 else io.BytesIO(part.tobytes()) for number, part in enumerate(parts)]
    parts = [part[:room] if number % 3 == 2 else part for number, part in enumerate(parts)]
    with cml.check_hazards():
        found = [one.copy() for one in cml.stream_chunks(chunks, mix, queues=queues[:3], depth=depth, chunk_bytes=room)]
    nothing = np.empty(0, np.uint8)
    assert np.array_equal(np.concatenate([nothing, *found]), mixed(np.concatenate([nothing, *parts])))


def test_a_thousand_empty_files_are_nothing(queues, mix):
    files = [io.BytesIO() for _ in range(2000)]
    (found,) = cml.stream_chunks([*files, io.BytesIO(b"\1"), *files], mix, queues=queues[:3], chunk_bytes=10)
    assert found.tolist() == [4]


def test_a_memory_map_is_cut_as_an_array_is(tmp_path, queues, mix):
    path = tmp_path / "data"
    path.write_bytes(noise(2500).tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        found = [one.copy() for one in cml.stream_chunks(memory, mix, queues=queues[:3], chunk_bytes=1000)]
        assert [one.size for one in found] == [1000, 1000, 500]
        assert np.array_equal(np.concatenate(found), mixed(noise(2500)))


def test_a_file_that_has_nothing_yet_is_an_error_and_no_chunk(queues, mix):
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(reader, "rb", buffering=0) as file, open(writer, "wb", buffering=0) as source:
        source.write(b"\1")
        stream = cml.stream_chunks(file, mix, queues=queues[:3], chunk_bytes=10)
        assert next(stream).tolist() == [4]
        with pytest.raises(BlockingIOError):
            next(stream)
    assert stream.failed == (1, "producer")


def test_a_progress_bar_goes_around_it_as_around_any_iterable(queues, mix):
    tqdm = pytest.importorskip("tqdm").tqdm
    shown = io.StringIO()
    chunks = [noise(100, number) for number in range(5)]
    found = list(tqdm(cml.stream_chunks(tqdm(chunks, file=shown), mix, queues=queues[:3]), file=shown, total=5))
    assert all(np.array_equal(one, mixed(chunk)) for one, chunk in zip(found, chunks, strict=True))
    assert shown.getvalue().count("5/5") >= 2


def test_a_function_that_returns_nothing_has_filled_everything(queues, mix):
    def fill(memory):
        memory[:] = 5

    (found,) = cml.stream_chunks([fill], mix, queues=queues[:3], chunk_bytes=30)
    assert found.tolist() == [16] * 30


def test_bytes_are_chunks_too(queues, mix):
    (found,) = cml.stream_chunks([b"\x01\x02"], mix, queues=queues[:3])
    assert found.tolist() == [4, 7]


def test_a_result_stays_valid_for_as_long_as_it_is_held(queues, mix):
    stream = cml.stream_chunks((noise(1000, number) for number in range(30)), mix, queues=queues[:3])
    kept = list(stream)
    del stream
    gc.collect()
    for number, one in enumerate(kept):
        assert np.array_equal(one, mixed(noise(1000, number)))


# -- memory and time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "lanes"), [(1, 1), (3, 1), pytest.param(2, 2, marks=pytest.mark.needs_two_devices)])
def test_memory_is_that_of_the_chunks_in_flight_however_long_the_stream(context, queues, mix, depth, lanes):
    size = 1 << 16
    cml.staging(context).trim()
    with cml.track("record") as tracked:
        stream = cml.stream_chunks(
            itertools.repeat(lambda memory: None, 300), mix, queues=queues[: 3 * lanes], depth=depth, chunk_bytes=size
        )
        pinned = [cml.statistics().staging_bytes for _ in stream]
    assert len(pinned) == 300
    assert tracked.peak_bytes == 2 * depth * lanes * size
    assert max(pinned) <= (2 * depth * lanes + 2) * size


def test_a_stream_of_20_gib_needs_the_memory_of_the_chunks_in_flight(context, queues, kernels):
    size, count, depth = 16 << 20, 1280, 3
    cml.staging(context).trim()

    def launch(slot, wait_for):
        return cml.enqueue_kernel(
            slot.queue, kernels["total"], (1,), None, In(slot.input, 0, 4), np.uint32(4), Out(slot.output, 0, 8),
            wait_for=wait_for,
        )  # fmt: skip

    def fill(memory):
        memory[:4] = 1, 2, 3, 4

    done, pinned = 0, 0
    with cml.track("record") as tracked:
        for result in cml.stream_chunks(
            itertools.repeat(fill, count), launch, queues=queues[:3], depth=depth, chunk_bytes=size, output_bytes=8
        ):
            assert result.view(np.uint32).tolist() == [10, 4]
            pinned = max(pinned, cml.statistics().staging_bytes)
            done += size
    assert done == 20 << 30
    assert tracked.peak_bytes == depth * (size + 8)
    assert pinned <= depth * size + (depth + 2) * (1 << 16)


@pytest.mark.needs_two_devices
@pytest.mark.parametrize("deal", ["load", "round_robin"])
def test_chunks_are_dealt_in_turn_or_to_the_device_with_the_least_to_do(context, queues, mix, gate, deal):
    where = {}

    def producer():
        for number in range(5):
            if number == 4:  # the second device has nothing to do, the first has chunk 2
                for queue in queues[3:]:
                    queue.finish()
            yield noise(100, number)

    def launch(slot, wait_for):
        where[slot.index] = slot.queue.device
        return mix(slot, [wait_for, gate] if slot.index == 2 else wait_for)

    stream = cml.stream_chunks(producer(), launch, queues=queues, depth=2, deal=deal)
    found = [next(stream), next(stream)]
    assert where[4] == queues[0 if deal == "round_robin" else 3].device
    gate.set_status(cl.command_execution_status.COMPLETE)
    for number, one in enumerate([*found, *stream]):
        assert np.array_equal(one, mixed(noise(100, number)))


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_producer_is_asked_for_no_more_than_is_in_flight(queues, mix, lanes):
    taken = []

    def producer():
        for number in range(20):
            taken.append(number)
            yield noise(100, number)

    stream = cml.stream_chunks(producer(), mix, queues=queues[: 3 * lanes], depth=3)
    assert taken == []
    for number, _ in enumerate(stream):
        assert len(taken) <= number + 1 + 3 * lanes
    assert len(taken) == 20


def test_entering_the_stream_makes_its_memory_and_leaving_it_gives_it_back(queues, mix):
    with cml.stream_chunks([noise(100)], mix, queues=queues[:3], depth=2, chunk_bytes=100) as stream:
        assert sorted(one.label for one in cml.live()) == ["stream input"] * 2 + ["stream output"] * 2
        assert {one.site.rpartition(":")[0] for one in cml.live()} == {__file__}
    assert cml.live() == ()
    assert list(stream) == []


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_a_stream_that_is_left_early_leaves_nothing(queues, mix, how):
    closed = []

    def producer():
        try:
            for number in itertools.count():
                yield noise(1000, number)
        finally:
            closed.append(True)

    stream = cml.stream_chunks(producer(), mix, queues=queues[:3])
    assert np.array_equal(next(stream), mixed(noise(1000)))
    assert len(cml.live()) == 6
    if how == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            next(stream)
    del stream
    assert cml.live() == ()
    assert closed == [True]


def test_leaving_early_does_not_wait_for_commands(context, queues, mix):
    gate = cl.UserEvent(context)
    away = [cl.CommandQueue(context, queues[0].device) for _ in range(3)]

    def launch(slot, wait_for):
        return mix(slot, [wait_for, gate] if slot.index else wait_for)

    stream = cml.stream_chunks([noise(100)] * 3, launch, queues=away)
    next(stream)
    stream.close()
    assert cml.live() == ()
    assert cml.statistics().pending_bytes > 0
    gate.set_status(cl.command_execution_status.COMPLETE)
    for queue in away:
        queue.finish()


def test_the_first_commands_wait_for_the_wait_list(context, queues, mix, wait):
    gate = cl.UserEvent(context)
    enqueued = []

    def launch(slot, wait_for):
        enqueued.append(mix(slot, wait_for))
        return enqueued[-1]

    found = []
    work = threading.Thread(
        target=lambda: found.extend(cml.stream_chunks([noise(10)], launch, queues=queues[:3], wait_for=gate))
    )
    work.start()
    wait(lambda: enqueued, "the kernel is enqueued")
    assert enqueued[0].command_execution_status > 0
    gate.set_status(cl.command_execution_status.COMPLETE)
    work.join(20)
    assert np.array_equal(found[0], mixed(noise(10)))


def test_streams_run_in_several_threads_at_once(context, devices, mix):
    wrong = []

    def work(seed: int) -> None:
        own = [cl.CommandQueue(context, devices[seed % len(devices)]) for _ in range(3)]
        for number, one in enumerate(cml.stream_chunks((noise(999, seed + k) for k in range(20)), mix, queues=own)):
            if not np.array_equal(one, mixed(noise(999, seed + number))):
                wrong.append((seed, number))

    threads = [threading.Thread(target=work, args=(100 * seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


# -- the plan ----------------------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self) -> None:
        self.commands: list[_journal.Command] = []

    def before(self, command):
        pass

    def after(self, command):
        self.commands.append(command)

    def abandoned(self, command):
        pass

    def host(self, record):
        pass


@pytest.mark.parametrize("in_place", [False, True])
def test_the_plan_says_what_the_commands_wait_for(queues, mix, in_place):
    stream = cml.stream_chunks([noise(100)] * 8, mix, queues=queues[:3], in_place=in_place)
    recorder = Recorder()
    _journal.subscribe(recorder)
    try:
        list(stream)
    finally:
        _journal.unsubscribe(recorder)
    names, said = {}, {}
    for number, command in enumerate(one for one in recorder.commands if one.kind != "migrate"):
        chunk, step = divmod(number, 3)
        step = ("copy in", "launch", "copy out")[step]
        names[command.event] = step, chunk
        waits = [(name, before - chunk) for name, before in (names.get(one, ("", 0)) for one in command.waits) if name]
        said[step, chunk] = ", ".join(f"{name} k-{-back}" if back else f"{name} k" for name, back in waits)
    plan = stream.plan()
    for step in ("copy in", "launch", "copy out"):
        assert f"wait_for=[{said[step, 6]}]" in next(line for line in plan.splitlines() if f"  {step} k" in line)


@pytest.mark.needs_two_devices
def test_the_plan_of_several_devices_has_them_all(queues, mix):
    plan = cml.stream_chunks([], mix, queues=queues, depth=2).plan()
    assert "k % 2 == 0" in plan
    assert "k % 2 == 1" in plan
    assert "copy out k-4" in plan
    by_load = cml.stream_chunks([], mix, queues=queues, deal="load", output_bytes=0).plan()
    assert "the slot's last chunk" in by_load
    assert "copy out" not in by_load


@pytest.mark.unordered("the event is left out")
def test_a_launch_that_ignores_its_wait_list_is_found(queues, kernels):
    def launch(slot, wait_for):
        return cml.enqueue_kernel(
            slot.queue, kernels["blend"], (slot.input_bytes,), None, In(slot.input), Out(slot.output)
        )

    with cml.check_hazards(), pytest.raises(UnorderedAccessError) as caught:
        list(cml.stream_chunks([noise(100)] * 2, launch, queues=queues[:3]))
    assert "in chunk 0 of stream_chunks: launch" in caught.value.__notes__


@pytest.mark.unordered("the event is left out")
def test_a_stream_that_let_chunks_overtake_each_other_would_be_found(queues, mix, monkeypatch):
    real = _chunks.transfer

    def careless(*args, to_device):
        return real(*args[:-1], None if to_device else args[-1], to_device=to_device)

    monkeypatch.setattr(_chunks, "transfer", careless)
    monkeypatch.setattr(_chunks.Run, "_finish", lambda self, flight, number: np.empty(0))
    with cml.check_hazards("record") as checker:
        list(cml.stream_chunks([noise(100)] * 8, mix, queues=queues[:3]))
    assert "stream input" in {finding.label for finding in checker.findings}


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"queues": []}, ValueError, "at least one queue"),
        ({"queues": [1]}, TypeError, "CommandQueue"),
        ({"launch": None}, TypeError, "callable"),
        ({"depth": 0}, ValueError, "depth"),
        ({"depth": 1.5}, TypeError, "int"),
        ({"chunk_bytes": 0}, ValueError, "chunk_bytes"),
        ({"output_bytes": -1}, ValueError, "output_bytes"),
        ({"output_bytes": 4, "in_place": True}, ValueError, "in place"),
        ({"deal": "cards"}, ValueError, "deal"),
        ({"chunks": b"abc"}, TypeError, "iterable of arrays"),
        ({"chunks": 5}, TypeError, "iterable"),
        ({"chunks": np.zeros(5)}, ValueError, "chunk_bytes"),
        ({"chunks": np.zeros((4, 4))[:, 1], "chunk_bytes": 8}, ValueError, "contiguous"),
        ({"chunks": np.zeros(4), "chunk_bytes": 7}, ValueError, "8 bytes of an element"),
        ({"wait_for": 5}, TypeError, "wait_for"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_once(queues, mix, wrong, error, words):
    arguments = {"chunks": [], "launch": mix, "queues": queues[:3], **wrong}
    with pytest.raises(error, match=words):
        cml.stream_chunks(arguments.pop("chunks"), arguments.pop("launch"), **arguments)


def test_queues_of_two_contexts_are_refused(devices, queues, mix):
    with pytest.raises(ContextMismatchError):
        cml.stream_chunks([], mix, queues=[queues[0], cl.CommandQueue(cl.Context(devices[:1]))])


@pytest.mark.parametrize(
    ("chunk", "options", "error", "words"),
    [
        ([1, 2], {}, TypeError, "a chunk must be an array"),
        (np.array([object()]), {}, TypeError, "Python objects"),
        (lambda memory: 11, {"chunk_bytes": 10}, ValueError, "a chunk of 11 bytes"),
        (lambda memory: -1, {"chunk_bytes": 10}, ValueError, "a chunk of -1 bytes"),
        (lambda memory: 1, {}, ValueError, "needs chunk_bytes"),
        (noise(3), {"output_dtype": np.int16}, ValueError, "whole number"),
    ],
)
def test_chunks_that_are_none_are_refused_with_their_number(queues, mix, chunk, options, error, words):
    stream = cml.stream_chunks([chunk], mix, queues=queues[:3], **options)
    with pytest.raises(error, match=words):
        next(stream)
    assert stream.failed[0] == 0


@pytest.mark.parametrize(("returned", "words"), [(None, "must return the event"), (5, "wait_for takes")])
def test_launch_must_return_an_event(queues, returned, words):
    stream = cml.stream_chunks([noise(5)], lambda slot, wait_for: returned, queues=queues[:3])
    with pytest.raises(TypeError, match=words):
        next(stream)
    assert stream.failed == (0, "launch")


def test_launch_cannot_copy_out_more_than_there_is(queues, mix):
    def launch(slot, wait_for):
        slot.output_bytes += 1
        return mix(slot, wait_for)

    with pytest.raises(ValueError, match="of at most 5"):
        next(cml.stream_chunks([noise(5)], launch, queues=queues[:3]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("of_the_body", [True, False])
def test_an_end_that_fails_does_not_mask_the_exception_of_the_block(queues, mix, monkeypatch, of_the_body):
    stream = cml.stream_chunks(iter(()), mix, queues=queues[:1], chunk_bytes=64)
    close = stream.close

    def fail():
        close()
        raise OSError("late")

    monkeypatch.setattr(stream, "close", fail)
    with pytest.raises(KeyError if of_the_body else OSError), stream:
        if of_the_body:
            raise KeyError("mine")


def test_exit_with_a_stream_under_way_is_silent(run):
    out = run("""
        kernel = cl.Kernel(program, "inc")
        def launch(slot, wait_for):
            return cml.enqueue_kernel(slot.queue, kernel, (10,), None, InOut(slot.input), wait_for=wait_for)
        stream = cml.stream_chunks([np.arange(10, dtype=np.int32)] * 9, launch, queues=queue, in_place=True)
        result = next(stream)
        print(result.sum())
    """)
    assert out == "55\n"


def two_device_pipeline(*options: str, **environment: str) -> subprocess.CompletedProcess:
    example = Path(__file__).resolve().parents[1] / "examples" / "two_device_pipeline.py"
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Non-empty compiler output", str(example), *options],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--chunks", "1", "--depth", "1"), ("--elements", "1", "--chunks", "12")])
def test_the_example_of_two_devices_is_right_and_leaves_nothing(options):
    done = two_device_pipeline(*options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("chunks are right, 0 objects alive")
    assert [line.split()[0] for line in done.stdout.splitlines()[:5]] == ["fill", "decay", "migrate", "smooth", "read"]


@pytest.mark.parametrize("name", ["picture.svg", "trace.json"])
def test_the_example_of_two_devices_draws_its_timeline(tmp_path, name):
    if name.endswith("svg"):
        pytest.importorskip("matplotlib")
    done = two_device_pipeline("--chunks", "3", "--timeline", str(tmp_path / name), MPLCONFIGDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    drawn = (tmp_path / name).read_text(encoding="utf-8")
    assert drawn.count("decay") >= 3 or name.endswith("svg")
    assert ("traceEvents" if name.endswith("json") else "<svg") in drawn


@pytest.mark.parametrize("option", ["--chunks", "--elements", "--depth", "--rounds"])
def test_the_example_of_two_devices_refuses_what_is_no_number_of_things(option):
    done = two_device_pipeline(option, "-1" if option == "--rounds" else "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is one chunk at least" in done.stderr.splitlines()[-1]


def test_the_example_of_two_devices_says_in_a_line_that_there_is_no_driver(tmp_path):
    done = two_device_pipeline(OCL_ICD_VENDORS=str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("two_device_pipeline.py: no OpenCL device: ")
    assert done.stderr.count("\n") == 1


def test_a_depth_beyond_all_reason_is_refused_before_memory_is_taken(queues, mix):
    with pytest.raises(ValueError, match="depth is how many chunks are in flight"):
        cml.stream_chunks(np.zeros(4, np.uint8), mix, queues=queues, depth=10**30)


@pytest.mark.parametrize("wrong", [object, str, [], {}])
def test_results_of_a_dtype_without_bytes_are_refused(queues, mix, wrong):
    with pytest.raises(TypeError, match=r"output_dtype .* has no bytes of its own on a device"):
        cml.stream_chunks(np.zeros(4, np.uint8), mix, queues=queues, output_dtype=wrong)
