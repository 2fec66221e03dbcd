"""The hazard checker at work: known mistakes through the library's own commands, and how it is used.

The names carry the numbers of the collection of public reports that the project is built against. Each case is run as
it was reported, and with the ``wait_for`` that the finding asks for.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl
import pytest
from pyopencl.tools import ImmediateAllocator, MemoryPool

import clmemlife as cml
from clmemlife import (
    HazardError,
    HazardWarning,
    In,
    InOut,
    MapConflictError,
    MapFlags,
    Mapping,
    MemFlags,
    MemHandle,
    Migration,
    MigrationFlags,
    Out,
    UnorderedAccessError,
    _foreign,
    _inflight,
    _opencl,
)

pytestmark = pytest.mark.unordered("what it misses is for a checker of its own")
ENQUEUES = [name for name in _opencl.ENTRY_POINTS if name.startswith("enqueue_")]
ONE = np.int32(1)
Sites = tuple[str, str]


def here(below: int = 0) -> str:
    """Return the line that calls this, or one `below` it, as a finding names it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + below}"


class Bench(NamedTuple):
    """What a case needs."""

    field: MemHandle
    queue: cl.CommandQueue
    queue2: cl.CommandQueue
    loose: cl.CommandQueue
    kernel: Callable[[str], cl.Kernel]
    host: np.ndarray


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, 4096, label="field") as handle:
        yield handle


@pytest.fixture
def bench(
    field: MemHandle,
    queue: cl.CommandQueue,
    queue2: cl.CommandQueue,
    out_of_order_queue: cl.CommandQueue,
    kernel: Callable[[str], cl.Kernel],
) -> Bench:
    return Bench(field, queue, queue2, out_of_order_queue, kernel, np.zeros(1024, np.int32))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all calls of the driver that enqueue something."""
    made: list[str] = []

    def recorded(name: str) -> Callable[..., Any]:
        original = getattr(_opencl, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            made.append(name)
            return original(*arguments, **keywords)

        return call

    for name in ENQUEUES:
        monkeypatch.setattr(_opencl, name, recorded(name))
    return made


# Known mistakes: each returns the site of the first command, and that of the second, which waits if `cured`


def c26_overlapping_sub_buffers(b: Bench, cured: bool) -> Sites:
    slow, setval = b.kernel("slow"), b.kernel("setval")
    with b.field.sub_buffer(0, 2048) as one, b.field.sub_buffer(1024, 2048) as two:
        first, event = here(), cml.enqueue_kernel(b.queue, slow, (512,), None, InOut(one), ONE, ONE)
        wait = event if cured else None
        second, _ = here(), cml.enqueue_kernel(b.queue2, setval, (512,), None, Out(two), ONE, wait_for=wait)
    return first, second


def c26_parent_and_child(b: Bench, cured: bool) -> Sites:
    with b.field.sub_buffer(1024, 2048) as part:
        first, event = here(), cml.enqueue_fill(b.queue, b.field, ONE)
        second, _ = here(), cml.enqueue_copy(b.queue2, b.host[:512], part, wait_for=event if cured else None)
    return first, second


def c37_an_unmap_is_only_enqueued(b: Bench, cured: bool) -> Sites:
    mapping = Mapping(b.queue, b.field, MapFlags.WRITE)
    mapping.array[:] = 1
    first, event = here(), mapping.unmap()
    wait = event if cured else None
    second, _ = here(), cml.enqueue_kernel(b.queue2, b.kernel("inc"), (1024,), None, InOut(b.field), wait_for=wait)
    return first, second


def c40_an_out_of_order_queue(b: Bench, cured: bool) -> Sites:
    cml.enqueue_fill(b.loose, b.field, np.int32(-1)).wait()
    slow = b.kernel("slow")
    first, event = here(), cml.enqueue_kernel(b.loose, slow, (1024,), None, Out(b.field), np.int32(7), ONE)
    second, _ = here(), cml.enqueue_copy(b.loose, b.host, b.field, wait_for=event if cured else None)
    return first, second


def c41_two_queues_in_order(b: Bench, cured: bool) -> Sites:
    cml.enqueue_fill(b.queue, b.field, np.int32(-1)).wait()
    slow = b.kernel("slow")
    first, event = here(), cml.enqueue_kernel(b.queue, slow, (1024,), None, Out(b.field), np.int32(7), ONE)
    second, _ = here(), cml.enqueue_copy(b.queue2, b.host, b.field, wait_for=event if cured else None)
    return first, second


def c61_a_migration_does_not_wait_for_the_kernel_of_the_other_device(b: Bench, cured: bool) -> Sites:
    inc = b.kernel("inc")
    first, event = here(), cml.enqueue_kernel(b.queue, inc, (1024,), None, InOut(b.field))
    second, _ = here(), Migration(b.queue2, b.field, wait_for=event if cured else None)
    return first, second


def c61_a_kernel_does_not_wait_for_the_migration_by_another_queue(b: Bench, cured: bool) -> Sites:
    inc = b.kernel("inc")
    first, moved = here(), Migration(b.queue2, b.field)
    wait = moved if cured else None
    second, _ = here(), cml.enqueue_kernel(b.loose, inc, (1024,), None, InOut(b.field), wait_for=wait)
    return first, second


CASES = {
    c26_overlapping_sub_buffers: ("write_after_write", "enqueue_kernel", "enqueue_kernel", (1024, 2048)),
    c26_parent_and_child: ("read_after_write", "enqueue_fill", "enqueue_copy", (1024, 3072)),
    c37_an_unmap_is_only_enqueued: ("read_after_write", "unmap", "enqueue_kernel", (0, 4096)),
    c40_an_out_of_order_queue: ("read_after_write", "enqueue_kernel", "enqueue_copy", (0, 4096)),
    c41_two_queues_in_order: ("read_after_write", "enqueue_kernel", "enqueue_copy", (0, 4096)),
    c61_a_migration_does_not_wait_for_the_kernel_of_the_other_device: (
        "read_after_write", "enqueue_kernel", "migrate", (0, 4096)
    ),
    c61_a_kernel_does_not_wait_for_the_migration_by_another_queue: (
        "read_after_write", "migrate", "enqueue_kernel", (0, 4096)
    ),
}  # fmt: skip
FAULTS = {c26_overlapping_sub_buffers: [pytest.mark.nvidia_fault("overlapping sub-buffers")]}
each_case = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.__name__, marks=FAULTS.get(case, ())) for case in CASES]
)


@each_case
def test_a_known_mistake_is_found_with_both_sites_kinds_and_bytes(bench: Bench, case: Callable[..., Sites]) -> None:
    with cml.check_hazards("record") as checker:
        first, second = case(bench, False)
    (finding,) = checker.findings
    hazard, first_kind, second_kind, (start, stop) = CASES[case]
    assert (finding.hazard, finding.first.kind, finding.second.kind) == (hazard, first_kind, second_kind)
    assert (finding.first.site, finding.second.site) == (first, second)
    assert (finding.start, finding.stop, finding.site) == (start, stop, bench.field.site)
    assert f"At {second} add wait_for=[" in finding.advice
    assert f"at {first}]" in finding.advice


@each_case
def test_the_suggested_wait_list_silences_a_known_mistake(bench: Bench, case: Callable[..., Sites]) -> None:
    with cml.check_hazards("record") as checker:
        case(bench, True)
    assert checker.findings == ()


@each_case
def test_the_error_comes_before_the_second_command_is_enqueued(
    bench: Bench, case: Callable[..., Sites], calls: list[str]
) -> None:
    with cml.check_hazards("record"):
        case(bench, True)
    complete = calls.copy()
    if complete[-2:] == ["enqueue_migrate_mem_objects", "enqueue_marker"]:
        complete.pop()  # part of the migration, on some drivers
    for queue in (bench.queue, bench.queue2, bench.loose):
        queue.finish()
    calls.clear()
    with cml.check_hazards(), pytest.raises(UnorderedAccessError) as caught:
        case(bench, False)
    assert calls == complete[: len(calls)]
    assert len(calls) == len(complete) - 1
    assert caught.value.finding.second.kind == CASES[case][2]


def test_c29_a_command_on_mapped_bytes_is_refused_with_both_sites(bench: Bench, calls: list[str]) -> None:
    inc = bench.kernel("inc")
    mapped, mapping = here(), Mapping(bench.queue, bench.field, MapFlags.WRITE)
    with cml.check_hazards("record") as checker, mapping:
        calls.clear()
        with pytest.raises(MapConflictError, match="mapped for writing") as caught:
            tried = here(1)
            cml.enqueue_kernel(bench.queue, inc, (1024,), None, InOut(bench.field))
        assert f"mapped for writing since {mapped};" in str(caught.value)
        assert f"enqueue_kernel 'inc' at {tried} " in str(caught.value)
        assert calls == []
        mapping.array[:] = 1
    cml.enqueue_kernel(bench.queue2, inc, (1024,), None, InOut(bench.field), wait_for=mapping.unmap_event)
    assert checker.findings == ()


def test_c29_a_declared_command_of_others_on_mapped_bytes_races_with_the_host(bench: Bench) -> None:
    inc, mem = bench.kernel("inc"), bench.field.mem
    with cml.check_hazards("record") as checker:
        mapped, mapping = here(), Mapping(bench.queue, bench.field, MapFlags.WRITE)
        enqueued, event = here(), inc(bench.queue, (1024,), None, mem)
        cml.declare(event, writes=bench.field)
        mapping.unmap()
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.site, finding.second.site) == ("host_map", mapped, enqueued)
    assert str(finding.second) == f"foreign 'enqueue_nd_range_kernel' on queue 1 ({enqueued})"
    assert "unmap_event" in finding.advice


def test_c37_an_unmap_that_hangs_on_a_user_event_is_waited_for_like_any_other(bench: Bench, gate: cl.UserEvent) -> None:
    with cml.check_hazards() as checker:
        mapping = Mapping(bench.queue, bench.field, MapFlags.WRITE)
        first, _ = here(), mapping.unmap(wait_for=gate)
        with pytest.raises(UnorderedAccessError) as caught:
            cml.enqueue_fill(bench.queue2, bench.field, ONE)
        assert (caught.value.finding.first.site, caught.value.finding.first.kind) == (first, "unmap")
        cml.enqueue_fill(bench.queue2, bench.field, ONE, wait_for=mapping.unmap_event)
        gate.set_status(0)
    assert len(checker.findings) == 1


def test_a_command_that_hangs_on_a_user_event_is_judged_when_that_is_set(bench: Bench, gate: cl.UserEvent) -> None:
    with cml.check_hazards() as checker:
        first, _ = here(), cml.enqueue_fill(bench.queue, bench.field, ONE, wait_for=gate)
        second, _ = here(), cml.enqueue_fill(bench.queue2, bench.field, ONE)
        assert checker.findings == ()
        with pytest.raises(UnorderedAccessError) as caught:
            gate.set_status(0)
    finding = caught.value.finding
    assert {finding.first.site, finding.second.site} == {first, second}
    assert gate.command_execution_status == 0


def test_c46_what_comes_beside_a_command_whose_dependency_fails_is_found(bench: Bench, gate: cl.UserEvent) -> None:
    with cml.check_hazards("record") as checker:
        first, failed = here(), cml.enqueue_fill(bench.queue, bench.field, ONE, wait_for=gate)
        second, _ = here(), cml.enqueue_copy(bench.queue2, bench.host, bench.field, is_blocking=False)
        gate.set_status(-1)
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.site, finding.second.site) == ("read_after_write", first, second)
    with pytest.raises(cl.Error):
        failed.wait()


def test_c46_with_the_dependency_passed_on_nothing_is_enqueued_and_nothing_found(
    bench: Bench, gate: cl.UserEvent, calls: list[str]
) -> None:
    setval = bench.kernel("setval")
    with cml.check_hazards() as checker:
        failed = cml.enqueue_kernel(bench.queue, setval, (1024,), None, Out(bench.field), ONE, wait_for=gate)
        gate.set_status(-1)
        with pytest.raises(cl.Error):
            failed.wait()
        calls.clear()
        with pytest.raises(cml.DependencyError):
            cml.enqueue_copy(bench.queue2, bench.host, bench.field, wait_for=failed)
        assert calls == []
    assert checker.findings == ()


def test_c46_a_wait_that_raised_has_ended_all_the_same(bench: Bench, gate: cl.UserEvent) -> None:
    setval = bench.kernel("setval")
    with cml.check_hazards():
        failed = cml.enqueue_kernel(bench.queue, setval, (1024,), None, Out(bench.field), ONE, wait_for=gate)
        gate.set_status(-1)
        with pytest.raises(cl.Error):
            failed.wait()
        cml.enqueue_copy(bench.queue2, bench.host, bench.field)


# What is the same memory


def test_two_handles_of_one_object_are_one_object(bench: Bench) -> None:
    with MemHandle.retain(bench.field) as other, MemHandle.retain(bench.field.int_ptr, label="third") as third:
        with cml.check_hazards("record") as checker:
            cml.enqueue_fill(bench.queue, bench.field, ONE)
            cml.enqueue_fill(bench.queue2, other, ONE)
        with cml.check_hazards("record") as again:
            cml.enqueue_fill(bench.queue, third, ONE)
            cml.enqueue_copy(bench.queue2, bench.host, other.mem)
    assert [finding.hazard for finding in checker.findings] == ["write_after_write"]
    assert [finding.hazard for finding in again.findings] == ["read_after_write"]


def test_a_buffer_without_a_handle_is_known_as_long_as_it_lives(context: cl.Context, bench: Bench) -> None:
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
    inc = bench.kernel("inc")
    with cml.check_hazards("record") as checker:
        first, _ = here(), cml.enqueue_kernel(bench.queue, inc, (1024,), None, InOut(raw))
        second, _ = here(), cml.enqueue_copy(bench.queue2, bench.host, raw)
        assert len(cml.explain(raw).splitlines()) == 3
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.site, finding.second.site) == ("read_after_write", first, second)


@pytest.mark.nvidia_fault("late notice", run=True)
def test_another_buffer_at_the_same_address_is_another_object(context: cl.Context, bench: Bench) -> None:
    addresses = []
    with cml.check_hazards() as checker:
        for number in range(100):
            raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
            addresses.append(raw.int_ptr)
            event = cml.enqueue_fill((bench.queue, bench.queue2)[number % 2], raw, ONE)
            while event.command_execution_status > 0:  # which orders nothing
                bench.queue.flush()
            del raw, event
            _inflight.sweep()
    assert len(set(addresses)) < 100
    assert checker.findings == ()


class Raw(NamedTuple):
    """An object that somebody else holds, and a handle on it."""

    mem: cl.Buffer
    bench: Bench

    def handle(self, queue: cl.CommandQueue, wait_for: Any = None) -> cl.Event:
        """Use it through a handle that ends at once."""
        with MemHandle.retain(self.mem) as one:
            return cml.enqueue_fill(queue, one, ONE, wait_for=wait_for)

    def plain(self, queue: cl.CommandQueue, wait_for: Any = None) -> cl.Event:
        """Use it without a handle."""
        return cml.enqueue_fill(queue, self.mem, ONE, wait_for=wait_for)

    def map(self, queue: cl.CommandQueue, wait_for: Any = None) -> cl.Event:
        """Map it through a handle that ends before the map."""
        with MemHandle.retain(self.mem) as one:
            mapping = Mapping(queue, one, MapFlags.WRITE_INVALIDATE_REGION, wait_for=wait_for)
        return mapping.unmap()


@pytest.mark.parametrize("second", [Raw.handle, Raw.plain, Raw.map])
@pytest.mark.parametrize("first", [Raw.handle, Raw.plain, Raw.map])
def test_an_object_that_outlives_its_handles_stays_the_same_object(
    context: cl.Context, bench: Bench, first: Callable[..., cl.Event], second: Callable[..., cl.Event]
) -> None:
    raw = Raw(cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096), bench)
    with cml.check_hazards("record") as checker:
        event = first(raw, bench.queue)
        second(raw, bench.queue2, event)
        assert checker.findings == ()
        second(raw, bench.queue)
        assert [finding.hazard for finding in checker.findings] == ["write_after_write"]


@pytest.mark.parametrize("end", [MemHandle.release, MemHandle.detach])
def test_a_name_kept_past_the_end_of_its_handle_is_the_same_object(
    context: cl.Context, bench: Bench, end: Callable[[MemHandle], object]
) -> None:
    handle = MemHandle.create_buffer(context, 4096, label="gone")
    mem = handle.mem
    with cml.check_hazards("record") as checker:
        cml.enqueue_fill(bench.queue, handle, ONE)
        end(handle)
        cml.enqueue_fill(bench.queue2, mem, ONE)
    (finding,) = checker.findings
    assert (finding.label, finding.site) == ("gone", handle.site)


def test_a_sub_buffer_that_outlives_its_root_is_still_a_part_of_it(context: cl.Context, bench: Bench) -> None:
    root = MemHandle.create_buffer(context, 4096)
    part, mem = root.sub_buffer(0, 2048), root.mem
    with cml.check_hazards("record") as checker:
        cml.enqueue_fill(bench.queue, root, ONE)
        root.release()
        part.release()
        cml.enqueue_fill(bench.queue2, mem, ONE)
    assert [finding.hazard for finding in checker.findings] == ["write_after_write"]


def test_what_is_kept_of_released_objects_is_bounded(context: cl.Context, bench: Bench) -> None:
    with cml.check_hazards() as checker:
        for _ in range(400):
            with MemHandle.create_buffer(context, 64) as one:
                cml.enqueue_fill(bench.queue, one, ONE).wait()
            del one
            _inflight.sweep()
        assert len(checker._checker._objects.uses) <= 2 * _foreign._SLACK
        assert len(_foreign._kept) <= 2 * _foreign._SLACK


def test_what_nested_readers_keep_does_not_grow_with_the_number_of_commands(
    context: cl.Context, bench: Bench, field: MemHandle
) -> None:
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, field.size)
    with (
        MemHandle.create_buffer(context, field.size) as result,
        cml.check_hazards("record") as outer,
        cml.record_timeline(limit=100) as timeline,
        cml.check_hazards("record") as inner,
    ):
        done = None
        for number in range(20_000 // 3):
            queue = (bench.queue, bench.queue2)[number % 2]
            filled = cml.enqueue_fill(queue, field, ONE, wait_for=done)
            copied = cl.enqueue_copy(queue, raw, field.mem, wait_for=[filled])
            done = cml.enqueue_copy(queue, result, field, wait_for=copied)
            if number % 100 == 99:
                done.wait()
                _inflight.sweep()
                for checker in (outer._checker, inner._checker):
                    assert len(checker._order.nodes) < 2000  # a few times what is enqueued at a time
                    assert all(len(uses.segments) == 1 for uses in checker._objects.uses.values())
        done.wait()
        assert len(timeline.commands) == 100
        assert len(timeline._recording._events.known) == 0
    assert outer.findings == inner.findings == ()


@pytest.mark.alone("that listens")
def test_nothing_is_asked_of_the_driver_while_nobody_listens(
    context: cl.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(_foreign._kept)
    with MemHandle.create_buffer(context, 64) as one, MemHandle.retain(one.mem):
        pass
    assert _foreign._kept == before


def test_c49_a_block_that_a_pool_hands_out_twice_is_one_memory(
    context: cl.Context, bench: Bench, wait: Callable[..., None]
) -> None:
    pool = MemoryPool(ImmediateAllocator(bench.queue))
    slow = bench.kernel("slow")

    def use(queue: cl.CommandQueue, wait_for: cl.Event | None) -> tuple[int, str, cl.Event]:
        block = pool.allocate(4096)
        line, event = here(), cml.enqueue_kernel(queue, slow, (1024,), None, InOut(block), ONE, ONE, wait_for=wait_for)
        address = block.int_ptr
        del block
        wait(lambda: not _inflight.entries(), "the kernel is complete and its block the pool's")  # which orders nothing
        return address, line, event

    with cml.check_hazards("record") as checker:
        address, line, event = use(bench.queue, None)
        same, _, _ = use(bench.queue2, event)
        assert checker.findings == ()
        again, _, _ = use(bench.queue, None)
    assert address == same == again
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.site, finding.second.site) == ("read_after_write", line, line)
    pool.stop_holding()


def test_sub_buffers_that_share_no_byte_are_silent(bench: Bench) -> None:
    with bench.field.sub_buffer(0, 1024) as one, bench.field.sub_buffer(1024, 1024) as two, cml.check_hazards():
        cml.enqueue_fill(bench.queue, one, ONE)
        cml.enqueue_fill(bench.queue2, two, ONE)


@pytest.mark.filterwarnings("ignore::clmemlife.ZeroCopyWarning")
def test_two_objects_on_one_host_memory_are_one_memory(context: cl.Context, bench: Bench) -> None:
    memory = cml.aligned_empty(8192, np.uint8, context)
    uses = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
    with (
        MemHandle.create_buffer(context, flags=uses, hostbuf=memory[:4096], label="low") as low,
        MemHandle.create_buffer(context, flags=uses, hostbuf=memory[2048:], label="high", allow_alias=True) as high,
    ):
        with cml.check_hazards():
            event = cml.enqueue_fill(bench.queue, low, ONE)
            cml.enqueue_fill(bench.queue2, high, ONE, 4096, offset=2048)  # behind the end of the other
            cml.enqueue_copy(bench.queue2, bench.host[:512], high, wait_for=event)
        with cml.check_hazards("record") as checker:
            first, _ = here(), cml.enqueue_fill(bench.queue, low, ONE)
            second, _ = here(), cml.enqueue_copy(bench.queue2, bench.host, high)
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.site, finding.second.site) == ("read_after_write", first, second)
    assert (finding.label, finding.start, finding.stop) == ("high", 0, 2048)
    assert (finding.first.start, finding.first.stop) == (0, 4096)
    assert f"of 'low' (created at {low.site}), on the same host memory" in str(finding)


@pytest.mark.filterwarnings("ignore::clmemlife.ZeroCopyWarning")
def test_the_release_of_one_of_two_objects_on_one_host_memory_forgets_nothing(
    context: cl.Context, bench: Bench
) -> None:
    memory = cml.aligned_empty(4096, np.uint8, context)
    uses = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
    with MemHandle.create_buffer(context, flags=uses, hostbuf=memory, label="two") as one:
        two = MemHandle.create_buffer(context, flags=uses, hostbuf=memory, label="one", allow_alias=True)
        with cml.check_hazards("record") as checker:
            cml.enqueue_fill(bench.queue, two, ONE)
            two.release()
            cml.enqueue_fill(bench.queue2, one, ONE)
    assert [finding.hazard for finding in checker.findings] == ["write_after_write"]


def test_rectangles_that_share_no_byte_are_silent_also_in_sub_buffers(bench: Bench) -> None:
    inner = np.zeros((8, 8), np.uint8)
    with bench.field.sub_buffer(1024, 2048) as part, cml.check_hazards():
        for queue, column in ((bench.queue, 0), (bench.queue2, 8)):
            where = {"buffer_origin": (column, 0), "host_origin": (0, 0), "region": (8, 8), "buffer_pitches": (64,)}
            cml.enqueue_copy(queue, part, inner, is_blocking=False, **where)
        cml.enqueue_fill(bench.loose, part, np.uint8(1), 48, offset=16)  # between the rows
        bench.queue.finish()


def test_a_rectangle_in_a_sub_buffer_leaves_what_is_between_its_rows_to_others(bench: Bench) -> None:
    inner = np.zeros((8, 8), np.uint8)
    with bench.field.sub_buffer(1024, 2048) as part, cml.check_hazards("record") as checker:
        event = cml.enqueue_fill(bench.queue, part, ONE)
        where = {"buffer_origin": (0, 0), "host_origin": (0, 0), "region": (8, 8), "buffer_pitches": (64,)}
        cml.enqueue_copy(bench.queue, part, inner, is_blocking=False, wait_for=event, **where)
        cml.enqueue_fill(bench.queue2, part, np.uint8(1), 48, offset=16)
        bench.queue.finish()
    (finding,) = checker.findings
    assert (finding.first.kind, finding.second.kind) == ("enqueue_fill", "enqueue_fill")


# How kernels use things


def test_two_kernels_that_only_read_are_never_reported(context: cl.Context, bench: Bench) -> None:
    copy = bench.kernel("copy")  # of its arguments the source says which is const
    with (
        MemHandle.create_buffer(context, 4096) as one,
        MemHandle.create_buffer(context, 4096) as two,
        cml.check_hazards(),
    ):
        cml.enqueue_kernel(bench.queue, copy, (1024,), None, bench.field, one)
        cml.enqueue_kernel(bench.queue2, copy, (1024,), None, bench.field, two)


def test_a_use_that_nothing_declares_says_that_it_is_assumed(bench: Bench) -> None:
    inc = bench.kernel("inc")
    with cml.check_hazards("record") as checker:
        cml.enqueue_kernel(bench.queue, inc, (1024,), None, bench.field)
        cml.enqueue_copy(bench.queue2, bench.host, bench.field)
    (finding,) = checker.findings
    assert finding.first.assumed
    assert not finding.second.assumed
    assert "may still be writing bytes [0, 4096) (assumed: nothing declares how it is used)" in str(finding)


def test_an_assumed_use_does_not_race_with_a_map_for_reading_but_a_declared_one_is_refused(bench: Bench) -> None:
    inc = bench.kernel("inc")
    with cml.check_hazards(), Mapping(bench.queue, bench.field, MapFlags.READ) as mapping:
        mapping.wait()
        cml.enqueue_kernel(bench.queue, inc, (1024,), None, bench.field)
        with pytest.raises(MapConflictError):
            cml.enqueue_kernel(bench.queue, inc, (1024,), None, InOut(bench.field))


def test_declared_ranges_that_share_no_byte_are_silent(bench: Bench) -> None:
    inc = bench.kernel("inc")
    with cml.check_hazards():
        cml.enqueue_kernel(bench.queue, inc, (512,), None, InOut(bench.field, 0, 2048))
        cml.enqueue_kernel(bench.queue2, inc, (512,), None, InOut(bench.field, 2048), global_offset=(512,))


# Migrations


def test_a_read_of_what_a_migration_left_undefined_is_found_though_it_is_ordered(bench: Bench) -> None:
    with cml.check_hazards() as checker:
        first, moved = here(), Migration(bench.queue, bench.field, MigrationFlags.CONTENT_UNDEFINED)
        with pytest.raises(HazardError, match="use of undefined content on 'field'") as caught:
            cml.enqueue_copy(bench.queue, bench.host, bench.field, wait_for=moved)
        assert not isinstance(caught.value, UnorderedAccessError)
        assert caught.value.finding.first.site == first
        written = cml.enqueue_fill(bench.queue, bench.field, ONE, wait_for=moved)
        cml.enqueue_copy(bench.queue2, bench.host, bench.field, wait_for=written)
    assert len(checker.findings) == 1


# Modes, nesting, suppression


def hazard(bench: Bench) -> None:
    """Leave two writes unordered."""
    cml.enqueue_fill(bench.queue, bench.field, ONE)
    cml.enqueue_fill(bench.queue2, bench.field, ONE)


def test_mode_warn_warns_at_the_line_of_the_second_command(bench: Bench) -> None:
    with cml.check_hazards("warn") as checker, pytest.warns(HazardWarning, match="write-after-write") as caught:
        hazard(bench)
    assert f"{caught[0].filename}:{caught[0].lineno}" == checker.findings[0].second.site


def test_a_mistake_in_a_loop_is_one_finding_with_its_count(bench: Bench) -> None:
    with cml.check_hazards("record") as checker:
        for _ in range(5):
            hazard(bench)
            bench.queue.finish()
            bench.queue2.finish()
    (finding,) = checker.findings
    assert finding.count == 5


def test_a_suppressed_key_is_silent_and_another_is_not(bench: Bench) -> None:
    with cml.check_hazards("record") as checker:
        hazard(bench)
        cml.enqueue_copy(bench.loose, bench.host, bench.field)
    keys = [finding.key for finding in checker.findings]
    assert len(set(keys)) == 3  # one between the two writes, two with the copy
    bench.queue.finish()
    bench.queue2.finish()
    with cml.check_hazards(suppress=[keys[0]]) as quiet:
        hazard(bench)
        with pytest.raises(UnorderedAccessError):
            cml.enqueue_copy(bench.loose, bench.host, bench.field)
    assert len(quiet.findings) == 2


def test_a_nested_scope_has_its_own_findings_and_begins_without_a_past(bench: Bench) -> None:
    with cml.check_hazards("record") as outer:
        cml.enqueue_fill(bench.queue, bench.field, ONE)
        with cml.check_hazards("record") as inner:
            cml.enqueue_fill(bench.queue2, bench.field, ONE)
        cml.enqueue_fill(bench.loose, bench.field, ONE)
    assert inner.findings == ()
    assert [finding.first.queue for finding in outer.findings] == [1, 1, 2]


def test_the_error_of_an_inner_scope_leaves_no_trace_in_the_outer_one(bench: Bench) -> None:
    with cml.check_hazards("record") as outer:
        with cml.check_hazards(), pytest.raises(UnorderedAccessError):
            hazard(bench)
        cml.enqueue_copy(bench.queue, bench.host, bench.field)
    assert [finding.count for finding in outer.findings] == [1]  # told before the inner one raised
    assert outer.findings[0].second.kind == "enqueue_fill"


def test_an_error_of_the_body_is_not_hidden_by_what_is_found_at_the_end(bench: Bench, gate: cl.UserEvent) -> None:
    with pytest.raises(ZeroDivisionError), cml.check_hazards() as checker:
        cml.enqueue_fill(bench.queue, bench.field, ONE, wait_for=gate)
        cml.enqueue_fill(bench.queue2, bench.field, ONE)
        raise ZeroDivisionError
    assert len(checker.findings) == 1


def test_what_hangs_on_a_user_event_that_is_never_set_is_raised_at_the_end(bench: Bench, gate: cl.UserEvent) -> None:
    def body() -> None:
        with cml.check_hazards():
            cml.enqueue_fill(bench.queue, bench.field, ONE, wait_for=gate)
            cml.enqueue_fill(bench.queue2, bench.field, ONE)

    with pytest.raises(UnorderedAccessError):
        body()
    cml.enqueue_fill(bench.queue2, bench.field, ONE)  # nobody listens any more


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="it must be 'raise', 'warn' or 'record'"):
        cml.check_hazards("loud")


def test_a_scope_stopped_twice_and_never_begun_does_nothing(bench: Bench) -> None:
    checker = cml.check_hazards("record")
    checker.stop()
    checker.start()
    checker.stop()
    checker.stop()
    hazard(bench)
    assert checker.findings == ()


# What may be asked


def test_dependencies_are_what_a_wait_list_needs(bench: Bench) -> None:
    with cml.check_hazards() as checker:
        written = cml.enqueue_fill(bench.queue, bench.field, ONE)
        assert cml.dependencies(reads=[bench.field]) == [written]
        read = cml.enqueue_copy(bench.queue2, bench.host, bench.field, is_blocking=False, wait_for=written)
        assert cml.dependencies(reads=bench.field) == [written]
        assert cml.dependencies(writes=bench.field) == [read]
        assert cml.dependencies(writes=In(bench.field, 0, 16)) == [read]
        last = cml.enqueue_fill(bench.loose, bench.field, ONE, wait_for=cml.dependencies(writes=[bench.field]))
        last.wait()
        assert cml.dependencies(reads=[bench.field], writes=[bench.field]) == []
    assert checker.findings == ()


def test_dependencies_of_mapped_bytes_are_refused_until_the_unmap(bench: Bench) -> None:
    with cml.check_hazards():
        mapping = Mapping(bench.queue, bench.field, MapFlags.WRITE)
        with pytest.raises(MapConflictError, match="unmap it first"):
            cml.dependencies(reads=[bench.field])
        mapping.unmap()
        assert cml.dependencies(reads=[bench.field]) == [mapping.unmap_event]


@pytest.mark.parametrize(
    "ask",
    [
        lambda field, event: cml.dependencies(reads=[field]),
        lambda field, event: cml.declare(event, reads=[field]),
        lambda field, event: cml.explain(field),
    ],
    ids=["dependencies", "declare", "explain"],
)
@pytest.mark.alone("that answers")
def test_without_a_checker_a_question_is_refused_with_what_to_write(bench: Bench, ask: Callable[..., Any]) -> None:
    event = cml.enqueue_fill(bench.queue, bench.field, ONE)
    with pytest.raises(RuntimeError, match=r"with clmemlife\.check_hazards\(\)"):
        ask(bench.field, event)


def test_what_is_no_memory_object_is_refused(bench: Bench) -> None:
    with cml.check_hazards(), pytest.raises(TypeError, match="not ndarray"):
        cml.dependencies(reads=[bench.host])


def test_explain_tells_the_history_of_an_object_with_its_sites(bench: Bench) -> None:
    with cml.check_hazards("record"):
        first, _ = here(), cml.enqueue_fill(bench.queue, bench.field, ONE)
        second, _ = here(), cml.enqueue_copy(bench.queue, bench.host, bench.field)
        text = cml.explain(bench.field)
        same = cml.explain(bench.field.mem)
    assert text == same
    lines = text.splitlines()
    assert lines[0] == f"'field' (4096 bytes, created at {bench.field.site})".replace("'", "")
    assert first in lines[1]
    assert "writes bytes [0, 4096)" in lines[1]
    assert second in lines[2]
    assert "reads bytes [0, 4096)" in lines[2]


def test_a_program_is_checked_as_a_whole_when_the_environment_says_so(
    run_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """
    field = MemHandle.create_buffer(context, 4096, label="field")
    first = cml.enqueue_fill(queue, field, np.int32(1))
    second = cml.enqueue_fill(queue2, field, np.int32(2){})
    second.wait()
    field.release()
    print("done")
    """
    done = run_process(code.format(""), CLMEMLIFE_CHECK="hazards")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "HazardWarning: write-after-write on 'field' (4096 bytes" in done.stderr
    for quiet in ({"CLMEMLIFE_CHECK": "hazards"}, {"CLMEMLIFE_CHECK": ""}):
        done = run_process(code.format(", wait_for=first" if quiet["CLMEMLIFE_CHECK"] else ""), **quiet)
        assert (done.returncode, done.stdout) == (0, "done\n")
        assert "HazardWarning" not in done.stderr


PROGRAM = """
    field = MemHandle.create_buffer(context, 4096, label="field")
    for _ in range(3):
        cml.enqueue_fill(queue, field, np.int32(1))
        cml.enqueue_fill(queue2, field, np.int32(2))
    queue.finish()
    queue2.finish()
    field.release()
    print("done")
"""


def test_the_environment_chooses_the_mode(run_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_process(PROGRAM, CLMEMLIFE_CHECK="hazards:raise")
    assert (done.returncode, done.stdout) == (1, "")
    assert "UnorderedAccessError: write-after-write on 'field'" in done.stderr
    done = run_process(PROGRAM, CLMEMLIFE_CHECK="leaks, hazards:warn")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "HazardWarning: write-after-write on 'field'" in done.stderr


def test_what_the_environment_has_recorded_is_told_at_exit(
    run_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_process(PROGRAM, CLMEMLIFE_CHECK="hazards:record")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "Warning" not in done.stderr
    assert done.stderr.startswith("clmemlife: found 2 hazards\n\nwrite-after-write on 'field' (4096 bytes")
    assert "  met 3 times\n" in done.stderr
    assert "  met 2 times\n" in done.stderr


def test_a_forked_child_does_not_tell_what_its_parent_has_recorded(
    run_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    fork = """
    if not os.fork():
        sys.exit(0)
    assert os.wait()[1] == 0
    """
    done = run_process("import os, sys", PROGRAM, fork, CLMEMLIFE_CHECK="hazards:record")
    assert (done.returncode, done.stderr.count("clmemlife: found ")) == (0, 1), done.stderr


@pytest.mark.parametrize("words", ["hazard", "hazards:rais", "leaks,hazards:warn:x", "true"])
def test_a_word_that_the_environment_has_wrong_is_told(
    run_process: Callable[..., subprocess.CompletedProcess[str]], words: str
) -> None:
    done = run_process('print("done")', CLMEMLIFE_CHECK=words)
    assert (done.returncode, done.stdout) == (0, "done\n")
    wrong = words.rpartition(",")[2]
    expected = f"CLMEMLIFE_CHECK asks for '{wrong}', which means nothing; known are hazards, hazards:raise"
    assert expected in done.stderr


def test_a_checked_program_warns_at_exit_of_what_hangs_on_a_user_event(
    run_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """
    field = MemHandle.create_buffer(context, 4096, label="field")
    gate = cl.UserEvent(context)
    cml.enqueue_fill(queue, field, np.int32(1), wait_for=gate)
    cml.enqueue_fill(queue2, field, np.int32(2))
    os.environ["CLMEMLIFE_EXIT_TIMEOUT"] = "0.1"
    """
    done = run_process(code, CLMEMLIFE_CHECK="hazards")
    assert "HazardWarning: write-after-write on 'field'" in done.stderr


# Threads


def test_commands_of_all_threads_are_seen(bench: Bench) -> None:
    with cml.check_hazards("record") as checker:
        cml.enqueue_fill(bench.queue, bench.field, ONE)
        thread = threading.Thread(target=lambda: cml.enqueue_fill(bench.queue2, bench.field, ONE))
        thread.start()
        thread.join()
    assert len(checker.findings) == 1


def test_threads_on_objects_of_their_own_are_silent(context: cl.Context, bench: Bench) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            queue, inc = cl.CommandQueue(context), bench.kernel("inc")
            with MemHandle.create_buffer(context, 4096) as mine:
                event = cml.enqueue_fill(queue, mine, ONE)
                for _ in range(50):
                    event = cml.enqueue_kernel(queue, inc, (64,), None, InOut(mine), wait_for=event)
                event.wait()
        except BaseException as error:
            errors.append(error)

    with cml.check_hazards():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_wait_in_one_thread_orders_what_another_enqueues(bench: Bench) -> None:
    with cml.check_hazards():
        event = cml.enqueue_fill(bench.queue, bench.field, ONE)
        thread = threading.Thread(target=event.wait)
        thread.start()
        thread.join()
        cml.enqueue_fill(bench.queue2, bench.field, ONE)


@pytest.mark.parametrize("wrong", [None, "x", 3, object()])
def test_what_is_no_event_and_no_memory_object_is_named(bench: Bench, wrong: object) -> None:
    with cml.check_hazards("record"):
        with pytest.raises(TypeError, match="declare takes the event of a command, not"):
            cml.declare(wrong, reads=[bench.field])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="reads and writes take memory objects, not"):
            cml.dependencies(reads=wrong)  # type: ignore[arg-type]
