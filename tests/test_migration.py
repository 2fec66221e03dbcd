"""Migrations: their events, what they hold and leave out, the way there and back, two devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import InOut, MapFlags, Mapping, MemFlags, MemHandle, Migration, MigrationFlags, _inflight, _limits
from clmemlife.exceptions import ContextMismatchError, DependencyError, MapConflictError, ReleasedError

N = 256
COMPLETE = cl.command_execution_status.COMPLETE


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    data = np.arange(N, dtype=np.int32)
    with MemHandle.create_buffer(context, hostbuf=data, flags=MemFlags.COPY_HOST_PTR, label="field") as handle:
        yield handle


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """What the driver was asked to migrate: addresses and flags."""
    seen: list[tuple[list[int], int]] = []
    true = cml._opencl.enqueue_migrate_mem_objects

    def record(queue: Any, mems: list[Any], flags: int, waits: Any) -> Any:
        seen.append(([mem.int_ptr for mem in mems], flags))
        return true(queue, mems, flags, waits)

    monkeypatch.setattr(cml._opencl, "enqueue_migrate_mem_objects", record)
    return seen


def content(queue: cl.CommandQueue, handle: MemHandle, wait_for: Any = None) -> np.ndarray:
    out = np.empty(handle.size // 4, np.int32)
    cml.enqueue_copy(queue, out, handle, wait_for=wait_for)
    return out


def test_there_and_back_between_two_devices_keeps_the_content_and_the_order(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, kernel: Callable[[str], cl.Kernel], field: MemHandle
) -> None:
    first = cml.enqueue_kernel(queue, kernel("slow"), (N,), None, field, np.int32(10), np.int32(5000))
    there = Migration(queue2, field, wait_for=first, source_queue=queue)
    second = cml.enqueue_kernel(queue2, kernel("inc"), (N,), None, field, wait_for=there)
    back = there.back(wait_for=second)
    third = cml.enqueue_kernel(queue, kernel("inc"), (N,), None, field, wait_for=back)
    assert (content(queue, field, wait_for=third) == 12).all()
    assert there.device == queue2.device
    assert back.device == queue.device
    assert back.handles == there.handles == (field,)


@pytest.mark.nvidia_fault("gated migration")
def test_back_waits_for_the_migration_itself(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    there = Migration(queue2, field, wait_for=gate, source_queue=queue)
    back = there.back()
    assert back.event.command_execution_status > 0
    gate.set_status(COMPLETE)
    back.wait()
    assert there.event.command_execution_status == COMPLETE


def test_back_knows_its_own_way_back(queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle) -> None:
    again = Migration(queue2, field, source_queue=queue).back().back()
    again.wait()
    assert again.device == queue2.device


def test_without_a_source_queue_there_is_no_way_back(queue: cl.CommandQueue, field: MemHandle) -> None:
    migration = Migration(queue, field)
    with pytest.raises(ValueError, match="source_queue="):
        migration.back()
    migration.wait()


def test_to_the_host_has_no_device(queue: cl.CommandQueue, field: MemHandle, asked: list[Any]) -> None:
    migration = Migration(queue, field, MigrationFlags.HOST)
    migration.wait()
    assert migration.device is None
    assert "to the host" in repr(migration)
    assert asked == [([field.int_ptr], MigrationFlags.HOST.value)]
    assert (content(queue, field) == np.arange(N)).all()


def test_undefined_content_is_passed_on(queue: cl.CommandQueue, field: MemHandle, asked: list[Any]) -> None:
    Migration(queue, field, MigrationFlags.CONTENT_UNDEFINED).wait()
    Migration(queue, field, MigrationFlags.CONTENT_UNDEFINED | MigrationFlags.HOST).wait()
    assert [flags for _, flags in asked] == [2, 3]


@pytest.mark.nvidia_fault("gated migration")
def test_it_waits_for_its_list_and_stands_for_its_event(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent
) -> None:
    migration = Migration(queue, field, wait_for=[gate, None, []])
    after = cml.enqueue_fill(queue2, field, np.int32(4), wait_for=[migration])
    assert migration.event.command_execution_status > 0
    assert after.command_execution_status > 0
    gate.set_status(COMPLETE)
    migration.wait()
    after.wait()
    assert migration.via == "driver"


@pytest.mark.parametrize("known", [pytest.param(True, marks=pytest.mark.nvidia_fault("gated migration")), False])
def test_where_a_driver_completes_migrations_too_early_a_marker_stands_for_them(
    context: cl.Context, queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent,
    wait: Callable[..., None], monkeypatch: pytest.MonkeyPatch, known: bool,
) -> None:  # fmt: skip
    true = cml._opencl.enqueue_migrate_mem_objects
    monkeypatch.setattr(
        cml._opencl, "enqueue_migrate_mem_objects", lambda queue, mems, flags, waits: true(queue, mems, flags, None)
    )
    monkeypatch.setattr(_limits.context_limits(context), "early_migrations", known)
    migration = Migration(queue, field, wait_for=gate)
    queue.flush()
    if not known:
        wait(lambda: migration.event.command_execution_status == COMPLETE, "the fault is there")
        return
    with cml.check_hazards():
        again = Migration(queue, field, wait_for=migration)
        after = cml.enqueue_fill(queue2, field, np.int32(4), wait_for=again)
        assert migration.event.command_execution_status > 0
        assert after.command_execution_status > 0
        gate.set_status(COMPLETE)
        after.wait()
    again.wait()


@pytest.mark.parametrize("early", [True, False])
def test_a_migration_is_one_command_to_who_listens(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    monkeypatch.setattr(_limits.context_limits(context), "early_migrations", early)
    with cml.record_timeline() as recorded:
        filled = cml.enqueue_fill(queue, field, np.int32(1))
        Migration(queue, field, wait_for=filled).wait()
    assert [one.kind for one in recorded.commands] == ["enqueue_fill", "migrate"]
    assert recorded.commands[1].waits == (recorded.commands[0].number,)


def test_a_refused_marker_leaves_the_migration_that_it_stands_for_in_flight(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise cl.RuntimeError("clEnqueueMarkerWithWaitList failed: OUT_OF_RESOURCES")

    monkeypatch.setattr(_limits.context_limits(context), "early_migrations", True)
    monkeypatch.setattr(_inflight, "sweep", lambda limit=None: None)
    with monkeypatch.context() as patch:
        patch.setattr(cml._opencl, "enqueue_marker", refuse)
        with pytest.raises(cl.RuntimeError, match="OUT_OF_RESOURCES") as caught:
            Migration(queue, field)
    assert caught.value.migration == _inflight._table[-1][0]  # type: ignore[attr-defined]
    queue.finish()
    assert (content(queue, field) == np.arange(N)).all()


@pytest.mark.parametrize("undefined", [False, True])
def test_what_waits_for_a_migration_comes_after_what_that_waits_for(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle, undefined: bool
) -> None:
    source = """kernel void late(global int *x, int n) {
        float v = x[0];
        for (int k = 0; k < n; ++k) v = v * 0.5f + 1.0f;
        x[0] = v > 100 ? 5 : 7;
    }"""
    late = cl.Kernel(cl.Program(context, source).build(), "late")
    moves, reads = (cl.CommandQueue(context, queue.device) for _ in range(2))
    cml.enqueue_fill(queue, field, np.int32(1)).wait()
    with MemHandle.create_buffer(context, 4, label="value") as value:
        cml.enqueue_fill(queue, value, np.int32(1)).wait()
        done = cml.enqueue_kernel(queue, late, (1,), None, InOut(value), np.int32(3_000_000))
        flags = MigrationFlags.CONTENT_UNDEFINED if undefined else MigrationFlags(0)
        with cml.check_hazards("record") as checker:
            assert content(reads, value, Migration(moves, field, flags, wait_for=done))[0] == 7
            assert done.command_execution_status == COMPLETE
        assert checker.findings == ()


def test_an_object_named_twice_or_with_its_parent_goes_once(
    queue: cl.CommandQueue, field: MemHandle, context: cl.Context, asked: list[Any]
) -> None:
    with (
        MemHandle.retain(field) as again,
        field.sub_buffer(0, 256) as part,
        part.sub_buffer(0, 128) as inner,
        MemHandle.create_buffer(context, 64) as other,
    ):
        asked_for = (part, field, other, again, field, inner)
        migration = Migration(queue, asked_for)
        migration.wait()
        assert migration.handles == asked_for
        assert asked == [([field.int_ptr, other.int_ptr], 0)]
        asked.clear()
        Migration(queue, iter([part, part])).wait()
        assert asked == [([part.int_ptr], 0)]


@pytest.mark.parametrize("nothing", [(), [], iter(())], ids=["tuple", "list", "iterator"])
def test_nothing_is_a_marker_that_carries_the_chain(
    out_of_order_queue: cl.CommandQueue, gate: cl.UserEvent, asked: list[Any], nothing: Any,
    marker_types: tuple[int, ...],
) -> None:  # fmt: skip
    migration = Migration(out_of_order_queue, nothing, wait_for=gate)
    assert migration.event.command_type in marker_types
    assert migration.event.command_execution_status > 0
    gate.set_status(COMPLETE)
    migration.wait()
    assert migration.handles == ()
    assert "of nothing" in repr(migration)
    assert asked == []


def test_a_mapped_object_is_refused_whole_or_in_part(
    queue: cl.CommandQueue, field: MemHandle, context: cl.Context, asked: list[Any]
) -> None:
    with field.sub_buffer(0, 512) as part, MemHandle.create_buffer(context, 64) as other:
        for flags in (MapFlags.READ, MapFlags.WRITE):
            with Mapping(queue, part, flags, size=16) as mapping:
                mapping.wait()
                for handles in (field, part, [other, field]):
                    with pytest.raises(MapConflictError, match=r"migrate at .*'field' \(1024 bytes"):
                        Migration(queue, handles)
        assert asked == []
        Migration(queue, field, wait_for=mapping.unmap_event).wait()


@pytest.mark.parametrize("wrong", [5, "field", b"field", [1], None, cl.Buffer])
def test_what_is_no_handle_is_refused_by_its_type(queue: cl.CommandQueue, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"a Migration takes MemHandles, not .*MemHandle\.retain"):
        Migration(queue, wrong)


def test_a_pyopencl_object_is_refused(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    with pytest.raises(TypeError, match="not Buffer"):
        Migration(queue, [field, cl.Buffer(context, 0, 16)])  # type: ignore[list-item]


@pytest.mark.parametrize("flags", [0, 1, MapFlags.READ, MemFlags.READ_WRITE, None])
def test_flags_of_another_kind_are_refused(queue: cl.CommandQueue, field: MemHandle, flags: Any) -> None:
    with pytest.raises(TypeError, match="must be MigrationFlags"):
        Migration(queue, field, flags)


def test_a_flag_that_the_driver_does_not_know_is_its_error(queue: cl.CommandQueue, field: MemHandle) -> None:
    with pytest.raises(cl.Error, match="INVALID_VALUE"):
        Migration(queue, field, MigrationFlags(1 << 5))
    assert _inflight.entries() == ()


def test_wrong_queues_and_ways_are_refused(
    context: cl.Context, devices: list[cl.Device], queue: cl.CommandQueue, field: MemHandle
) -> None:
    with pytest.raises(TypeError, match="queue must be"):
        Migration(context, field)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="queue must be"):
        Migration(queue, field, source_queue=context)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="via must be"):
        Migration(queue, field, via="magic")
    other = cl.Context(devices[:1])
    with pytest.raises(ContextMismatchError, match="'field'"):
        Migration(cl.CommandQueue(other, devices[0]), field)


def test_a_released_handle_is_refused(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    gone = MemHandle.create_buffer(context, 16, label="gone")
    gone.release()
    with pytest.raises(ReleasedError, match="'gone'"):
        Migration(queue, [field, gone])


def test_a_failed_event_is_refused(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    failed = cl.UserEvent(context)
    failed.set_status(-5)
    for handles in (field, []):
        with pytest.raises(DependencyError, match="OUT_OF_RESOURCES"):
            Migration(queue, handles, wait_for=failed)


@pytest.mark.nvidia_fault("gated migration")
def test_a_list_that_fails_late_fails_the_wait(queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent) -> None:
    migration = Migration(queue, field, wait_for=gate)
    gate.set_status(-5)
    with pytest.raises(DependencyError, match=r"<Migration of field to .* failed with") as caught:
        migration.wait()
    assert caught.value.status < 0
    assert caught.value.event == migration.event


@pytest.mark.nvidia_fault("gated migration")
def test_a_handle_released_before_its_migration_has_run_lives_until_it_has(
    context: cl.Context, queue: cl.CommandQueue, gate: cl.UserEvent
) -> None:
    handle = MemHandle.create_buffer(context, 64)
    with MemHandle.retain(handle) as witness:
        migration = Migration(queue, handle, wait_for=gate)
        before = witness.info().reference_count
        handle.release()
        assert witness.info().reference_count == before - 1
        assert len(_inflight.entries()) == 1
        gate.set_status(COMPLETE)
        migration.wait()


def test_images_go_too(context: cl.Context, queue: cl.CommandQueue, queue2: cl.CommandQueue) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    pixels = np.random.default_rng(1).integers(0, 256, (4, 8, 4), np.uint8)
    with MemHandle.create_image(context, (8, 4), format, MemFlags.COPY_HOST_PTR, hostbuf=pixels) as image:
        moved = Migration(queue2, image)
        out = np.empty_like(pixels)
        cml.enqueue_copy(queue2, out, image, origin=(0, 0), region=(8, 4), wait_for=moved)
        assert (out == pixels).all()
