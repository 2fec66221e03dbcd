"""Wait-lists: what they take, what they refuse before the driver is asked, and whom they flush."""

from __future__ import annotations

import types

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import (
    ContextMismatchError,
    DependencyError,
    InOut,
    MapFlags,
    Mapping,
    MemHandle,
    Migration,
    _opencl,
    wait_list,
)
from clmemlife._waitlist import prepare

COMPLETE = cl.command_execution_status.COMPLETE


@pytest.fixture
def event(queue) -> cl.Event:
    return cl.enqueue_marker(queue)


@pytest.fixture
def flushed(monkeypatch) -> list[cl.CommandQueue]:
    """The queues that the library flushes."""
    seen: list[cl.CommandQueue] = []
    real = _opencl.flush

    def flush(queue):
        seen.append(queue)
        real(queue)

    monkeypatch.setattr(_opencl, "flush", flush)
    return seen


# What is taken


def test_nothing_is_an_empty_list():
    assert wait_list() == []
    assert wait_list(None, [], (), [None, [None]]) == []


def test_events_come_out_flat_and_in_order(queue):
    one, two, three, four = (cl.enqueue_marker(queue) for _ in range(4))
    assert wait_list(one) == [one]
    assert wait_list([one, (two, [None, three])], None, four) == [one, two, three, four]
    assert wait_list(event for event in (two, one)) == [two, one]
    assert set(wait_list({one, two})) == {one, two}
    assert wait_list({"a": one}.values()) == [one]


def test_what_has_an_event_stands_for_it(context, queue, event):
    with MemHandle.create_buffer(context, 64) as handle:
        migration = Migration(queue, handle)
        migration.wait()
        assert wait_list(migration) == [migration.event]
        assert wait_list([event, [migration]]) == [event, migration.event]
    assert wait_list(types.SimpleNamespace(event=event)) == [event]
    assert wait_list(types.SimpleNamespace(event=None)) == []
    assert wait_list(types.SimpleNamespace(event=[event, migration])) == [event, migration.event]


def test_user_events_and_the_events_of_host_copies_are_events(context, queue, gate, ints):
    with MemHandle.create_buffer(context, ints.nbytes) as handle:
        copied = cl.enqueue_copy(queue, handle.mem, ints)
        assert wait_list(gate, copied) == [gate, copied]


# What is refused


def test_a_mapping_is_refused_and_both_its_events_are_named(context, queue):
    with (
        MemHandle.create_buffer(context, 64) as handle,
        MemHandle.create_buffer(context, 64) as other,
        Mapping(queue, handle, MapFlags.READ) as mapping,
    ):
        for wait_for in (mapping, [None, [mapping]]):
            with pytest.raises(TypeError, match=r"mapping\.map_event .* mapping\.unmap_event"):
                cml.enqueue_fill(queue, other, np.int32(0), wait_for=wait_for)
        with pytest.raises(TypeError, match=r"mapping\.map_event .* mapping\.unmap_event"):
            wait_list(mapping)


@pytest.mark.parametrize("wrong", [1, True, 0, "event", b"event", 1.5, object(), cl.Event, [["event"]], [1]])
def test_other_things_are_refused_by_name(wrong):
    inner = wrong
    while isinstance(inner, list):
        inner = inner[0]
    with pytest.raises(TypeError, match=f"or a sequence of these, not {type(inner).__name__}"):
        wait_list(wrong)


def test_a_handle_is_no_event(context):
    with MemHandle.create_buffer(context, 64) as handle, pytest.raises(TypeError, match="not MemHandle"):
        wait_list(handle)


def test_an_event_of_another_context_is_refused_before_anything_is_enqueued(context, devices, queue):
    other = cl.Context(devices)
    foreign = cl.UserEvent(other)
    with MemHandle.create_buffer(context, 64) as handle:
        for enqueue in (
            lambda: cml.enqueue_fill(queue, handle, np.int32(0), wait_for=foreign),
            lambda: cml.enqueue_copy(queue, handle, np.zeros(16, np.int32), wait_for=[None, foreign]),
            lambda: Mapping(queue, handle, MapFlags.READ, wait_for=foreign),
            lambda: Migration(queue, handle, wait_for=foreign),
            lambda: Migration(queue, [], wait_for=foreign),
        ):
            with pytest.raises(ContextMismatchError, match="belongs to another context than the queue"):
                enqueue()
        assert cml._inflight.entries() == ()
    foreign.set_status(COMPLETE)


def failed_event(context: cl.Context, status: int = -5) -> cl.UserEvent:
    event = cl.UserEvent(context)
    event.set_status(status)
    return event


def test_an_event_that_has_failed_is_refused_with_itself_and_its_status(context, queue):
    failed = failed_event(context)
    with MemHandle.create_buffer(context, 64) as handle:
        for enqueue in (
            lambda: cml.enqueue_fill(queue, handle, np.int32(0), wait_for=failed),
            lambda: cml.enqueue_copy(queue, np.zeros(16, np.int32), handle, wait_for=[[failed]]),
            lambda: Mapping(queue, handle, MapFlags.READ, wait_for=failed),
            lambda: Migration(queue, handle, wait_for=failed),
            lambda: Migration(queue, [], wait_for=failed),
            lambda: cml.enqueue_fill(queue, handle, np.int32(0), 0, wait_for=failed),
        ):
            with pytest.raises(DependencyError, match=r"failed with OUT_OF_RESOURCES \(-5\)") as caught:
                enqueue()
            assert caught.value.event == failed
            assert caught.value.status == -5
            assert caught.value.root_event == failed
            assert "nothing was enqueued" in str(caught.value)
        assert cml._inflight.entries() == ()
        assert cml.live()[0].maps == 0


def test_the_error_leads_back_to_the_event_where_the_failure_began(context, queue, kernel, gate, ints, wait):
    with MemHandle.create_buffer(context, ints.nbytes) as handle:
        first = cml.enqueue_kernel(queue, kernel("inc"), ints.shape, None, InOut(handle), wait_for=gate)
        second = cml.enqueue_kernel(queue, kernel("inc"), ints.shape, None, InOut(handle), wait_for=first)
        queue.flush()
        gate.set_status(-7)
        wait(lambda: second.command_execution_status <= 0, "the failure has spread")
        if first.command_execution_status == 0 and "Intel" in queue.device.platform.name:
            pytest.xfail("the Intel CPU runtime runs a command whose wait-list event failed as if it had completed")
        with pytest.raises(DependencyError) as caught:
            cml.enqueue_fill(queue, handle, np.int32(0), wait_for=second)
        assert caught.value.event == second
        assert caught.value.status == second.command_execution_status
        assert caught.value.root_event == gate
        assert "because an event it waited for failed with" in str(caught.value)
        assert "(-7)" in str(caught.value)


def test_the_queue_stays_usable_after_a_refusal(context, queue, ints):
    with MemHandle.create_buffer(context, ints.nbytes) as handle:
        with pytest.raises(DependencyError):
            cml.enqueue_fill(queue, handle, np.int32(0), wait_for=failed_event(context))
        cml.enqueue_fill(queue, handle, np.int32(3))
        cml.enqueue_copy(queue, ints, handle)
    assert (ints == 3).all()


def test_a_good_event_before_the_failed_one_does_not_hide_it(context, queue, event):
    with MemHandle.create_buffer(context, 64) as handle, pytest.raises(DependencyError):
        cml.enqueue_fill(queue, handle, np.int32(0), wait_for=[event, None, failed_event(context)])


# What is passed on


def test_an_empty_wait_list_is_passed_on_as_none(queue):
    assert prepare(queue, None) is None
    assert prepare(queue, []) is None
    assert prepare(queue, [None, [[]]]) is None


def test_events_are_passed_on_flat(queue, event, gate):
    assert prepare(queue, [[event], gate]) == [event, gate]


# Flush


def test_the_queue_of_a_foreign_pending_event_is_flushed(context, queue, queue2, gate, flushed):
    with MemHandle.create_buffer(context, 64) as handle:
        pending = cml.enqueue_fill(queue2, handle, np.int32(0), wait_for=gate)
        assert flushed == []
        done = cml.enqueue_fill(queue, handle, np.int32(1), wait_for=pending)
        assert flushed == [queue2]
        gate.set_status(COMPLETE)
        done.wait()


def test_a_foreign_queue_is_flushed_once_for_many_events(context, queue, queue2, gate, flushed):
    with MemHandle.create_buffer(context, 64) as handle:
        pending = [cml.enqueue_fill(queue2, handle, np.int32(n), wait_for=gate) for n in range(5)]
        done = cml.enqueue_fill(queue, handle, np.int32(9), wait_for=pending)
        assert flushed == [queue2]
        gate.set_status(COMPLETE)
        done.wait()


def test_the_own_queue_is_not_flushed(context, queue, gate, flushed):
    with MemHandle.create_buffer(context, 64) as handle:
        pending = cml.enqueue_fill(queue, handle, np.int32(0), wait_for=gate)
        done = cml.enqueue_fill(queue, handle, np.int32(1), wait_for=pending)
        assert flushed == []
        gate.set_status(COMPLETE)
        done.wait()


def test_no_queue_is_flushed_for_complete_and_user_events(context, queue, queue2, gate, flushed):
    complete = cl.enqueue_marker(queue2)
    complete.wait()
    assert prepare(queue, [complete, gate]) == [complete, gate]
    assert flushed == []


@pytest.mark.parametrize("kind", ["fill", pytest.param("migration", marks=pytest.mark.nvidia_fault("gated migration"))])
def test_each_foreign_queue_is_flushed(context, devices, queue, queue2, gate, flushed, kind):
    third = cl.CommandQueue(context, devices[0])
    with MemHandle.create_buffer(context, 64) as handle:
        pending = [
            cml.enqueue_fill(one, handle, np.int32(0), 32, offset=start, wait_for=gate)
            for one, start in ((queue2, 0), (third, 32))
        ]
        if kind == "migration":
            done = Migration(queue, handle, wait_for=pending)
        else:
            done = cml.enqueue_fill(queue, handle, np.int32(1), wait_for=pending)
        assert flushed == [queue2, third]
        gate.set_status(COMPLETE)
        done.wait()


def test_a_flag_is_no_wait_list():
    with pytest.raises(TypeError, match="wait_for takes"):
        wait_list(cml.MapFlags.READ)
