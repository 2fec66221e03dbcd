"""Other orders of the same commands: what is not ordered by an event gives wrong data, what is ordered never does."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import _opencl, _settings
from clmemlife.diagnostics import _pauses, chaos, interception

SEEDS = range(20)
FEWER = range(10)
MILLISECONDS = 50.0  # on a machine that does other things too
NBYTES = 4096

pytestmark = pytest.mark.unordered("on purpose")


@pytest.fixture(scope="module")
def sanitizer():
    """Commands of raw PyOpenCL are intercepted."""
    with cml.sanitize("record", hazards=False, leaks=False) as scope:
        yield scope


@pytest.fixture
def in_chaos(sanitizer):
    """Run a function once for each seed; return what it returned."""

    def run(function, *arguments, seeds=SEEDS, milliseconds=MILLISECONDS):
        scope = chaos.Chaos(0, milliseconds)
        scope.start()
        try:
            results = []
            for seed in seeds:
                scope.reseed(seed)
                results.append(function(*arguments))
            assert scope.held_back
            return results
        finally:
            scope.stop()

    return run


class Bench:
    """Two queues, two buffers, and a few programs on them; each is right where `ordered`, and by luck otherwise."""

    def __init__(self, context, devices, kernel):
        self.context, self.devices = context, devices
        self.inc, self.copy = kernel("inc"), kernel("copy")
        self.x, self.y = (cl.Buffer(context, cl.mem_flags.READ_WRITE, NBYTES) for _ in range(2))

    def run(self, scenario, ordered):
        self.first, self.second = (cl.CommandQueue(self.context, self.devices[n]) for n in (0, -1))
        self.got = np.zeros(NBYTES // 4, np.int32)
        for buffer in (self.x, self.y):
            cl.enqueue_fill_buffer(self.first, buffer, np.int32(0), 0, NBYTES)
        self.first.finish()
        getattr(self, scenario)(ordered)
        self.first.finish()
        self.second.finish()
        return bool((self.got == 1).all())

    def kernel_then_read(self, ordered):
        event = self.inc(self.first, self.got.shape, None, self.x)
        cl.enqueue_copy(self.second, self.got, self.x, wait_for=[event] if ordered else None)

    def upload_then_kernel(self, ordered):
        host = np.ones_like(self.got)
        event = cl.enqueue_copy(self.first, self.x, host, is_blocking=False)
        self.copy(self.second, self.got.shape, None, self.x, self.y, wait_for=[event] if ordered else None)
        cl.enqueue_copy(self.second, self.got, self.y)

    def kernel_then_kernel(self, ordered):
        event = self.inc(self.first, self.got.shape, None, self.x)
        self.copy(self.second, self.got.shape, None, self.x, self.y, wait_for=[event] if ordered else None)
        cl.enqueue_copy(self.second, self.got, self.y)

    def read_then_fill(self, ordered):
        event = self.inc(self.first, self.got.shape, None, self.x)
        event = self.copy(self.second, self.got.shape, None, self.x, self.y, wait_for=[event])
        cl.enqueue_fill_buffer(self.first, self.x, np.int32(5), 0, NBYTES, wait_for=[event] if ordered else None)
        cl.enqueue_copy(self.second, self.got, self.y)

    def unmap_then_read(self, ordered):
        array, event = cl.enqueue_map_buffer(
            self.first, self.x, cl.map_flags.WRITE, 0, self.got.shape, np.int32, is_blocking=False
        )
        event.wait()
        array[:] = 1
        event = array.base.release(self.first)
        self.copy(self.second, self.got.shape, None, self.x, self.y, wait_for=[event] if ordered else None)
        cl.enqueue_copy(self.second, self.got, self.y)

    def our_own_helpers(self, ordered):
        event = cml.enqueue_kernel(self.first, self.inc, self.got.shape, None, self.x)
        cml.enqueue_kernel(
            self.second, self.copy, self.got.shape, None, self.x, self.y, wait_for=event if ordered else None
        )
        cml.enqueue_copy(self.second, self.got, self.y)


@pytest.fixture
def bench(context, free_devices, kernel):
    made = Bench(context, free_devices, kernel)
    yield made
    made.x.release()
    made.y.release()


# an unmap of memory that the device shares moves nothing: that it comes late shows nowhere
UNORDERED = ["kernel_then_read", "upload_then_kernel", "kernel_then_kernel", "read_then_fill", "our_own_helpers"]


@pytest.mark.parametrize("scenario", UNORDERED)
def test_a_missing_event_gives_wrong_data_under_almost_every_seed(bench, in_chaos, scenario):
    if min(one.max_compute_units for one in bench.devices) < 2:
        pytest.skip("what runs one command at a time (half of Intel's device here) runs nothing beside a pause")
    right = sum(in_chaos(bench.run, scenario, False))
    assert right <= len(SEEDS) // 4, f"right under {right} of {len(SEEDS)} seeds"


@pytest.mark.parametrize("scenario", [*UNORDERED, "unmap_then_read"])
def test_a_program_with_its_events_is_right_under_every_seed(bench, in_chaos, scenario):
    assert all(in_chaos(bench.run, scenario, True, seeds=FEWER))


def test_commands_of_an_in_order_queue_keep_their_order(context, devices, kernel, in_chaos):
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, NBYTES)

    def program():
        queue = cl.CommandQueue(context, devices[0])
        for value in range(5):
            cl.enqueue_fill_buffer(queue, buffer, np.int32(value), 0, NBYTES)
            kernel("inc")(queue, (NBYTES // 4,), None, buffer)
        got = np.empty(NBYTES // 4, np.int32)
        cl.enqueue_copy(queue, got, buffer)
        return bool((got == 5).all())

    assert all(in_chaos(program))
    buffer.release()


def test_an_out_of_order_queue_is_shaken_too(context, out_of_order_queue, kernel, in_chaos, has_fault):
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, NBYTES)

    def program(ordered):
        got = np.empty(NBYTES // 4, np.int32)
        cl.enqueue_fill_buffer(out_of_order_queue, buffer, np.int32(0), 0, NBYTES).wait()
        event = kernel("inc")(out_of_order_queue, got.shape, None, buffer)
        cl.enqueue_copy(out_of_order_queue, got, buffer, wait_for=[event] if ordered else None)
        out_of_order_queue.finish()
        return bool((got == 1).all())

    assert all(in_chaos(program, True, seeds=FEWER))
    if not has_fault("no overtaking"):
        assert sum(in_chaos(program, False, seeds=FEWER)) <= len(FEWER) // 4
    buffer.release()


def test_the_same_seed_holds_back_the_same_commands(context, devices, sanitizer):
    def lengths(seed):
        scope = chaos.Chaos(seed)
        wanted = []
        scope._pauses_of = lambda queue: type(
            "Pauses", (), {"enqueue": lambda self, seconds, waits: wanted.append(seconds)}
        )()
        queue = cl.CommandQueue(context, devices[0])
        for _ in range(20):
            scope.before(queue, [], "fill")
        return wanted

    assert lengths(1) == lengths(1) != lengths(2)
    assert all(0 < seconds <= _settings.MILLISECONDS / 1e3 for seconds in lengths(3))


# -- it breaks nothing -------------------------------------------------------------------------------------------------


def test_dropped_events_finish_and_exit_find_held_commands_over(run_process):
    done = run_process("""
    from clmemlife.diagnostics import chaos
    with cml.sanitize("record", hazards=False, leaks=False):
        scope = chaos.Chaos(1, 300.0)
        scope.start()
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
        kernel = cl.Kernel(program, "inc")
        kernel(queue, (1024,), None, buffer)
        got = np.empty(1024, np.int32)
        cl.enqueue_copy(queue, got, buffer, is_blocking=False)  # its event is dropped: the destructor waits
        kernel(queue, (1024,), None, buffer)
        queue.finish()
        assert scope.held_back
        kernel(queue2, (1024,), None, buffer)
        buffer.release()
        print("ended", flush=True)
    """, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_user_events_of_the_program_keep_their_meaning(context, devices, gate, in_chaos):
    queue = cl.CommandQueue(context, devices[0])
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, NBYTES)

    def program():
        user = cl.UserEvent(context)
        event = cl.enqueue_fill_buffer(queue, buffer, np.int32(1), 0, NBYTES, wait_for=[user])
        queue.flush()
        assert event.command_execution_status > 0
        user.set_status(cl.command_execution_status.COMPLETE)
        event.wait()
        return True

    assert all(
        in_chaos(lambda: [program(), cl.enqueue_fill_buffer(queue, buffer, np.int32(2), 0, NBYTES)], seeds=[1, 2])
    )
    queue.finish()
    buffer.release()


@pytest.mark.parametrize("fault", ["build", "enqueue"])
def test_a_fault_of_its_own_holds_nothing_back_and_breaks_nothing(bench, sanitizer, monkeypatch, fault):
    def fail(*arguments):
        raise cl.RuntimeError("clBuildProgram failed: BUILD_PROGRAM_FAILURE")

    monkeypatch.setattr(_pauses.Pauses, "__init__" if fault == "build" else "enqueue", fail)
    scope = chaos.Chaos(1)
    scope.start()
    assert bench.run("kernel_then_kernel", True)
    scope.stop()
    assert not scope.held_back


def test_an_interrupt_in_the_middle_of_it_reaches_the_program(bench, sanitizer, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(_pauses.Pauses, "enqueue", interrupt)
    scope = chaos.Chaos(1)
    scope.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.run("kernel_then_kernel", True)
        assert not scope._lock.locked()
    finally:
        scope.stop()


def test_everything_is_put_back(sanitizer):
    before = {name: getattr(_opencl, name) for name in chaos._WAITS}
    for scope in (chaos.Chaos(1), chaos.Serializer()):
        scope.start()
        assert interception.rewrite_waits == scope.before
        scope.stop()
        assert {name: getattr(_opencl, name) for name in chaos._WAITS} == before
        assert (interception.rewrite_waits, interception.after_enqueue) == (None, None)


def test_many_threads_may_enqueue(bench, context, devices, in_chaos):
    def fill(value):
        queue = cl.CommandQueue(context, devices[0])
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, NBYTES)
        got = np.empty(NBYTES // 4, np.int32)
        for _ in range(20):
            cl.enqueue_fill_buffer(queue, buffer, np.int32(value), 0, NBYTES)
        cl.enqueue_copy(queue, got, buffer)
        right.append((got == value).all())

    def program():
        threads = [threading.Thread(target=fill, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    right: list[bool] = []
    in_chaos(program, seeds=[1])
    assert len(right) == 4
    assert all(right)


# -- one after the other -----------------------------------------------------------------------------------------------


@pytest.fixture
def serializer(sanitizer):
    scope = chaos.Serializer()
    scope.start()
    yield scope
    scope.stop()


def test_each_command_is_complete_when_the_next_line_runs(bench, serializer, context, devices, kernel):
    queue = cl.CommandQueue(context, devices[0])
    event = kernel("slow")(queue, (256,), None, bench.x, np.int32(1), np.int32(100_000))
    assert event.command_execution_status == cl.command_execution_status.COMPLETE
    event = cml.enqueue_kernel(queue, kernel("slow"), (256,), None, bench.x, np.int32(1), np.int32(100_000))
    assert event.command_execution_status == cl.command_execution_status.COMPLETE
    assert bench.run("kernel_then_kernel", False)


def test_what_hangs_on_a_user_event_is_not_waited_for(serializer, context, devices):
    queue, other = (cl.CommandQueue(context, devices[0]) for _ in range(2))
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, NBYTES)
    user = cl.UserEvent(context)
    began = time.monotonic()
    first = cl.enqueue_fill_buffer(queue, buffer, np.int32(1), 0, NBYTES, wait_for=[user])
    second = cl.enqueue_fill_buffer(queue, buffer, np.int32(2), 0, NBYTES)
    queue.flush()
    third = cl.enqueue_fill_buffer(other, buffer, np.int32(3), 0, NBYTES, wait_for=[second])
    assert all(event.command_execution_status > 0 for event in (first, second, third))
    user.set_status(cl.command_execution_status.COMPLETE)
    other.finish()
    fourth = cl.enqueue_fill_buffer(queue, buffer, np.int32(4), 0, NBYTES)
    assert fourth.command_execution_status == cl.command_execution_status.COMPLETE
    assert time.monotonic() - began < 30
    buffer.release()


@pytest.mark.parametrize("text", ["", "x", "1:", "1:x", ":2", "1.5", "1:-2"])
def test_a_seed_is_a_number(text):
    with pytest.raises(ValueError, match="is not SEED or SEED:MILLISECONDS"):
        _settings.parse_chaos(text)
    assert _settings.parse_chaos("-3:2.5") == (-3, 2.5)
    assert _settings.parse_chaos("7") == (7, _settings.MILLISECONDS)
