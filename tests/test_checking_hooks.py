"""What the hazard checker learns from PyOpenCL itself: waits, markers, barriers, user events, commands of others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import HazardError, MapFlags, Mapping, MemHandle, UnorderedAccessError, _journal
from clmemlife.diagnostics import _hooks

pytestmark = pytest.mark.unordered("what it misses is for a checker of its own")
ONE = np.int32(1)
HOOKED = [
    (cl.Event, "wait"),
    (cl.CommandQueue, "finish"),
    (cl.CommandQueue, "flush"),
    (cl.UserEvent, "set_status"),
    (cl.Event, "set_callback"),
    (cl, "wait_for_events"),
    (cl, "enqueue_marker"),
    (cl, "enqueue_barrier"),
    (cl._cl, "enqueue_nd_range_kernel"),
    *[(cl, name) for name in _hooks._RAW],
]


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, 4096, label="field") as handle:
        yield handle


@pytest.fixture
def queue3(context: cl.Context) -> Iterator[cl.CommandQueue]:
    made = cl.CommandQueue(context)
    yield made
    made.finish()


def originals() -> list[Any]:
    return [getattr(owner, name) for owner, name in HOOKED]


def queue_of_an_event() -> Any:
    return vars(cl.Event)["command_queue"]


# The hooks themselves


@pytest.mark.alone("its hooks stay")
def test_what_is_hooked_is_put_back_as_it_was(field: MemHandle, queue: cl.CommandQueue) -> None:
    before, property_before = originals(), queue_of_an_event()
    with cml.check_hazards():
        while_checked = originals()
        assert queue_of_an_event() is not property_before
        assert all(one is not other for one, other in zip(before, while_checked, strict=True))
        assert [one.__name__ for one in while_checked] == [name for _, name in HOOKED]
        with cml.check_hazards():
            assert originals() == while_checked
        assert originals() == while_checked
        cml.enqueue_fill(queue, field, ONE).wait()
    assert all(one is other for one, other in zip(before, originals(), strict=True))
    assert queue_of_an_event() is property_before


def test_an_exception_in_the_body_puts_everything_back() -> None:
    before = originals()
    with pytest.raises(ZeroDivisionError), cml.check_hazards():
        raise ZeroDivisionError
    assert all(one is other for one, other in zip(before, originals(), strict=True))


def test_a_finding_at_the_end_of_the_scope_puts_everything_back(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, gate: cl.UserEvent
) -> None:
    before = originals()
    with pytest.raises(UnorderedAccessError), cml.check_hazards():
        cml.enqueue_fill(queue, field, ONE, wait_for=gate)
        cml.enqueue_fill(queue2, field, ONE)
    assert all(one is other for one, other in zip(before, originals(), strict=True))


@pytest.mark.alone("its hooks stay")
def test_scopes_that_end_out_of_turn_put_everything_back() -> None:
    before = originals()
    one, two = cml.check_hazards(), cml.check_hazards()
    one.start()
    two.start()
    one.stop()
    assert all(one is not other for one, other in zip(before, originals(), strict=True))
    two.stop()
    assert all(one is other for one, other in zip(before, originals(), strict=True))


def test_scopes_in_many_threads_put_everything_back() -> None:
    before = originals()

    def work() -> None:
        for _ in range(50):
            with cml.check_hazards():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one is other for one, other in zip(before, originals(), strict=True))


# What orders


def wait(event: cl.Event, queue: cl.CommandQueue) -> None:
    event.wait()


def wait_for_events(event: cl.Event, queue: cl.CommandQueue) -> None:
    cl.wait_for_events([event])


def finish(event: cl.Event, queue: cl.CommandQueue) -> None:
    queue.finish()


def marker(event: cl.Event, queue: cl.CommandQueue) -> None:
    cl.enqueue_marker(queue).wait()


def marker_with_a_wait_list(event: cl.Event, queue: cl.CommandQueue) -> None:
    cl.enqueue_marker(queue, [event]).wait()


def barrier_that_the_host_waits_for(event: cl.Event, queue: cl.CommandQueue) -> None:
    cl.enqueue_barrier(queue).wait()


def blocking_copy(event: cl.Event, queue: cl.CommandQueue) -> None:
    with MemHandle.create_buffer(queue.context, 64) as other:
        cml.enqueue_copy(queue, np.zeros(64, np.uint8), other, wait_for=event)


def blocking_map(event: cl.Event, queue: cl.CommandQueue) -> None:
    with MemHandle.create_buffer(queue.context, 64) as other:
        Mapping(queue, other, MapFlags.READ, is_blocking=True, wait_for=event).unmap()


def array_of_a_map(event: cl.Event, queue: cl.CommandQueue) -> None:
    with (
        MemHandle.create_buffer(queue.context, 64) as other,
        Mapping(queue, other, MapFlags.READ, wait_for=event) as mapping,
    ):
        mapping.array.sum()


def raw_blocking_copy(event: cl.Event, queue: cl.CommandQueue) -> None:
    cl.enqueue_copy(queue, np.zeros(64, np.uint8), cl.Buffer(queue.context, 1, 64), wait_for=[event])


def raw_blocking_map(event: cl.Event, queue: cl.CommandQueue) -> None:
    raw = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    array, _ = cl.enqueue_map_buffer(queue, raw, cl.map_flags.READ, 0, 64, np.uint8, wait_for=[event])
    array.base.release(queue)


HOST_WAITS = [
    wait, wait_for_events, finish, marker, marker_with_a_wait_list, barrier_that_the_host_waits_for, blocking_copy,
    blocking_map, array_of_a_map, raw_blocking_copy, raw_blocking_map,
]  # fmt: skip


@pytest.mark.parametrize("order", HOST_WAITS)
@pytest.mark.parametrize("kind", ["in order", "out of order"])
def test_a_wait_of_the_host_orders_what_is_enqueued_later(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, out_of_order_queue: cl.CommandQueue,
    order: Callable[..., None], kind: str,
) -> None:  # fmt: skip
    first = queue if kind == "in order" else out_of_order_queue
    with cml.check_hazards():
        order(cml.enqueue_fill(first, field, ONE), first)
        cml.enqueue_fill(queue2, field, ONE)


def seen_complete(event: cl.Event, queue: cl.CommandQueue) -> None:
    queue.flush()
    while event.command_execution_status > 0:
        pass


def flush(event: cl.Event, queue: cl.CommandQueue) -> None:
    queue.flush()


def marker_that_nobody_waits_for(event: cl.Event, queue: cl.CommandQueue) -> None:
    cl.enqueue_marker(queue)


def another_event(event: cl.Event, queue: cl.CommandQueue) -> None:
    with MemHandle.create_buffer(queue.context, 64) as other:
        other_queue = cl.CommandQueue(queue.context)
        cml.enqueue_fill(other_queue, other, ONE).wait()


def raw_copy_that_does_not_block(event: cl.Event, queue: cl.CommandQueue) -> None:
    one, two = (cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64) for _ in range(2))
    cl.enqueue_copy(queue, one, two, wait_for=[event])
    host = np.zeros(64, np.uint8)
    raw_copy_that_does_not_block.kept = host, cl.enqueue_copy(queue, host, one, is_blocking=False)


@pytest.mark.parametrize(
    "order", [seen_complete, flush, marker_that_nobody_waits_for, another_event, raw_copy_that_does_not_block]
)
def test_what_is_no_wait_for_it_orders_nothing(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, order: Callable[..., None]
) -> None:
    with cml.check_hazards(), pytest.raises(UnorderedAccessError):
        order(cml.enqueue_fill(queue, field, ONE), queue)
        cml.enqueue_fill(queue2, field, ONE)


def test_a_barrier_orders_an_out_of_order_queue_and_no_other(
    field: MemHandle, out_of_order_queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with cml.check_hazards():
        cml.enqueue_fill(out_of_order_queue, field, ONE)
        cl.enqueue_barrier(out_of_order_queue)
        cml.enqueue_fill(out_of_order_queue, field, ONE)
        with pytest.raises(UnorderedAccessError):
            cml.enqueue_fill(queue2, field, ONE)


def test_a_marker_in_a_wait_list_stands_for_all_before_it(
    field: MemHandle, out_of_order_queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with cml.check_hazards():
        cml.enqueue_fill(out_of_order_queue, field, ONE, 2048)
        cml.enqueue_fill(out_of_order_queue, field, ONE, 2048, offset=2048)
        all_of_it = cl.enqueue_marker(out_of_order_queue)
        cml.enqueue_fill(queue2, field, ONE, wait_for=all_of_it)


def test_a_wait_for_the_event_of_a_dropped_name_is_still_understood(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with cml.check_hazards("record") as checker:
        event = cml.enqueue_copy(queue, field, np.zeros(1024, np.int32), is_blocking=False)
        for _ in range(300):  # many that nobody keeps
            cml.enqueue_fill(queue2, field, ONE, 4, wait_for=event).wait()
        cml.enqueue_fill(queue, field, ONE)
        cml.enqueue_fill(queue2, field, ONE, wait_for=event)  # of the copy, not of the fill
    assert [finding.hazard for finding in checker.findings] == ["write_after_write"]


def test_setting_a_user_event_orders_what_hangs_on_it_behind_what_the_host_had_waited_for(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, gate: cl.UserEvent
) -> None:
    with cml.check_hazards():
        cml.enqueue_fill(queue, field, ONE, wait_for=gate)
        cml.enqueue_fill(queue2, field, ONE).wait()
        gate.set_status(0)


def test_a_user_event_set_by_another_thread_orders_too(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, gate: cl.UserEvent
) -> None:
    done = cml.enqueue_fill(queue, field, ONE)
    done.wait()
    with cml.check_hazards():
        gated = cml.enqueue_fill(queue, field, ONE, wait_for=gate)
        thread = threading.Thread(target=gate.set_status, args=(0,))
        thread.start()
        gated.wait()
        thread.join()
        cml.enqueue_fill(queue2, field, ONE)


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the threads of the test runner: no other thread could set a user event."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])


@pytest.mark.usefixtures("lonely")
def test_waiting_for_what_only_the_host_could_let_go_is_an_error_instead_of_a_hang(
    field: MemHandle, queue: cl.CommandQueue, gate: cl.UserEvent
) -> None:
    with cml.check_hazards():
        gated = cml.enqueue_fill(queue, field, ONE, wait_for=gate)
        for hang in (gated.wait, queue.finish, lambda: cl.wait_for_events([gated])):
            with pytest.raises(HazardError, match="wait cycle through a user event"):
                hang()
        with pytest.raises(HazardError, match="wait cycle"):
            cml.enqueue_copy(queue, np.zeros(1024, np.int32), field)
        gate.set_status(0)
        gated.wait()


class Opener:
    """Sets a user event when the host begins to wait, after the checker has judged that wait."""

    def __init__(self, gate: cl.UserEvent) -> None:
        self.gate = gate

    def host(self, record: Any) -> None:
        if isinstance(record, _journal.HostWait) and not record.returned and self.gate is not None:
            gate, self.gate = self.gate, None
            gate.set_status(0)

    def before(self, command: Any) -> None: ...

    after = abandoned = before


@pytest.mark.usefixtures("lonely")
def test_a_callback_that_has_not_run_may_let_a_wait_go(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, context: cl.Context, gate: cl.UserEvent
) -> None:
    first = cl.UserEvent(context)
    with cml.check_hazards():
        event = cml.enqueue_fill(queue, field, ONE, wait_for=first)
        event.set_callback(cl.command_execution_status.COMPLETE, lambda status: gate.set_status(0))
        queue.flush()
        opener = Opener(first)
        _journal.subscribe(opener)
        try:
            cl.enqueue_marker(queue2, [gate]).wait()
        finally:
            _journal.unsubscribe(opener)
    with pytest.raises(TypeError):
        event.set_callback(0)
    assert event.command_execution_status == 0


def test_a_hook_that_the_driver_refuses_leaves_no_command_behind(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, devices: list[cl.Device]
) -> None:
    foreign = cl.UserEvent(cl.Context(devices[:1]))
    with cml.check_hazards():
        for enqueue in (cl.enqueue_marker, cl.enqueue_barrier):
            with pytest.raises(cl.Error):
                enqueue(queue, [foreign])
        cml.enqueue_fill(queue, field, ONE).wait()
        cml.enqueue_fill(queue2, field, ONE)
    foreign.set_status(0)


# Waits on what nobody flushed


def raw_wait(queue: cl.CommandQueue, event: cl.Event) -> cl.Event:
    return cl.enqueue_marker(queue, [event])


def test_a_raw_wait_on_an_event_of_a_queue_that_was_not_flushed_is_found_with_both_sites(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with cml.check_hazards() as checker:
        event = cml.enqueue_fill(queue, field, ONE)
        line = sys._getframe().f_lineno - 1
        with pytest.raises(HazardError, match="queue that was not flushed"):
            cl.enqueue_barrier(queue2, [event])
        queue.flush()
        cl.enqueue_barrier(queue2, [event])
        cml.enqueue_fill(queue2, field, ONE)
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.site, finding.second.site) == (
        "unflushed_wait",
        f"{__file__}:{line}",
        f"{__file__}:{line + 3}",
    )


def its_queue_object_goes(context: cl.Context) -> cl.Event:
    return cl.enqueue_marker(cl.CommandQueue(context))


def its_queue_leaves_a_with_block(context: cl.Context) -> cl.Event:
    with cl.CommandQueue(context) as queue:
        return cl.enqueue_marker(queue)


def another_object_of_its_queue_goes(context: cl.Context) -> cl.Event:
    another_object_of_its_queue_goes.kept = queue = cl.CommandQueue(context)
    event = cl.enqueue_marker(queue)
    assert event.command_queue == queue
    return event


def a_blocking_copy_comes_after_it(context: cl.Context) -> cl.Event:
    a_blocking_copy_comes_after_it.kept = queue = cl.CommandQueue(context)
    event = cl.enqueue_marker(queue)
    cl.enqueue_copy(queue, np.zeros(64, np.uint8), cl.Buffer(context, 1, 64))
    return event


def a_helper_waits_for_it(context: cl.Context) -> cl.Event:
    a_helper_waits_for_it.kept = queue, other = [cl.CommandQueue(context) for _ in range(2)]
    event = cl.enqueue_marker(queue)
    with MemHandle.create_buffer(context, 64) as buffer:
        cml.enqueue_fill(other, buffer, ONE, wait_for=event)
    return event


@pytest.mark.parametrize(
    "flush",
    [
        its_queue_object_goes,
        its_queue_leaves_a_with_block,
        another_object_of_its_queue_goes,
        a_blocking_copy_comes_after_it,
        a_helper_waits_for_it,
    ],
)
def test_what_flushes_behind_the_back_of_the_program_counts(
    context: cl.Context, queue2: cl.CommandQueue, flush: Callable[..., cl.Event]
) -> None:
    with cml.check_hazards():
        raw_wait(queue2, flush(context))


def test_an_event_from_before_the_block_may_have_been_flushed(queue: cl.CommandQueue, queue2: cl.CommandQueue) -> None:
    event = cl.enqueue_marker(queue)
    with cml.check_hazards():
        raw_wait(queue2, event)


# Raw commands in between


def test_raw_commands_in_between_give_no_false_alarm(
    context: cl.Context, field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, queue3: cl.CommandQueue,
    kernel: Callable[[str], cl.Kernel],
) -> None:  # fmt: skip
    raw, inc = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096), kernel("inc")
    with cml.check_hazards():
        event = cml.enqueue_fill(queue, field, ONE)
        queue.flush()
        event = cl.enqueue_copy(queue2, raw, field.mem, wait_for=[event])
        event = inc(queue2, (1024,), None, raw, wait_for=[event])
        queue2.flush()
        event = cl.enqueue_fill_buffer(queue3, raw, ONE, 0, 4096, wait_for=[event])
        queue3.flush()
        event = cl.enqueue_migrate_mem_objects(queue2, [raw], 0, wait_for=[event])
        cml.enqueue_fill(queue, field, ONE, wait_for=event)
        event = cml.enqueue_fill(queue, field, ONE)
        queue.flush()
        inc(queue2, (1024,), None, raw, wait_for=[event])
        cml.enqueue_fill(queue2, field, ONE)  # in order behind the kernel, which nobody else saw


def test_an_event_that_the_checker_never_saw_may_come_after_everything(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    unseen = cl.enqueue_marker(queue2)  # before anybody listens
    with cml.check_hazards():
        cml.enqueue_fill(queue, field, ONE)
        cml.enqueue_fill(queue2, field, ONE, wait_for=unseen)
        with pytest.raises(UnorderedAccessError):  # but not after what came later
            cml.enqueue_fill(queue, field, ONE, wait_for=unseen)


def test_a_declared_raw_command_is_found_unordered_at_its_own_line(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, kernel: Callable[[str], cl.Kernel]
) -> None:
    inc, mem = kernel("inc"), field.mem
    with cml.check_hazards("record") as checker:
        event = inc(queue, (1024,), None, mem)
        line = sys._getframe().f_lineno - 1
        cml.declare(event, reads=[field], writes=[field])
        cml.enqueue_copy(queue, np.zeros(1024, np.int32), field, is_blocking=False)  # in order
        cml.enqueue_copy(queue2, np.zeros(1024, np.int32), field)
    (finding,) = checker.findings
    assert (finding.hazard, finding.first.kind) == ("read_after_write", "foreign")
    assert finding.first.site == f"{__file__}:{line}"


def test_a_declaration_of_an_unordered_raw_command_raises(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue, kernel: Callable[[str], cl.Kernel]
) -> None:
    inc, mem = kernel("inc"), field.mem
    with cml.check_hazards():
        cml.enqueue_fill(queue, field, ONE)
        event = inc(queue2, (1024,), None, mem)
        with pytest.raises(UnorderedAccessError, match="foreign 'enqueue_nd_range_kernel' on queue 2"):
            cml.declare(event, writes=field)


def test_a_user_event_has_no_command_to_declare(field: MemHandle, gate: cl.UserEvent) -> None:
    with cml.check_hazards():
        gate.set_status(0)
        with pytest.raises(ValueError, match="no command belongs to it"):
            cml.declare(gate, writes=field)


# Maps


def test_the_host_uses_the_bytes_from_map_to_unmap(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with cml.check_hazards():
        written = cml.enqueue_fill(queue, field, ONE)
        with pytest.raises(UnorderedAccessError):
            Mapping(queue2, field, MapFlags.READ)
        with Mapping(queue2, field, MapFlags.READ, wait_for=written) as mapping:
            mapping.array.sum()
            with Mapping(queue, field, MapFlags.READ) as other:  # two that read
                other.array.sum()
        cml.enqueue_fill(queue, field, ONE, wait_for=[mapping.unmap_event, other.unmap_event])


def test_a_map_for_discarding_does_not_read(field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue) -> None:
    with cml.check_hazards("record") as checker:
        cml.enqueue_copy(queue, np.zeros(1024, np.int32), field, is_blocking=False)
        Mapping(queue2, field, MapFlags.WRITE_INVALIDATE_REGION).unmap()
    assert [finding.hazard for finding in checker.findings] == ["write_after_read"]


def test_maps_of_bytes_that_are_apart_are_silent(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with (
        cml.check_hazards(),
        Mapping(queue, field, MapFlags.WRITE, size=2048),
        Mapping(queue2, field, MapFlags.WRITE, offset=2048),
    ):
        pass


def test_an_unmap_that_the_collector_enqueues_is_ordered_like_any_other(
    field: MemHandle, queue: cl.CommandQueue, queue2: cl.CommandQueue
) -> None:
    with cml.check_hazards("record") as checker:
        with pytest.warns(cml.LeakWarning):
            mapping = Mapping(queue, field, MapFlags.WRITE)
            del mapping
        cml.enqueue_fill(queue, field, ONE)  # in order
        cml.enqueue_fill(queue2, field, ONE)
    assert {finding.second.queue for finding in checker.findings} == {2}
