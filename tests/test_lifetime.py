"""Exactly one release on every path: ``del``, cycles, kept tracebacks, other threads, warnings that are errors."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import warnings
import weakref
from collections import Counter

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import (
    CallError,
    CleanupWarning,
    InOut,
    LeakWarning,
    MapFlags,
    Mapping,
    MemFlags,
    MemHandle,
    Migration,
    ReleasedError,
    _opencl,
)


class Calls:
    """How often each address was retained and released by us."""

    def __init__(self, monkeypatch) -> None:
        self.retained: Counter[int] = Counter()
        self.released: Counter[int] = Counter()
        retain, release = _opencl.retain_mem_object, _opencl.release_mem_object

        def count_retain(int_ptr):
            retain(int_ptr)
            self.retained[int_ptr] += 1

        def count_release(int_ptr):
            self.released[int_ptr] += 1
            release(int_ptr)

        monkeypatch.setattr(_opencl, "retain_mem_object", count_retain)
        monkeypatch.setattr(_opencl, "release_mem_object", count_release)


@pytest.fixture
def calls(monkeypatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def collector_off():
    """Have nothing collected but what the test collects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run_in_threads(count: int, work, *per_thread) -> None:
    """Run ``work(n)`` in `count` threads that start together; raise the first error."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def body(n: int) -> None:
        try:
            barrier.wait(30)
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Holder:
    """Something that can be part of a cycle."""


# One thread


def test_del_releases_at_once_and_once(context, calls, collector_off):
    handle = MemHandle.create_buffer(context, 64)
    address = handle.int_ptr
    with pytest.warns(LeakWarning):
        del handle
    gc.collect()
    assert calls.released == calls.retained == {address: 1}
    assert cml.live() == ()


def test_a_cycle_is_released_when_it_is_collected(context, calls, collector_off):
    holder = Holder()
    holder.itself, holder.handle = holder, MemHandle.create_buffer(context, 64)
    address = holder.handle.int_ptr
    del holder
    assert calls.released == {}
    with pytest.warns(LeakWarning):
        gc.collect()
    assert calls.released == calls.retained == {address: 1}


def test_a_handle_released_before_its_collection_is_collected_in_silence(context, calls):
    holder = Holder()
    holder.itself, holder.handle = holder, MemHandle.create_buffer(context, 64)
    holder.handle.release()
    del holder
    gc.collect()  # a LeakWarning would be an error
    assert calls.released == calls.retained
    assert sum(calls.released.values()) == 1


def test_a_cycle_of_handle_mapping_and_view_is_unmapped_and_released(context, queue, collector_off, wait):
    gone = []
    holder = Holder()
    holder.itself = holder
    holder.handle = MemHandle.create_buffer(context, 64)
    holder.handle.on_destroy(gone.append)
    holder.mapping = Mapping(queue, holder.handle, MapFlags.WRITE)
    holder.view = holder.mapping.array[::2]
    view = holder.view
    del holder
    with pytest.warns(LeakWarning) as caught:
        gc.collect()
    assert sorted("map" in str(one.message) for one in caught) == [False, True]
    del view
    queue.finish()
    wait(lambda: cml.statistics() and bool(gone), "the object is destroyed")


def test_a_finalizer_in_a_cycle_finds_the_handle_released_and_cannot_release_it_again(context, calls, collector_off):
    class Meddler:
        def __init__(self, handle) -> None:
            self.itself, self.handle = self, handle

        def __del__(self) -> None:
            seen.append(self.handle.released)
            for use in (lambda: self.handle.mem, lambda: self.handle.size, lambda: MemHandle.retain(self.handle)):
                try:
                    use()
                except ReleasedError as error:
                    seen.append(str(error))
            self.handle.release()
            seen.append(repr(self.handle))

    seen: list[object] = []
    with pytest.warns(LeakWarning):
        Meddler(MemHandle.create_buffer(context, 64, label="field"))
        gc.collect()
    assert seen[0] is True
    assert len(seen) == 5
    assert all("'field' (64 bytes" in text and "was collected" in text for text in seen[1:4])
    assert calls.released == calls.retained
    assert sum(calls.released.values()) == 1


def test_a_finalizer_may_create_use_and_release_other_handles(context, queue, collector_off):
    class Meddler:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with MemHandle.create_buffer(context, 32) as other, Mapping(queue, other, MapFlags.WRITE) as mapping:
                seen.append(mapping.array.size)

    seen: list[int] = []
    Meddler()
    gc.collect()
    assert seen == [32]


def test_a_kept_traceback_does_not_keep_what_a_with_block_ended(context, queue, wait):
    seen = []

    def fail():
        with MemHandle.create_buffer(context, 64) as handle:
            seen.append(handle.mem)
            seen.append(seen[0].reference_count)
            with Mapping(queue, handle, MapFlags.WRITE) as mapping:
                mapping.array[:] = 1
                raise KeyError("kept")

    with pytest.raises(KeyError) as kept:
        fail()
    assert cml.live() == ()
    queue.finish()
    witness, before = seen
    assert witness.get_info(cl.mem_info.MAP_COUNT) == 0
    wait(lambda: cml.statistics().pending_bytes == 0 and witness.reference_count == before - 1, "it is released")
    assert kept.value.__traceback__ is not None


def test_a_handle_in_a_kept_traceback_lives_until_that_is_dropped(context, calls):
    def fail():
        handle = MemHandle.create_buffer(context, 64)
        raise KeyError(handle.size)

    kept = None
    try:
        fail()
    except KeyError as error:
        kept = error
    assert len(cml.live()) == 1
    assert calls.released == {}
    with pytest.warns(LeakWarning):
        kept.__traceback__ = None
        gc.collect()
    assert calls.released == calls.retained


def test_no_reference_from_the_library_keeps_a_released_handle(context, queue):
    with MemHandle.create_buffer(context, 64) as handle:
        cml.enqueue_fill(queue, handle, np.int32(0)).wait()
        Migration(queue, handle).wait()
    reference = weakref.ref(handle)
    del handle
    gc.collect()
    assert reference() is None


def test_the_child_keeps_the_handle_of_its_root_and_lets_it_go(context, calls):
    root = MemHandle.create_buffer(context, 4096)
    child = root.sub_buffer(0, 64)
    reference = weakref.ref(root)
    del root
    gc.collect()
    assert reference() is child.parent
    child.release()
    with pytest.warns(LeakWarning, match="4096 bytes"):
        del child
        gc.collect()
    assert reference() is None
    assert calls.released == calls.retained


def test_a_leak_warning_points_at_the_creation_line_and_names_the_object(context):
    line = sys._getframe().f_lineno + 1
    handle = MemHandle.create_buffer(context, 64, label="field")
    with pytest.warns(
        LeakWarning, match=r"'field' \(64 bytes, created at .*\) was collected without release"
    ) as caught:
        del handle
        gc.collect()
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_warnings_as_errors_do_not_skip_the_release(context, calls, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    handle = MemHandle.create_buffer(context, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del handle
        gc.collect()
    assert calls.released == calls.retained
    assert sum(calls.released.values()) == 1
    assert [type(one.exc_value) for one in unraisable] == [LeakWarning]


def test_warnings_as_errors_do_not_skip_the_unmap(context, queue, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with MemHandle.create_buffer(context, 64) as handle:
        mapping = Mapping(queue, handle, MapFlags.WRITE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del mapping
            gc.collect()
        queue.finish()
        assert handle.info().map_count == 0
        assert cml.live()[0].maps == 0
    assert [type(one.exc_value) for one in unraisable] == [LeakWarning]


def test_a_hook_that_raises_does_not_skip_the_release(context, calls, monkeypatch):
    def show(*_, **__):
        raise RuntimeError("the hook is broken")

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    handle = MemHandle.create_buffer(context, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        del handle
        gc.collect()
    assert calls.released == calls.retained
    assert cml.live() == ()


def test_a_release_that_fails_in_a_finalizer_is_reported_after_the_leak(context, monkeypatch):
    real = _opencl.release_mem_object

    def fail(int_ptr):
        raise CallError("clReleaseMemObject", -38)

    handle = MemHandle.create_buffer(context, 64, label="field")
    address, site = handle.int_ptr, handle.site
    monkeypatch.setattr(_opencl, "release_mem_object", fail)
    with pytest.warns() as caught:
        del handle
        gc.collect()
    monkeypatch.undo()
    real(address)
    assert [one.category for one in caught] == [LeakWarning, CleanupWarning]
    assert f"'field' (64 bytes, created at {site})" in str(caught[1].message)
    assert "INVALID_MEM_OBJECT (-38)" in str(caught[1].message)


# Threads


def test_a_collection_in_another_thread_releases_once(context, calls, collector_off):
    def make_garbage():
        for _ in range(20):
            holder = Holder()
            holder.itself, holder.handle = holder, MemHandle.create_buffer(context, 64)

    make_garbage()
    assert calls.released == {}
    collector = threading.Thread(target=gc.collect)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        collector.start()
        collector.join(30)
    assert sum(calls.released.values()) == 20
    assert calls.released == calls.retained
    assert cml.live() == ()


def test_collecting_in_one_thread_while_another_creates_maps_and_launches(context, queue, kernel, ints, calls):
    stop = threading.Event()
    rounds = []

    def collect():
        while not stop.is_set():
            gc.collect()
            rounds.append(1)

    inc = kernel("inc")
    collector = threading.Thread(target=collect)
    collector.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeakWarning)
            for n in range(60):
                holder = Holder()
                holder.itself = holder
                holder.handle = MemHandle.create_buffer(context, ints.nbytes)
                with Mapping(queue, holder.handle, MapFlags.WRITE, shape=ints.shape, dtype=np.int32) as mapping:
                    mapping.array[:] = n
                cml.enqueue_kernel(queue, inc, ints.shape, None, InOut(holder.handle), wait_for=mapping.unmap_event)
                with Mapping(queue, holder.handle, MapFlags.READ, shape=ints.shape, dtype=np.int32) as mapping:
                    assert (mapping.array == n + 1).all()
                del holder, mapping
            queue.finish()
            stop.set()
            collector.join(60)
            gc.collect()
    finally:
        stop.set()
    assert rounds
    assert sum(calls.released.values()) == 60
    assert calls.released == calls.retained


@pytest.mark.parametrize("end", ["release", "detach"])
def test_of_16_threads_that_end_one_handle_exactly_one_does(context, end):
    for _ in range(20):
        handle = MemHandle.create_buffer(context, 64)
        witness = handle.mem
        before = witness.reference_count
        given: list[cl.MemoryObject] = []

        def work(_, handle=handle, given=given):
            if end == "release":
                handle.release()
                return
            with contextlib.suppress(ReleasedError):
                given.append(handle.detach())

        run_in_threads(16, work)
        assert handle.released
        assert len(given) == (end == "detach")
        given.clear()
        assert witness.reference_count == before - 1


def test_release_in_one_thread_never_pulls_the_memory_away_from_another(context, queue):
    for _ in range(30):
        handle = MemHandle.create_buffer(context, 4096)
        outcomes: list[str] = []

        def work(n, handle=handle, outcomes=outcomes):
            if n == 0:
                handle.release()
                return
            try:
                cml.enqueue_fill(queue, handle, np.int32(n))
                with MemHandle.retain(handle) as shared, shared.sub_buffer(0, 64) as child:
                    outcomes.append(f"used {child.size}")
            except ReleasedError:
                outcomes.append("refused")

        run_in_threads(4, work)
        assert len(outcomes) == 3
        assert set(outcomes) <= {"used 64", "refused"}
    queue.finish()


def test_creation_and_release_from_16_threads_balance(context, queue, calls, ints):
    before = cml.statistics()

    def work(n: int) -> None:
        for k in range(15):
            with MemHandle.create_buffer(
                context, flags=MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR, hostbuf=ints, label=f"{n}/{k}"
            ) as handle:
                with handle.sub_buffer(0, 64) as child, MemHandle.retain(child) as shared:
                    assert shared.int_ptr == child.int_ptr
                result = np.empty_like(ints)
                cml.enqueue_copy(queue, result, handle)
                assert (result == ints).all()
            assert handle.released

    run_in_threads(16, work)
    queue.finish()
    after = cml.statistics()
    assert calls.released == calls.retained
    assert sum(calls.released.values()) >= 16 * 15 * 3
    assert (after.current_count, after.current_bytes) == (before.current_count, before.current_bytes)
    assert after.total_count - before.total_count == 16 * 15 * 3
    assert cml.live() == ()


def test_leases_and_callbacks_from_16_threads_all_end(context, wait):
    gone: list[object] = []

    def work(_: int) -> None:
        for _ in range(10):
            host = cml.aligned_empty(4096, np.uint8, context)
            flags = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
            with MemHandle.create_buffer(context, flags=flags, hostbuf=host) as handle:
                handle.on_destroy(gone.append)

    run_in_threads(16, work)
    wait(lambda: cml.statistics().leased_bytes == 0 and len(gone) == 160, "all objects are destroyed")


def test_a_handle_made_in_one_thread_is_released_in_another(context, calls):
    handles = [MemHandle.create_buffer(context, 64) for _ in range(32)]
    run_in_threads(8, lambda n: [handle.release() for handle in handles[n * 4 : n * 4 + 4]])
    assert calls.released == calls.retained
    assert all(handle.released for handle in handles)


# Events that are dropped


def test_dropping_the_event_of_a_gated_host_copy_does_not_block(context, queue, gate, ints):
    with MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR, hostbuf=ints) as handle:
        result = np.zeros_like(ints)
        cml.enqueue_copy(queue, result, handle, is_blocking=False, wait_for=gate)  # the event is dropped here
        assert (result == 0).all()
        gate.set_status(cl.command_execution_status.COMPLETE)
        queue.finish()
        assert (result == ints).all()


def test_a_host_array_whose_only_owner_goes_away_is_held_until_the_copy_is_complete(context, queue, gate, wait):
    array = np.full(1 << 16, 7, np.int32)
    reference = weakref.ref(array)
    with MemHandle.create_buffer(context, array.nbytes) as handle:
        cml.enqueue_copy(queue, handle, array, is_blocking=False, wait_for=gate)
        del array
        gc.collect()
        assert reference() is not None
        gate.set_status(cl.command_execution_status.COMPLETE)
        result = np.empty(1 << 16, np.int32)
        cml.enqueue_copy(queue, result, handle)
        assert (result == 7).all()
        wait(lambda: bool(cml.statistics()) and reference() is None, "the array is let go")


def test_warnings_as_errors_do_not_mask_the_error_of_the_body(run):
    printed = run(
        """
        warnings.simplefilter("error")
        try:
            with MemHandle.create_buffer(context, 64) as handle, Mapping(queue, handle, MapFlags.WRITE) as mapping:
                view = mapping.array[2:]
                raise KeyError("body")
        except KeyError as error:
            print("body" in str(error))
        """
    )
    assert printed == "True\n"


def test_a_warning_as_an_error_is_still_told_where_nothing_can_be_raised(run_process):
    done = run_process(
        """
        warnings.simplefilter("error")
        handle = MemHandle.create_buffer(context, 64, label="dropped")
        del handle
        """
    )
    assert done.returncode == 0
    assert "LeakWarning: 'dropped' (64 bytes" in done.stderr


@pytest.mark.needs_gil("a dictionary that a thread changes during the fork stays locked in the child")
def test_a_fork_while_threads_map_disarms_all_of_the_child(run_process):
    done = run_process(
        """
        warnings.simplefilter("ignore")
        handles = [MemHandle.create_buffer(context, 4096) for _ in range(4)]
        queues = [cl.CommandQueue(context, devices[0]) for _ in handles]
        over = threading.Event()
        def work(queue, handle):
            while not over.is_set():
                with Mapping(queue, handle, MapFlags.WRITE):
                    pass
        threads = [threading.Thread(target=work, args=one) for one in zip(queues, handles)]
        for thread in threads: thread.start()
        for _ in range(30):
            child = os.fork()
            if not child:
                os._exit(len(cml.live()))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        over.set()
        for thread in threads: thread.join()
        for handle in handles: handle.release()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
