"""`Mapping` from map to unmap: states, every way out, stale names and views, conflicts, host memory, debugging."""

from __future__ import annotations

import copy
import gc
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import MapFlags, Mapping, MapState, MemFlags, MemHandle, Out, _ledger
from clmemlife.exceptions import (
    ContextMismatchError,
    DependencyError,
    HazardWarning,
    LeakWarning,
    LiveViewError,
    MapConflictError,
    ReleasedError,
    UnmappedError,
    ViewWarning,
)

N = 256
COMPLETE = cl.command_execution_status.COMPLETE
READ, WRITE, DISCARD = MapFlags.READ, MapFlags.WRITE, MapFlags.WRITE_INVALIDATE_REGION
INTS = {"shape": (N,), "dtype": np.int32}
RGBA8 = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    data = np.arange(N, dtype=np.int32)
    with MemHandle.create_buffer(context, hostbuf=data, flags=MemFlags.COPY_HOST_PTR, label="field") as handle:
        yield handle


def content(queue: cl.CommandQueue, handle: MemHandle, wait_for: Any = None) -> np.ndarray:
    out = np.empty(handle.size // 4, np.int32)
    cml.enqueue_copy(queue, out, handle, wait_for=wait_for)
    return out


def map_count(handle: MemHandle, expected: int, seconds: float = 10) -> int:
    """Return how often it is mapped, when that has come to what is expected: Intel's count lags behind its events."""
    deadline = time.monotonic() + seconds
    while handle.info().map_count != expected and time.monotonic() < deadline:
        time.sleep(0.002)
    return handle.info().map_count


# -- states and the future -------------------------------------------------------------------------------------------


def test_it_goes_from_pending_to_mapped_to_unmapped(
    queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    mapping = Mapping(queue, field, READ, **INTS, wait_for=gate)
    assert mapping.state is MapState.PENDING
    with pytest.raises(UnmappedError, match=r"map \(at .*test_mapping.*'field' \(1024 bytes.* is still open"):
        mapping.unmap_event
    gate.set_status(COMPLETE)
    assert (mapping.array == np.arange(N)).all()
    assert mapping.state is MapState.MAPPED
    event = mapping.unmap()
    assert mapping.state is MapState.UNMAPPED
    assert mapping.unmap_event is event
    assert mapping.flags is READ


def test_the_array_waits_for_a_slow_kernel_before_it(
    queue: cl.CommandQueue, kernel: Callable[[str], cl.Kernel], field: MemHandle
) -> None:
    cml.enqueue_kernel(queue, kernel("slow"), (N,), None, field, np.int32(7), np.int32(50000))
    with Mapping(queue, field, READ, **INTS) as mapping:
        assert (mapping.array == 7).all()


def test_the_array_is_made_once(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ, **INTS) as mapping:
        assert mapping.array is mapping.array


def test_a_blocking_map_is_mapped_when_it_returns(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ, is_blocking=True) as mapping:
        assert mapping.state is MapState.MAPPED
        assert mapping.map_event.command_execution_status == COMPLETE


def test_what_is_written_is_on_the_device_after_the_unmap(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle
) -> None:
    with Mapping(queue, field, WRITE, shape=(4,), dtype=np.int32, offset=16) as mapping:
        mapping.array[:] = -5
    found = content(queue2, field, wait_for=mapping.unmap_event)
    assert found[:9].tolist() == [0, 1, 2, 3, -5, -5, -5, -5, 8]


def test_a_copy_outlives_the_map(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ, **INTS) as mapping:
        data = mapping.copy()
    assert data.flags.owndata
    assert data.flags.writeable
    assert (data == np.arange(N)).all()


def test_the_array_is_gone_after_the_unmap(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ) as mapping:
        pass
    for use in (lambda: mapping.array, mapping.wait, mapping.copy, mapping.__enter__):
        with pytest.raises(UnmappedError, match=r"'field' \(1024 bytes, created at .*unmapped at .*test_mapping"):
            use()
    assert "unmapped" in repr(mapping)


def test_a_mapping_is_no_event(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ) as mapping, pytest.raises(TypeError, match=r"map_event.*unmap_event"):
        cml.enqueue_copy(queue, np.empty(4, np.uint8), field, wait_for=mapping)


# -- every way out ---------------------------------------------------------------------------------------------------


def test_an_exception_in_the_body_unmaps_and_comes_through(queue: cl.CommandQueue, field: MemHandle) -> None:
    with pytest.raises(ZeroDivisionError), Mapping(queue, field, WRITE, **INTS) as mapping:
        mapping.array[:] = 1
        raise ZeroDivisionError
    mapping.unmap_event.wait()
    assert map_count(field, 0) == 0
    assert (content(queue, field) == 1).all()


def test_a_kept_traceback_keeps_neither_the_map_nor_the_memory(queue: cl.CommandQueue, field: MemHandle) -> None:
    kept: list[BaseException] = []

    def body() -> None:
        with Mapping(queue, field, WRITE, **INTS) as mapping:
            array = mapping.array
            array[0] = 99
            raise KeyError

    try:
        body()
    except KeyError as error:
        kept.append(error)
    assert kept[0].__traceback__ is not None
    frame = kept[0].__traceback__.tb_next.tb_frame  # type: ignore[union-attr]
    assert frame.f_locals["array"].shape == (0,)
    assert frame.f_locals["mapping"].state is MapState.UNMAPPED
    queue.finish()
    assert map_count(field, 0) == 0


def test_an_exception_with_a_view_kept_in_its_traceback_is_not_masked(queue: cl.CommandQueue, field: MemHandle) -> None:
    with (
        pytest.warns(ViewWarning, match="views of the array"),
        pytest.raises(KeyError),
        Mapping(queue, field, WRITE, **INTS, views="raise") as mapping,
    ):
        part = mapping.array[2:4]
        raise KeyError
    assert part.size == 2
    queue.finish()
    assert map_count(field, 0) == 0


def test_a_second_unmap_returns_the_same_event_and_ends_nothing_else(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ) as other, Mapping(queue, field, READ) as mapping:
        first = mapping.unmap()
        assert mapping.unmap() is first
        queue.finish()
        assert map_count(field, 1) == 1
        assert other.state is MapState.MAPPED
    assert mapping.unmap_event is first


def test_unmap_on_another_queue(queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle) -> None:
    mapping = Mapping(queue, field, WRITE, **INTS)
    mapping.array[:] = 3
    event = mapping.unmap(queue=queue2)
    assert event.command_queue == queue2
    assert (content(queue, field, wait_for=event) == 3).all()


def test_unmap_on_another_queue_waits_for_a_map_that_is_still_pending(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    mapping = Mapping(queue, field, READ, wait_for=gate)
    event = mapping.unmap(queue=queue2)
    assert event.command_execution_status > 0
    gate.set_status(COMPLETE)
    event.wait()
    assert map_count(field, 0) == 0


def test_unmap_on_a_queue_of_another_context_is_refused_and_leaves_it_mapped(
    devices: list[cl.Device], queue: cl.CommandQueue, field: MemHandle
) -> None:
    other = cl.Context(devices[:1])
    elsewhere = cl.CommandQueue(other, devices[0])
    with Mapping(queue, field, READ, **INTS) as mapping:
        with pytest.raises(ContextMismatchError):
            mapping.unmap(queue=elsewhere)
        with pytest.raises(TypeError, match="queue must be"):
            mapping.unmap(queue=5)  # type: ignore[arg-type]
        assert (mapping.array == np.arange(N)).all()


def test_unmap_waits_for_its_list(queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent) -> None:
    mapping = Mapping(queue, field, READ)
    mapping.wait()
    event = mapping.unmap(wait_for=[gate, None])
    assert mapping.state is MapState.UNMAPPED
    assert event.command_execution_status > 0
    gate.set_status(COMPLETE)
    event.wait()
    assert event.command_execution_status == COMPLETE


def test_an_unmap_with_a_failed_list_is_refused_and_leaves_it_mapped(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle
) -> None:
    failed = cl.UserEvent(context)
    failed.set_status(-5)
    with Mapping(queue, field, WRITE, **INTS) as mapping:
        with pytest.raises(DependencyError) as caught:
            mapping.unmap(wait_for=failed)
        assert caught.value.status == -5
        mapping.array[0] = 42
    assert content(queue, field)[0] == 42


def test_a_map_with_a_failed_list_is_refused_and_leaves_nothing(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle
) -> None:
    failed = cl.UserEvent(context)
    failed.set_status(-5)
    with pytest.raises(DependencyError, match="OUT_OF_RESOURCES"):
        Mapping(queue, field, WRITE, wait_for=failed)
    assert _ledger.open_maps() == ()
    assert map_count(field, 0) == 0


def test_a_map_whose_list_fails_late_has_no_array_and_still_ends(
    queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    mapping = Mapping(queue, field, READ, wait_for=gate)
    gate.set_status(-5)
    with pytest.raises(DependencyError, match=r"map \(at .*'field' \(1024 bytes.* failed with") as caught:
        mapping.array
    assert caught.value.status < 0
    assert caught.value.event == mapping.map_event
    mapping.unmap()
    assert mapping.state is MapState.UNMAPPED
    queue.finish()
    assert map_count(field, 0) == 0


def test_an_unmap_whose_own_map_fails_after_it_does_not_hang_or_crash(run: Callable[..., str]) -> None:
    out = run(
        """
        buffer = MemHandle.create_buffer(context, 64)
        gate = cl.UserEvent(context)
        mapping = Mapping(queue, buffer, MapFlags.READ, wait_for=gate)
        event = mapping.unmap()
        gate.set_status(-5)
        try:
            event.wait()
        except cl.Error:
            pass
        assert mapping.state.name == "UNMAPPED"
        buffer.release()
        print("fine")
        """,
        timeout=30.0,
    )
    assert out.split() == ["fine"]


def test_a_queue_that_the_caller_closed_does_not_matter(
    context: cl.Context, devices: list[cl.Device], queue: cl.CommandQueue, field: MemHandle
) -> None:
    with cl.CommandQueue(context, devices[0]) as closing:
        mapping = Mapping(closing, field, WRITE, **INTS)
        mapping.array[:] = 8
    event = mapping.unmap()
    assert (content(queue, field, wait_for=event) == 8).all()


def test_releasing_the_handle_first_is_fine_and_shows_as_an_open_map(
    context: cl.Context, queue: cl.CommandQueue
) -> None:
    handle = MemHandle.create_buffer(context, N * 4, label="early")
    with MemHandle.retain(handle) as witness:
        mapping = Mapping(queue, handle, WRITE, **INTS)
        handle.release()
        mapping.array[:] = 6
        assert [one.root.int_ptr for one in _ledger.open_maps()] == [witness.int_ptr]
        event = mapping.unmap()
        assert (content(queue, witness, wait_for=event) == 6).all()


def test_a_mapping_alone_keeps_its_memory(context: cl.Context, queue: cl.CommandQueue) -> None:
    handle = MemHandle.create_buffer(context, N * 4)
    mapping = Mapping(queue, handle, WRITE, **INTS)
    handle.release()
    array = mapping.array
    array[:] = np.arange(N)
    gc.collect()
    assert (array == np.arange(N)).all()
    mapping.unmap()


def test_a_mapping_nobody_ended_is_unmapped_and_reported_with_its_site(
    queue: cl.CommandQueue, field: MemHandle
) -> None:
    with pytest.warns(LeakWarning, match=r"map \(at .*test_mapping.*\) of 'field' .*was collected while open"):
        array = Mapping(queue, field, WRITE, **INTS).array
        gc.collect()
    assert array.shape == (0,)
    queue.finish()
    assert map_count(field, 0) == 0
    assert _ledger.open_maps() == ()


def test_a_pending_map_dropped_without_use_is_unmapped_when_it_can_be(
    queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent, has_fault: Callable[[str], bool]
) -> None:
    mapping = Mapping(queue, field, WRITE, wait_for=gate)
    counted = map_count(field, 1, seconds=2)  # some drivers count a map when it is made, some when its turn comes
    with pytest.warns(LeakWarning, match="collected while open"):
        del mapping
        gc.collect()
    assert has_fault("early count") or map_count(field, counted) == counted
    gate.set_status(COMPLETE)
    queue.finish()
    assert map_count(field, 0) == 0


def test_a_mapping_in_a_cycle_is_unmapped_by_the_collector(queue: cl.CommandQueue, field: MemHandle) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.me, holder.mapping = holder, Mapping(queue, field, READ)  # type: ignore[attr-defined]
    with pytest.warns(LeakWarning, match="collected while open"):
        del holder
        gc.collect()
    assert _ledger.open_maps() == ()


REFUSED = """
def refuse(memory_map, queue, waits):
    raise cl.LogicError(cl._cl._ErrorRecord(msg="refused on purpose", code=-38, routine="clEnqueueUnmapMemObject"))
from clmemlife import _opencl
buffer = MemHandle.create_buffer(context, 64, label="stuck")
mapping = Mapping(queue, buffer, MapFlags.WRITE)
array = mapping.array
true, _opencl.enqueue_unmap_mem_object = _opencl.enqueue_unmap_mem_object, refuse
seen = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *rest: seen.append((category.__name__, str(message)))
"""


def test_an_unmap_that_the_driver_refuses_leaves_the_map_open_for_another_try(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = Mapping(queue, field, WRITE, **INTS)
    mapping.array[:] = 2

    def refuse(*_: Any) -> None:
        raise cl.LogicError(cl._cl._ErrorRecord(msg="no", code=-5, routine="clEnqueueUnmapMemObject"))

    with monkeypatch.context() as patch:
        patch.setattr(cml._opencl, "enqueue_unmap_mem_object", refuse)
        with pytest.raises(cl.Error, match="no"):
            mapping.unmap()
    assert mapping.state is MapState.MAPPED
    event = mapping.unmap()
    assert (content(queue, field, wait_for=event) == 2).all()


@pytest.mark.parametrize(
    "way_out",
    [
        "del mapping; gc.collect()",
        "try:\n    with mapping: pass\nexcept cl.LogicError: pass\nelse: raise SystemExit(3)",
        "try:\n    with mapping: raise KeyError\nexcept KeyError: pass",
    ],
    ids=["collected", "end of with", "exception in with"],
)
def test_a_refused_unmap_does_not_abort_and_is_reported(run: Callable[..., str], way_out: str) -> None:
    out = run(
        REFUSED
        + f"{way_out}\n"
        + """
gc.collect()
assert array.shape == (0,), array
names = [name for name, _ in seen]
assert names == ["CleanupWarning"] or names == ["CleanupWarning", "LeakWarning"], seen
assert "'stuck' (64 bytes" in seen[0][1] and "refused on purpose" in seen[0][1], seen
mapping = None
gc.collect()
buffer.release()
print("alive")
""",
        timeout=30.0,
    )
    assert out.split() == ["alive"]


def test_an_unmap_refused_at_exit_does_not_abort(run: Callable[..., str]) -> None:
    assert run(REFUSED + "print('end')", timeout=30.0).split() == ["end"]


# -- read-only -------------------------------------------------------------------------------------------------------


def test_a_read_map_gives_an_array_that_cannot_be_written_or_made_writable(
    queue: cl.CommandQueue, field: MemHandle
) -> None:
    with Mapping(queue, field, READ, shape=(16, 16), dtype=np.int32) as mapping:
        for array in (mapping.array, mapping.array[2:4], mapping.array.view(np.uint8), mapping.array.T):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
            base: Any = array
            while isinstance(base, np.ndarray):
                with pytest.raises(ValueError, match="WRITEABLE"):
                    base.flags.writeable = True
                base = base.base
        del array, base
    assert (content(queue, field) == np.arange(N)).all()


@pytest.mark.parametrize("flags", [WRITE, READ | WRITE, DISCARD])
def test_a_map_for_writing_gives_a_writable_array(queue: cl.CommandQueue, field: MemHandle, flags: MapFlags) -> None:
    with Mapping(queue, field, flags, **INTS) as mapping:
        mapping.array[:] = 5
    assert (content(queue, field, mapping.unmap_event) == 5).all()


def test_read_write_shows_what_was_there(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ | WRITE, **INTS) as mapping:
        mapping.array[:] *= 2
    assert (content(queue, field) == 2 * np.arange(N)).all()


# -- what may be asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (1, TypeError), (0, TypeError), (MemFlags.READ_WRITE, TypeError), (MapFlags(0), ValueError),
        (DISCARD | READ, ValueError), (DISCARD | WRITE, ValueError), (MapFlags(1 << 20), ValueError),
        (READ | MapFlags(1 << 20), ValueError), (None, TypeError), (True, TypeError),
    ],
    ids=str,
)  # fmt: skip
def test_flags_that_mean_nothing_are_refused(
    queue: cl.CommandQueue, field: MemHandle, flags: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="MapFlags"):
        Mapping(queue, field, flags)
    assert map_count(field, 0) == 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"shape": (N + 1,), "dtype": np.int32}, "no region of the buffer's 1024 bytes"),
        ({"shape": (16, 65)}, "no region of the buffer's 1024 bytes"),
        ({"shape": (4,), "dtype": np.int32, "size": 15}, "needs 16 bytes, more than the region's 15"),
        ({"offset": 1025}, "no region"),
        ({"offset": 1024}, "no region"),
        ({"offset": -4, "size": 4}, "no region"),
        ({"size": 0}, "no region"),
        ({"size": 1025}, "no region"),
        ({"size": -1}, "no region"),
        ({"shape": (0,)}, "no region"),
        ({"shape": (-1,)}, "negative"),
        ({"shape": (-2, -8)}, "negative"),
        ({"dtype": object}, "cannot lie in device memory"),
        ({"dtype": [("a", np.int32), ("b", object)]}, "cannot lie in device memory"),
        ({"dtype": "S0"}, "cannot lie in device memory"),
        ({"dtype": (np.int32, (2,))}, "cannot lie in device memory"),
        ({"dtype": [("a", "u1", 3)]}, "no whole number of"),
        ({"offset": 2, "dtype": np.int32}, "no whole number of"),
        ({"order": "A"}, "order must be 'C' or 'F'"),
        ({"order": None}, "order must be 'C' or 'F'"),
        ({"views": "ignore"}, "views must be 'warn' or 'raise'"),
        ({"shape": (1 << 62, 1 << 62)}, "no region"),
    ],
    ids=str,
)
def test_a_region_or_shape_that_does_not_fit_is_refused_before_the_driver(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch, request_: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(cml._opencl, "enqueue_map_buffer", lambda *_: pytest.fail("the driver was asked"))
    with pytest.raises(ValueError, match=message):
        Mapping(queue, field, READ, **request_)
    assert _ledger.open_maps() == ()


def test_wrong_types_are_refused(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    with pytest.raises(TypeError, match=r"a Mapping needs a MemHandle, not Buffer; see MemHandle\.retain"):
        Mapping(queue, cl.Buffer(context, 0, 16), READ)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="queue must be"):
        Mapping(context, field, READ)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="origin and region are for images"):
        Mapping(queue, field, READ, origin=(0,))
    with pytest.raises(TypeError):
        Mapping(queue, field, READ, shape=(2.5,))
    with pytest.raises(TypeError):
        Mapping(queue, field, READ, offset=1.0)  # type: ignore[arg-type]


def test_a_released_handle_is_refused(context: cl.Context, queue: cl.CommandQueue) -> None:
    gone = MemHandle.create_buffer(context, 16, label="gone")
    gone.release()
    with pytest.raises(ReleasedError, match="'gone'"):
        Mapping(queue, gone, READ)


def test_a_queue_of_another_context_is_refused(devices: list[cl.Device], field: MemHandle) -> None:
    other = cl.Context(devices[:1])
    elsewhere = cl.CommandQueue(other, devices[0])
    with pytest.raises(ContextMismatchError, match="'field'"):
        Mapping(elsewhere, field, READ)


def test_a_map_that_the_driver_refuses_leaves_no_open_map(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise cl.LogicError(cl._cl._ErrorRecord(msg="no", code=-5, routine="clEnqueueMapBuffer"))

    with monkeypatch.context() as patch:
        patch.setattr(cml._opencl, "enqueue_map_buffer", refuse)
        with pytest.raises(cl.Error, match="no"):
            Mapping(queue, field, WRITE)
    assert _ledger.open_maps() == ()
    with Mapping(queue, field, WRITE):
        pass


@pytest.mark.parametrize("shape", [(), 5, (5,), (2, 3), (2, 1, 4), np.int64(5)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_shapes_as_numpy_takes_them(queue: cl.CommandQueue, field: MemHandle, shape: Any, order: Any) -> None:
    with Mapping(queue, field, READ, shape=shape, dtype=np.int32, order=order, offset=8) as mapping:
        count = int(np.prod(shape, dtype=int))
        expected = np.arange(2, 2 + count, dtype=np.int32).reshape(shape, order=order)
        assert mapping.array.shape == expected.shape
        assert mapping.array.strides == expected.strides
        assert (mapping.array == expected).all()


@pytest.mark.parametrize(
    ("flag", "reads", "writes"),
    [
        (MemFlags.HOST_READ_ONLY, True, False), (MemFlags.HOST_WRITE_ONLY, False, True),
        (MemFlags.HOST_NO_ACCESS, False, False),
    ],
)  # fmt: skip
def test_maps_that_the_host_access_flags_forbid_are_refused_with_the_flag(
    context: cl.Context, queue: cl.CommandQueue, flag: MemFlags, reads: bool, writes: bool
) -> None:
    with (
        MemHandle.create_buffer(context, 4096, MemFlags.READ_WRITE | flag) as handle,
        handle.sub_buffer(0, 1024) as part,
    ):
        for mem in (handle, part):
            for flags, allowed in (
                (READ, reads), (WRITE, writes), (DISCARD, writes), (READ | WRITE, reads and writes),
            ):  # fmt: skip
                if allowed:
                    Mapping(queue, mem, flags).unmap()
                else:
                    with pytest.raises(ValueError, match=f"created with {flag}, which forbids a map for it"):
                        Mapping(queue, mem, flags)


# -- conflicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(WRITE, WRITE), (READ, WRITE), (WRITE, READ), (DISCARD, READ)])
def test_overlapping_maps_of_which_one_writes_are_refused(
    queue: cl.CommandQueue, field: MemHandle, first: MapFlags, second: MapFlags
) -> None:
    with Mapping(queue, field, first, offset=100, size=100):
        for offset, size in ((0, 101), (199, 1), (150, 10), (0, 1024)):
            with pytest.raises(MapConflictError, match=r"Mapping at .*bytes \[100, 200\) are mapped for .* since"):
                Mapping(queue, field, second, offset=offset, size=size)
        for offset, size in ((0, 100), (200, 824)):
            Mapping(queue, field, second, offset=offset, size=size).unmap()
    queue.finish()
    assert map_count(field, 0) == 0


def test_two_read_maps_never_conflict(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ, **INTS) as one, Mapping(queue, field, READ, **INTS) as two:
        assert (one.array == two.array).all()


def test_a_refused_map_was_not_entered(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ):
        with pytest.raises(MapConflictError):
            Mapping(queue, field, WRITE)
        Mapping(queue, field, READ).unmap()
        assert len(_ledger.open_maps()) == 1


def test_parts_and_further_handles_of_one_object_are_one_object(context: cl.Context, queue: cl.CommandQueue) -> None:
    with (
        MemHandle.create_buffer(context, 4096, label="root") as root,
        MemHandle.retain(root) as again,
        root.sub_buffer(1024, 1024) as part,
        part.sub_buffer(0, 512) as inner,
    ):
        with Mapping(queue, inner, WRITE, offset=100, size=10):
            for handle, begin, offset in ((root, 1124, 1124), (again, 1124, 1133), (part, 100, 100), (inner, 100, 109)):
                with pytest.raises(MapConflictError, match=r"\[1124, 1134\) are mapped"):
                    Mapping(queue, handle, READ, offset=offset, size=1)
                Mapping(queue, handle, READ, offset=0, size=begin).unmap()
        with Mapping(queue, again, WRITE), pytest.raises(MapConflictError, match="'root'"):
            cml.enqueue_fill(queue, inner, np.uint8(1))


def test_an_image_over_a_buffer_is_the_buffers_memory(context: cl.Context, queue: cl.CommandQueue) -> None:
    with (
        MemHandle.create_buffer(context, 1024, label="memory") as buffer,
        MemHandle.create_image(context, (64,), RGBA8, buffer=buffer) as image,
    ):
        with Mapping(queue, image, WRITE, origin=(4,), region=(2,)):
            with pytest.raises(MapConflictError, match=r"bytes \[16, 24\) are mapped"):
                Mapping(queue, buffer, READ, offset=23, size=1)
            Mapping(queue, buffer, READ, offset=24, size=8).unmap()
        with Mapping(queue, buffer, WRITE, offset=20, size=1):
            with pytest.raises(MapConflictError):
                Mapping(queue, image, READ, origin=(5,), region=(1,))
            Mapping(queue, image, READ, origin=(6,), region=(1,)).unmap()
            with pytest.raises(MapConflictError):
                cml.enqueue_fill(queue, image, np.zeros(4, np.uint32))


def test_boxes_of_an_image_conflict_where_they_meet(context: cl.Context, queue: cl.CommandQueue) -> None:
    with MemHandle.create_image(context, (16, 16), RGBA8, label="picture") as image:
        out = np.empty((16, 16, 4), np.uint8)
        with Mapping(queue, image, WRITE, origin=(4, 4), region=(4, 4)) as mapping:
            mapping.wait()
            for origin, region in (((0, 0), (5, 5)), ((7, 7), (1, 1)), ((0, 5), (16, 1))):
                with pytest.raises(MapConflictError, match="'picture'"):
                    Mapping(queue, image, READ, origin=origin, region=region)
                with pytest.raises(MapConflictError, match="'picture'"):
                    cml.enqueue_copy(queue, out, image, origin=origin, region=region)
            for origin, region in (((0, 0), (4, 16)), ((8, 0), (8, 16)), ((4, 8), (4, 8))):
                Mapping(queue, image, READ, origin=origin, region=region).unmap()
                cml.enqueue_copy(queue, out, image, origin=origin, region=region)
            with pytest.raises(MapConflictError):
                cml.enqueue_fill(queue, image, np.zeros(4, np.uint32))


def test_commands_on_the_mapped_bytes_are_refused_and_beside_them_not(
    queue: cl.CommandQueue, kernel: Callable[[str], cl.Kernel], field: MemHandle
) -> None:
    with Mapping(queue, field, READ, offset=0, size=512) as mapping:
        mapping.wait()
        for refused in (
            lambda: cml.enqueue_fill(queue, field, np.uint8(0), 1, offset=511),
            lambda: cml.enqueue_copy(queue, field, np.zeros(513, np.uint8), dst_offset=511),
            lambda: cml.enqueue_kernel(queue, kernel("setval"), (1,), None, Out(field, 508, 4), np.int32(1)),
            lambda: cml.Migration(queue, field),
        ):
            with pytest.raises(MapConflictError, match=r"\[0, 512\) are mapped for reading .*wait_for=mapping\.unmap"):
                refused()
        cml.enqueue_fill(queue, field, np.uint8(0), 512, offset=512).wait()
        out = np.empty(N, np.int32)
        cml.enqueue_copy(queue, out, field)
    assert (out[:128] == np.arange(128)).all()


def test_after_the_unmap_nothing_conflicts(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, WRITE) as mapping:
        pass
    cml.enqueue_fill(queue, field, np.int32(0), wait_for=mapping.unmap_event)
    with Mapping(queue, field, WRITE):
        pass


def test_two_read_maps_with_equal_pointers_end_each_for_itself(queue: cl.CommandQueue, field: MemHandle) -> None:
    one = Mapping(queue, field, READ, shape=(N,), dtype=np.int32)
    two = Mapping(queue, field, READ, shape=(4,), dtype=np.int32)
    first, second = one.array, two.array
    one.unmap().wait()
    assert (one.state, two.state) == (MapState.UNMAPPED, MapState.MAPPED)
    assert map_count(field, 1) == 1
    assert first.shape == (0,)
    assert second.tolist() == [0, 1, 2, 3]
    with pytest.raises(MapConflictError, match=r"bytes \[0, 16\) are mapped for reading"):
        cml.enqueue_fill(queue, field, np.int32(1))
    two.unmap().wait()
    assert map_count(field, 0) == 0


# -- stale names and views -------------------------------------------------------------------------------------------


def test_a_stale_name_is_an_empty_array_that_nothing_can_be_done_with(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, WRITE, **INTS) as mapping:
        stale = mapping.array
        also = np.asarray(stale)
    assert also is stale
    assert stale.shape == (0,)
    assert stale.dtype == np.dtype("V1")
    assert not stale.flags.writeable
    assert stale.nbytes == 0
    for wrong in (
        lambda: stale == 1, lambda: stale < 1, lambda: stale + 1, lambda: stale * stale, lambda: stale.sum(),
        lambda: stale.max(), lambda: np.allclose(stale, 1), lambda: stale[0], lambda: stale.__setitem__(0, 1),
        lambda: stale.__setitem__(slice(None), 1), lambda: np.add(stale, 1, out=stale), lambda: bool(stale == 1),
    ):  # fmt: skip
        with pytest.raises((TypeError, IndexError, ValueError)):
            wrong()


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "slice": lambda a: a[2:5],
    "one element": lambda a: a[3:4],
    "step": lambda a: a[::-3],
    "reshape": lambda a: a.reshape(16, 16),
    "ravel": lambda a: a.reshape(16, 16).ravel(),
    "asarray of a slice": lambda a: np.asarray(a[1:]),
    "view": lambda a: a.view(np.uint8),
    "plain view": lambda a: a.view(),
    "transpose": lambda a: a.reshape(16, 16).T,
    "new axis": lambda a: a[:, None],
    "zero dimensions": lambda a: a[3, ...],
    "swapped axes": lambda a: np.swapaxes(a.reshape(4, 8, 8), 0, 2),
    "view of a view": lambda a: a[4:][3:].view(np.uint16)[1::2],
    "split": lambda a: np.split(a, 4)[2],
    "frombuffer-free ascontiguous": lambda a: np.ascontiguousarray(a[5:9]),
    "row of an iteration": lambda a: list(a.reshape(16, 16))[7],
    "field": lambda a: a.view([("x", np.int16), ("y", np.int16)])["y"],
    "frombuffer": lambda a: np.frombuffer(a, np.uint8),
    "real part": lambda a: a.view(np.complex64).real,
}


@pytest.mark.parametrize("derive", VIEWS.values(), ids=VIEWS)
def test_a_plain_view_that_lives_on_is_reported(
    queue: cl.CommandQueue, field: MemHandle, derive: Callable[[np.ndarray], np.ndarray]
) -> None:
    with (
        pytest.warns(ViewWarning, match=r"views of the array of the map \(at .*test_mapping.*'field' .*copy\(\)"),
        Mapping(queue, field, WRITE, **INTS) as mapping,
    ):
        kept = derive(mapping.array)
    assert kept.size
    mapping = Mapping(queue, field, WRITE, **INTS, views="raise")
    kept = derive(mapping.array)
    with pytest.raises(LiveViewError, match=r"map \(at .*test_mapping.*'field'"):
        mapping.unmap()
    assert mapping.state is MapState.UNMAPPED
    mapping.unmap_event.wait()
    assert map_count(field, 0) == 0


@pytest.mark.parametrize("derive", VIEWS.values(), ids=VIEWS)
def test_a_view_that_is_gone_before_the_unmap_is_not_reported(
    queue: cl.CommandQueue, field: MemHandle, derive: Callable[[np.ndarray], np.ndarray]
) -> None:
    with Mapping(queue, field, WRITE, **INTS, views="raise") as mapping:
        kept = derive(mapping.array)
        del kept


def test_copies_are_no_views(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ, **INTS, views="raise") as mapping:
        kept = [
            mapping.array.copy(),
            mapping.array[2:4].tolist(),
            mapping.array + 1,
            mapping.array[[1, 2]],
            mapping.copy(),
        ]
    assert len(kept) == 5


ESCAPES: dict[str, Callable[[np.ndarray], Any]] = {
    "memoryview": memoryview,
    "as_strided": lambda a: np.lib.stride_tricks.as_strided(a, (4,), (4,)),
    "recarray": lambda a: a.view(np.recarray),
    "masked array": np.ma.masked_array,
}


@pytest.mark.parametrize("derive", ESCAPES.values(), ids=ESCAPES)
def test_other_kinds_of_views_escape_notice_as_documented(
    queue: cl.CommandQueue, field: MemHandle, derive: Callable[[np.ndarray], Any]
) -> None:
    with Mapping(queue, field, READ, **INTS, views="raise") as mapping:
        kept = derive(mapping.array)
    assert kept is not None
    assert mapping.state is MapState.UNMAPPED


def test_a_live_view_of_an_image_is_reported(context: cl.Context, queue: cl.CommandQueue) -> None:
    with MemHandle.create_image(context, (8, 8), RGBA8) as image:
        with (
            pytest.warns(ViewWarning, match="unlabelled image"),
            Mapping(queue, image, WRITE, origin=(1, 1), region=(4, 4)) as mapping,
        ):
            kept = mapping.array[1]
        assert kept.shape == (4, 4)


def test_the_views_of_one_map_say_nothing_about_another(queue: cl.CommandQueue, field: MemHandle) -> None:
    with Mapping(queue, field, READ, views="raise") as one:
        kept = one.array[2:]
        with Mapping(queue, field, READ, views="raise") as two:
            two.array[3]
        del kept


def test_a_planted_fault_that_watches_the_wrong_array_is_caught(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cml._layout.BufferLayout, "anchor", lambda self, result: np.array(result[0]))
    with Mapping(queue, field, WRITE, **INTS) as mapping:
        mapping.array[:] = 7700
    assert not (content(queue, field) == 7700).any(), "the fault must show in what the other tests compare"


def test_a_planted_fault_that_forgets_the_anchor_makes_the_view_tests_fail(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: Any) -> str:
        self.array = self.anchor = None
        return ""

    monkeypatch.setattr(cml._openmap.OpenMap, "empty_array", forget)
    with Mapping(queue, field, WRITE, **INTS, views="raise") as mapping:
        kept, stale = mapping.array[2:5], mapping.array
    with pytest.raises(AssertionError):
        assert stale.shape == (0,)
    assert kept.size == 3  # no LiveViewError came, which the tests above demand


# -- mapped memory as host memory ------------------------------------------------------------------------------------


def test_the_unmap_waits_for_a_copy_from_the_mapped_array(
    context: cl.Context, queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    with MemHandle.create_buffer(context, N * 4) as target:
        with Mapping(queue, field, WRITE, **INTS) as mapping:
            mapping.array[:] = 5
            copied = cml.enqueue_copy(queue2, target, mapping.array, is_blocking=False, wait_for=gate)
        assert mapping.unmap_event.command_execution_status > 0
        filled = cml.enqueue_fill(queue, field, np.int32(9), wait_for=mapping.unmap_event)
        gate.set_status(COMPLETE)
        assert (content(queue2, target, wait_for=copied) == 5).all()
        assert (content(queue, field, wait_for=filled) == 9).all()


def test_the_unmap_waits_for_a_copy_to_a_part_of_the_mapped_array(
    context: cl.Context, queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    with MemHandle.create_buffer(context, 64) as source:
        cml.enqueue_fill(queue2, source, np.int32(-1)).wait()
        mapping = Mapping(queue, field, READ | WRITE, **INTS)
        cml.enqueue_copy(queue2, mapping.array[4:8], source, is_blocking=False, wait_for=gate)
        with pytest.warns(ViewWarning):
            event = mapping.unmap()  # the command in flight holds the slice that it writes
        assert event.command_execution_status > 0
        gate.set_status(COMPLETE)
        found = content(queue, field, wait_for=event)
    assert found[3:9].tolist() == [3, -1, -1, -1, -1, 8]


def test_copies_of_other_host_memory_do_not_hold_the_unmap_up(
    context: cl.Context, queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    with MemHandle.create_buffer(context, N * 4) as target:
        with Mapping(queue, field, READ, **INTS) as mapping:
            cml.enqueue_copy(queue2, target, mapping.copy(), is_blocking=False, wait_for=gate)
        mapping.unmap_event.wait()
        assert map_count(field, 0) == 0
        gate.set_status(COMPLETE)


def test_a_map_used_as_staging_memory_for_long_does_not_pile_up_events(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle
) -> None:
    with MemHandle.create_buffer(context, N * 4) as target, Mapping(queue, field, WRITE, **INTS) as staging:
        for number in range(1000):
            staging.array[0] = number
            cml.enqueue_copy(queue, target, staging.array, is_blocking=False).wait()
        assert len(_ledger.open_maps()[0].pending) <= 128
        assert content(queue, target)[0] == 999


# -- debugging -------------------------------------------------------------------------------------------------------


def test_unwritten_bytes_of_a_discarding_map_are_reported_when_debugging(
    queue: cl.CommandQueue, field: MemHandle
) -> None:
    with (
        pytest.warns(HazardWarning, match=r"of 1024 bytes of the discarding map .*'field'.* were never written"),
        Mapping(queue, field, DISCARD, **INTS, debug=True) as mapping,
    ):
        mapping.array[:100] = 1
    queue.finish()
    assert map_count(field, 0) == 0


def test_the_environment_turns_debugging_on(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLMEMLIFE_DEBUG", "1")
    with pytest.warns(HazardWarning, match="never written"), Mapping(queue, field, DISCARD) as mapping:
        assert mapping.array.any()
    with Mapping(queue, field, DISCARD, debug=False) as mapping:
        mapping.array


@pytest.mark.parametrize(
    "request_",
    [INTS, {"shape": (8, 4), "dtype": np.int32, "order": "F"}, {"shape": (), "dtype": np.int64}, {"dtype": np.uint8},
     {"shape": (16,), "dtype": "V12", "offset": 4}],
    ids=str,
)  # fmt: skip
def test_a_discarding_map_that_is_written_in_full_is_not_reported(
    queue: cl.CommandQueue, field: MemHandle, request_: dict[str, Any]
) -> None:
    with Mapping(queue, field, DISCARD, debug=True, **request_) as mapping:
        mapping.array[...] = np.zeros((), mapping.array.dtype)
    with Mapping(queue, field, DISCARD, debug=True, **request_):
        pass  # an array that nobody asked for has nothing to report


@pytest.mark.parametrize("written", [True, False])
def test_debugging_knows_the_pitches_of_an_image(context: cl.Context, queue: cl.CommandQueue, written: bool) -> None:
    format = cl.ImageFormat(cl.channel_order.R, cl.channel_type.FLOAT)
    with MemHandle.create_image(context, (40, 30), format) as image:
        cml.enqueue_fill(queue, image, np.ones(4, np.float32)).wait()
        mapping = Mapping(queue, image, DISCARD, origin=(3, 2), region=(16, 16), debug=True)
        mapping.array[: 16 if written else 8] = 0
        if written:
            mapping.unmap()
        else:
            with pytest.warns(HazardWarning, match="of 1024 bytes of the discarding map"):
                mapping.unmap()
        out = np.empty((30, 40), np.float32)
        cml.enqueue_copy(queue, out, image, origin=(0, 0), region=(40, 30), wait_for=mapping.unmap_event)
        outside = np.ones((30, 40), bool)
        outside[2:18, 3:19] = False
        assert (out[outside] == 1).all()


def test_a_report_that_became_an_error_does_not_keep_the_map_open(queue: cl.CommandQueue, field: MemHandle) -> None:
    with (
        pytest.raises(HazardWarning, match="never written"),
        Mapping(queue, field, DISCARD, debug=True) as mapping,
    ):
        mapping.array
    assert mapping.state is MapState.UNMAPPED
    with pytest.raises(ViewWarning), Mapping(queue, field, WRITE) as mapping:
        kept = mapping.array[2:]
    assert kept.size
    assert mapping.state is MapState.UNMAPPED
    queue.finish()
    assert map_count(field, 0) == 0


def test_a_mapping_cannot_be_copied_or_pickled(queue, field):
    with Mapping(queue, field, MapFlags.READ) as mapping:
        for refused in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                refused(mapping)


def test_an_interrupt_right_after_the_unmap_does_not_leave_the_map_open(context, queue, monkeypatch):
    def interrupt(*arguments):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with MemHandle.create_buffer(context, 64) as handle:
        mapping = Mapping(queue, handle, MapFlags.WRITE)
        array = mapping.array
        monkeypatch.setattr(cml._inflight, "hold", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mapping.unmap()
        assert (mapping.state, array.shape) == (MapState.UNMAPPED, (0,))
        assert mapping.unmap() is mapping.unmap_event
        cml.enqueue_fill(queue, handle, np.uint8(1), wait_for=mapping.unmap_event).wait()


@pytest.mark.parametrize("wrong", [None, 1, "yes", np.True_])
def test_is_blocking_is_true_or_false(context, queue, wrong):
    with MemHandle.create_buffer(context, 64) as handle:
        with pytest.raises(TypeError, match="is_blocking must be True or False, not"):
            Mapping(queue, handle, MapFlags.READ, is_blocking=wrong)
        with pytest.raises(TypeError, match="is_blocking must be True or False, not"):
            cml.enqueue_copy(queue, handle, np.zeros(64, np.uint8), is_blocking=wrong)
