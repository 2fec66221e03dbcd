"""Destructor notices, leases and callbacks: with a driver that the test plays, with the real one, and at exit."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pyopencl as cl
import pytest

from clmemlife import _callbacks, _notices, _opencl, _runner
from clmemlife._callbacks import ObjectInfo
from clmemlife.exceptions import CallError, CleanupWarning

INFO = ObjectInfo("field", 64, "app.py:12")
FAR = 1 << 32


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.001)


class FakeDriver:
    """Registers, refuses, and destroys like a driver: the last registered callback of an object comes first."""

    def __init__(self) -> None:
        self.refuse = False
        self.registered: dict[int, list[int]] = {}

    def set_destructor_callback(self, int_ptr: int, stream_pointer: int) -> None:
        if self.refuse:
            raise CallError("clSetMemObjectDestructorCallback", -38)
        self.registered.setdefault(int_ptr, []).append(stream_pointer)

    def write(self, stream_pointer: int, data: bytes) -> None:
        for stream in _callbacks._dispatcher.notices.streams:
            if stream.pointer == stream_pointer:
                os.write(stream.write_fd, data)
                return
        raise AssertionError("not a stream of ours")

    def destroy(self, int_ptr: int) -> None:
        for stream_pointer in reversed(self.registered.pop(int_ptr)):
            self.write(stream_pointer, struct.pack("=I", int_ptr & 0xFFFFFFFF))


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[_callbacks._Dispatcher]:
    fresh = _callbacks._Dispatcher()
    monkeypatch.setattr(_callbacks, "_dispatcher", fresh)
    yield fresh
    fresh.stop(time.monotonic() + 5.0)


@pytest.fixture
def driver(dispatcher: _callbacks._Dispatcher, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(_opencl, "set_destructor_callback", fake.set_destructor_callback)
    return fake


@pytest.fixture(scope="module")
def cl_context() -> cl.Context:
    return cl.create_some_context(interactive=False)


class Storage:
    """Host memory of the user: weakly referable, and its end can be made to do things."""

    def __init__(self, at_end: Callable[[], object] = lambda: None) -> None:
        self.at_end = at_end

    def __del__(self) -> None:
        self.at_end()


# Notices and streams


def test_a_callback_runs_once_with_the_record_of_its_object(driver: FakeDriver) -> None:
    seen: list[object] = []
    watch = _callbacks.watch(0x1000, INFO)
    watch.call(seen.append)
    assert (_callbacks.outstanding(), watch.dead, seen) == (1, False, [])
    driver.destroy(0x1000)
    wait_until(lambda: seen)
    assert _callbacks.drain(5.0) == 0
    assert seen == [INFO]
    assert watch.dead


def test_last_registered_runs_first(driver: FakeDriver) -> None:
    seen: list[int] = []
    watch = _callbacks.watch(0x1000, INFO)
    for number in range(5):
        watch.call(lambda _, number=number: seen.append(number))
    driver.destroy(0x1000)
    _callbacks.drain(5.0)
    assert seen == [4, 3, 2, 1, 0]


def test_a_callback_added_to_a_dead_object_runs_at_once(driver: FakeDriver) -> None:
    seen: list[object] = []
    watch = _callbacks.watch(0x1000, INFO)
    driver.destroy(0x1000)
    wait_until(lambda: watch.dead)
    watch.call(seen.append)
    watch.lease(Storage(), 8)
    _callbacks.drain(5.0)
    assert seen == [INFO]
    assert _callbacks.leased_bytes() == 0


def test_nothing_is_recorded_when_the_driver_refuses(driver: FakeDriver) -> None:
    driver.refuse = True
    with pytest.raises(CallError, match="clSetMemObjectDestructorCallback"):
        _callbacks.watch(0x1000, INFO)
    assert _callbacks.outstanding() == 0


def test_two_live_objects_with_the_same_low_bits_are_told_apart(driver: FakeDriver) -> None:
    low, high = _callbacks.watch(0x1000, INFO), _callbacks.watch(0x1000 + FAR, INFO)
    driver.destroy(0x1000 + FAR)
    wait_until(lambda: high.dead)
    assert not low.dead
    driver.destroy(0x1000)
    wait_until(lambda: low.dead)


def test_an_address_used_again_before_its_notice_was_read_is_not_mistaken(
    driver: FakeDriver, dispatcher: _callbacks._Dispatcher
) -> None:
    dispatcher.notices._reader.enabled = False
    first = _callbacks.watch(0x1000, INFO)
    driver.destroy(0x1000)
    second = _callbacks.watch(0x1000, INFO)
    assert first.dead
    _callbacks.poll()
    assert not second.dead
    assert len(dispatcher.notices.streams) == 1


def test_an_address_used_again_before_its_notice_was_written_is_not_mistaken(driver: FakeDriver) -> None:
    first = _callbacks.watch(0x1000, INFO)
    late = driver.registered.pop(0x1000)
    second = _callbacks.watch(0x1000, INFO)
    driver.write(late[0], struct.pack("=I", 0x1000))
    wait_until(lambda: first.dead)
    assert not second.dead
    driver.destroy(0x1000)
    wait_until(lambda: second.dead)


def test_a_full_stream_is_followed_by_another(
    driver: FakeDriver, dispatcher: _callbacks._Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_notices, "_capacity", lambda write_fd, large: 4)
    watches = [_callbacks.watch(0x1000 + 8 * number, INFO) for number in range(10)]
    assert [len(stream.pending) for stream in dispatcher.notices.streams] == [4, 4, 2]
    for int_ptr in list(driver.registered):
        driver.destroy(int_ptr)
    wait_until(lambda: all(watch.dead for watch in watches))
    again = [_callbacks.watch(0x1000 + 8 * number, INFO) for number in range(12)]
    assert len(dispatcher.notices.streams) == 3
    assert not any(watch.dead for watch in again)


@pytest.mark.parametrize("large", [False, True])
def test_a_stream_has_room_for_its_capacity_also_when_a_page_was_read_in_part(large: bool) -> None:
    stream = _notices._Stream(large=large)
    os.set_blocking(stream.write_fd, False)  # a write that has no room fails instead of hanging the test
    try:
        for number in range(stream.capacity):
            os.write(stream.write_fd, struct.pack("=I", number))
        assert len(_opencl.read_pipe(stream.read_fd, 4000)) == 4000
        for number in range(1000):
            os.write(stream.write_fd, struct.pack("=I", number))
    finally:
        while _opencl.read_pipe(stream.read_fd, 1 << 16):
            pass


def test_a_notice_may_arrive_byte_by_byte(driver: FakeDriver) -> None:
    watch = _callbacks.watch(0x12345678, INFO)
    (stream_pointer,) = driver.registered.pop(0x12345678)
    for byte in struct.pack("=I", 0x12345678):
        driver.write(stream_pointer, bytes([byte]))
        _callbacks.poll()
    wait_until(lambda: watch.dead)


def test_a_notice_that_belongs_to_nobody_is_ignored(driver: FakeDriver) -> None:
    watch = _callbacks.watch(0x1000, INFO)
    driver.write(driver.registered[0x1000][0], struct.pack("=I", 0x7777))
    _callbacks.drain(5.0, grace_seconds=0.01)
    assert not watch.dead
    driver.destroy(0x1000)
    wait_until(lambda: watch.dead)


def test_an_interrupt_between_two_notices_loses_none(driver: FakeDriver, dispatcher: _callbacks._Dispatcher) -> None:
    dispatcher.notices._reader.enabled = False
    seen: list[object] = []
    watches = [_callbacks.watch(0x1000 + number, INFO) for number in range(3)]
    for watch in watches:
        watch.call(seen.append)
        driver.destroy(0x1000 + watches.index(watch))

    class Interrupted:
        def notice(self) -> None:
            dispatcher.notices.streams[0].pending[0x1001] = watches[1]
            raise KeyboardInterrupt

    dispatcher.notices.streams[0].pending[0x1001] = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        _callbacks.poll()
    assert [watch.dead for watch in watches] == [True, False, False]
    assert _callbacks.drain(5.0) == 0
    assert seen == [INFO] * 3


def test_a_finalizer_in_the_middle_of_a_read_does_not_wait_for_the_read(
    driver: FakeDriver, dispatcher: _callbacks._Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.notices._reader.enabled = False
    monkeypatch.setattr(_callbacks, "_IN_HAND_SECONDS", 3600.0)
    watch = _callbacks.watch(0x1000, INFO)
    read, seen = _opencl.read_pipe, []

    def read_with_a_finalizer(*arguments: int) -> bytes:
        seen.append(_callbacks.catch_up())
        return read(*arguments)

    monkeypatch.setattr(_opencl, "read_pipe", read_with_a_finalizer)
    driver.destroy(0x1000)
    assert _callbacks.catch_up() == 1
    assert seen == [0]
    assert watch.dead


# Leases


def test_a_leased_object_lives_until_the_notice(driver: FakeDriver) -> None:
    storage = Storage()
    reference = weakref.ref(storage)
    _callbacks.watch(0x1000, INFO).lease(storage, 4096)
    del storage
    gc.collect()
    assert reference() is not None
    assert _callbacks.leased_bytes() == 4096
    driver.destroy(0x1000)
    wait_until(lambda: reference() is None)
    assert _callbacks.leased_bytes() == 0


@pytest.mark.needs_gil("an object is taken down by the thread that made it")
def test_a_leased_object_ends_neither_on_the_reader_nor_on_the_thread_that_polls(
    driver: FakeDriver, dispatcher: _callbacks._Dispatcher
) -> None:
    dispatcher.notices._reader.enabled = False
    threads: list[threading.Thread] = []
    for number in range(200):
        watch = _callbacks.watch(0x1000 + number, INFO)
        watch.lease(Storage(lambda: threads.append(threading.current_thread())), 1)
    for number in range(200):
        driver.destroy(0x1000 + number)
        _callbacks.poll()
    wait_until(lambda: len(threads) == 200)
    assert set(threads) == {dispatcher.leases.thread}


@pytest.mark.needs_gil("an object is taken down by the thread that made it")
def test_a_finalizer_that_blocks_delays_neither_notices_nor_callbacks(driver: FakeDriver) -> None:
    gate = threading.Event()
    seen: list[object] = []
    _callbacks.watch(0x1000, INFO).lease(Storage(gate.wait), 8)
    _callbacks.watch(0x2000, INFO).call(seen.append)
    try:
        driver.destroy(0x1000)
        driver.destroy(0x2000)
        wait_until(lambda: seen)
        assert _callbacks.outstanding() == 0
    finally:
        gate.set()


# Callbacks


def test_a_callback_that_blocks_delays_neither_leases_nor_notices(driver: FakeDriver) -> None:
    gate = threading.Event()
    storage = Storage()
    reference = weakref.ref(storage)
    _callbacks.watch(0x1000, INFO).call(lambda _: gate.wait())
    _callbacks.watch(0x2000, INFO).lease(storage, 8)
    del storage
    try:
        driver.destroy(0x1000)
        driver.destroy(0x2000)
        wait_until(lambda: reference() is None)
        started = time.monotonic()
        assert _callbacks.drain(0.1) == 0
        assert time.monotonic() - started < 2.0
    finally:
        gate.set()


def test_each_exception_becomes_a_warning_that_names_the_object(driver: FakeDriver) -> None:
    def broken(info: ObjectInfo) -> None:
        raise SystemExit("stop")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for int_ptr in (0x1000, 0x2000):
            _callbacks.watch(int_ptr, INFO).call(broken)
            driver.destroy(int_ptr)
        _callbacks.drain(5.0)
    assert [warning.category for warning in caught] == [CleanupWarning, CleanupWarning]
    text = str(caught[0].message)
    assert "broken of 'field' (64 bytes, created at app.py:12) raised SystemExit: stop" in text
    assert isinstance(caught[0].message.__cause__, SystemExit)
    assert caught[0].filename == __file__


def test_an_exception_goes_to_the_thread_hook_when_warnings_are_errors(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    after: list[object] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = _callbacks.watch(0x1000, INFO)
        watch.call(after.append)
        watch.call(lambda _: 1 / 0)
        driver.destroy(0x1000)
        _callbacks.drain(5.0)
    assert [args.exc_type for args in seen] == [CleanupWarning]
    assert isinstance(seen[0].exc_value.__cause__, ZeroDivisionError)
    assert after == [INFO]


def test_an_exception_that_cannot_be_shown_does_not_end_the_thread(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def broken(_: ObjectInfo) -> None:
        raise UnprintableError

    hooked: list[object] = []
    monkeypatch.setattr(threading, "excepthook", hooked.append)
    seen: list[object] = []
    watch = _callbacks.watch(0x1000, INFO)
    watch.call(seen.append)
    watch.call(broken)
    driver.destroy(0x1000)
    _callbacks.drain(5.0)
    assert seen == [INFO]
    assert len(hooked) == 1


def test_the_hook_follows_each_callback_also_one_that_raised(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(_callbacks, "after_callback", lambda: order.append("hook"))
    watch = _callbacks.watch(0x1000, INFO)
    watch.call(lambda _: 1 / 0)
    watch.call(lambda _: order.append("callback"))
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        driver.destroy(0x1000)
        _callbacks.drain(5.0)
    assert order == ["callback", "hook", "hook"]


def test_a_callback_may_register_destroy_drain_and_collect(driver: FakeDriver) -> None:
    seen: list[str] = []

    def outer(_: ObjectInfo) -> None:
        _callbacks.watch(0x2000, INFO).call(lambda _: seen.append("inner"))
        driver.destroy(0x2000)
        gc.collect()
        _callbacks.drain(5.0)
        seen.append("outer")

    _callbacks.watch(0x1000, INFO).call(outer)
    driver.destroy(0x1000)
    assert _callbacks.drain(5.0) == 0
    assert seen == ["outer", "inner"]


# Drain, threads, reentrancy, fork


def test_drain_counts_what_is_still_alive_and_does_not_wait_for_it(driver: FakeDriver) -> None:
    _callbacks.watch(0x1000, INFO)
    started = time.monotonic()
    assert _callbacks.drain(30.0) == 1
    assert time.monotonic() - started < 5.0


def test_drain_waits_a_grace_for_a_driver_that_is_late(driver: FakeDriver) -> None:
    seen: list[object] = []
    _callbacks.watch(0x1000, INFO).call(seen.append)
    timer = threading.Timer(0.05, driver.destroy, (0x1000,))
    timer.start()
    assert _callbacks.drain(10.0, grace_seconds=5.0) == 0
    assert seen == [INFO]
    timer.join()


def test_drain_waits_for_a_callback_whose_notice_the_reader_took_just_before_the_end(
    driver: FakeDriver, dispatcher: _callbacks._Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    gate = threading.Event()
    settle = dispatcher.settle

    def settle_and_then_a_notice(deadline: float) -> bool:
        if watch.dead:
            gate.set()
            return settle(deadline)
        busy = settle(deadline)
        driver.destroy(0x1000)
        wait_until(lambda: _callbacks.outstanding() == 0)
        return busy

    watch = _callbacks.watch(0x1000, INFO)
    watch.call(lambda info: (gate.wait(10.0), seen.append(info)))
    monkeypatch.setattr(dispatcher, "settle", settle_and_then_a_notice)
    try:
        assert _callbacks.drain(10.0) == 0
        assert seen == [INFO]
    finally:
        gate.set()


def test_without_threads_drain_runs_everything_itself(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads: list[object] = []
    storage = Storage()
    reference = weakref.ref(storage)
    watch = _callbacks.watch(0x1000, INFO)
    watch.call(lambda _: threads.append(threading.current_thread()))
    watch.lease(storage, 8)
    del storage
    driver.destroy(0x1000)
    assert _callbacks.drain(5.0, final=True) == 0
    assert threads == [threading.current_thread()]
    assert reference() is None


def test_after_the_final_drain_late_notices_are_harmless(driver: FakeDriver) -> None:
    seen: list[object] = []
    _callbacks.watch(0x1000, INFO).call(seen.append)
    assert _callbacks.drain(5.0, final=True) == 1
    wait_until(lambda: not [t for t in threading.enumerate() if t is _callbacks._dispatcher.callbacks.thread])
    driver.destroy(0x1000)
    assert _callbacks.drain(5.0, final=True) == 0
    assert seen == [INFO]


def test_sixteen_threads_get_each_callback_exactly_once(driver: FakeDriver) -> None:
    seen: list[int] = []

    def work(base: int) -> None:
        for number in range(300):
            int_ptr = base + 16 * number
            watch = _callbacks.watch(int_ptr, INFO)
            watch.call(lambda _, int_ptr=int_ptr: seen.append(int_ptr))
            watch.lease(object(), 3)
            driver.destroy(int_ptr)

    threads = [threading.Thread(target=work, args=(FAR * base,)) for base in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _callbacks.drain(20.0) == 0
    assert len(seen) == len(set(seen)) == 16 * 300
    assert _callbacks.leased_bytes() == 0


def test_finalizers_that_come_back_in_during_any_step_do_no_harm(driver: FakeDriver) -> None:
    seen: list[int] = []
    addresses = iter(range(FAR, 2 * FAR, 16))

    def use() -> None:
        int_ptr = next(addresses)
        watch = _callbacks.watch(int_ptr, INFO)
        watch.call(lambda _: seen.append(int_ptr))
        watch.lease(object(), 5)
        driver.destroy(int_ptr)
        _callbacks.poll()

    def make_garbage() -> None:
        storage = Storage(use)
        storage.itself = storage  # type: ignore[attr-defined]

    threshold = gc.get_threshold()
    gc.set_threshold(3, 1, 1)
    try:
        for _ in range(300):
            make_garbage()
            use()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert _callbacks.drain(20.0) == 0
    assert len(seen) == len(set(seen)) == 600
    assert _callbacks.leased_bytes() == 0


def test_a_runner_outlives_a_task_that_somebody_else_took() -> None:
    runner = _runner.Runner("test")
    ran: list[int] = []
    for number in range(1000):
        runner.put(lambda number=number: ran.append(number))
        if not runner._tasks.empty() and number % 3 == 0:
            runner._step(block=False)
    runner.settle(time.monotonic() + 5.0)
    runner.put(lambda: ran.append(-1))
    runner.settle(time.monotonic() + 5.0)
    assert sorted(ran) == list(range(-1, 1000))
    runner.stop(time.monotonic() + 5.0)
    assert runner.thread is not None
    assert not runner.thread.is_alive()


# The real driver


def test_twenty_thousand_objects_call_back_exactly_once_each(
    cl_context: cl.Context, dispatcher: _callbacks._Dispatcher
) -> None:
    seen: list[str] = []
    for number in range(20_000):
        buffer = cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64)
        info = ObjectInfo(str(number), 64, "app.py:1")
        _callbacks.watch(buffer.int_ptr, info).call(lambda info: seen.append(info.label or ""))
        buffer.release()
    assert _callbacks.drain(60.0) == 0
    assert sorted(map(int, seen)) == list(range(20_000))


def test_a_sub_buffer_keeps_the_lease_of_its_parent(cl_context: cl.Context, dispatcher: _callbacks._Dispatcher) -> None:
    array = np.zeros(4096, np.uint8)
    reference = weakref.ref(array)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    parent = cl.Buffer(cl_context, flags, hostbuf=array)
    _callbacks.watch(parent.int_ptr, INFO).lease(array, array.nbytes)
    child = parent.get_sub_region(0, 1024)
    seen: list[object] = []
    _callbacks.watch(child.int_ptr, INFO).call(seen.append)
    parent.release()
    del parent, array
    gc.collect()
    _callbacks.drain(5.0)
    assert reference() is not None
    child.release()
    del child
    wait_until(lambda: reference() is None)
    wait_until(lambda: seen)


def test_a_command_that_waits_keeps_the_lease(cl_context: cl.Context, dispatcher: _callbacks._Dispatcher) -> None:
    queue = cl.CommandQueue(cl_context)
    array = np.zeros(4096, np.uint8)
    reference = weakref.ref(array)
    buffer = cl.Buffer(cl_context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=array)
    _callbacks.watch(buffer.int_ptr, INFO).lease(array, array.nbytes)
    gate = cl.UserEvent(cl_context)
    done = cl.enqueue_fill_buffer(queue, buffer, np.uint8(7), 0, 4096, wait_for=[gate])
    queue.flush()
    buffer.release()
    del buffer, array
    gc.collect()
    _callbacks.drain(5.0)
    assert reference() is not None
    gate.set_status(cl.command_execution_status.COMPLETE)
    done.wait()
    del done
    queue.finish()
    wait_until(lambda: reference() is None)


def test_images_call_back_too(cl_context: cl.Context, dispatcher: _callbacks._Dispatcher) -> None:
    if not cl_context.devices[0].image_support:
        pytest.skip("the device has no images")
    format_ = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNORM_INT8)
    image = cl.create_image(cl_context, cl.mem_flags.READ_WRITE, format_, shape=(8, 8))
    seen: list[object] = []
    _callbacks.watch(image.int_ptr, INFO).call(seen.append)
    image.release()
    wait_until(lambda: seen)


def test_a_callback_may_use_opencl_and_release_another_object(
    cl_context: cl.Context, dispatcher: _callbacks._Dispatcher
) -> None:
    queue = cl.CommandQueue(cl_context)
    other = cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64)
    results: list[object] = []

    def use(_: ObjectInfo) -> None:
        host = np.zeros(16, np.float32)
        cl.enqueue_fill_buffer(queue, other, np.float32(3), 0, 64).wait()
        cl.enqueue_copy(queue, host, other)
        results.append(host.sum())
        _callbacks.watch(other.int_ptr, INFO).call(lambda _: results.append("other"))
        other.release()

    buffer = cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64)
    _callbacks.watch(buffer.int_ptr, INFO).call(use)
    buffer.release()
    wait_until(lambda: results == [48.0, "other"])


# Processes: nothing here may crash, hang, or change the exit code

PRELUDE = """
import atexit, gc, os, sys, threading, time
import numpy as np
import pyopencl as cl
from clmemlife import _callbacks
from clmemlife._callbacks import ObjectInfo
context = cl.create_some_context(interactive=False)
LIMIT = 20.0
atexit.register(lambda: print("left", _callbacks.drain(LIMIT, final=True), flush=True))
def buffer(size=64):
    return cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
def watch(buf, label="b"):
    return _callbacks.watch(buf.int_ptr, ObjectInfo(label, buf.size, "app.py:1"))
"""


def run_process(body: str, *options: str) -> subprocess.CompletedProcess[str]:
    code = PRELUDE + textwrap.dedent(body)
    started = time.monotonic()
    result = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    assert time.monotonic() - started < 60.0
    return result


def test_process_callbacks_pending_at_exit_are_drained() -> None:
    result = run_process("""
        b = buffer()
        watch(b).call(lambda info: print("called", info, flush=True))
        b.release()
    """)
    assert "called ObjectInfo(label='b', size=64, site='app.py:1')" in result.stdout
    assert "left 0" in result.stdout
    assert result.stderr == ""


def test_process_registrations_made_at_exit_are_drained() -> None:
    result = run_process("""
        def late():
            b = buffer()
            watch(b).call(lambda info: print("called", flush=True))
            b.release()
        atexit.register(late)
    """)
    assert "called" in result.stdout
    assert result.stderr == ""


def test_process_hundreds_of_thousands_of_objects_dropped_in_one_statement() -> None:
    result = run_process("""
        buffers, count = [], []
        for _ in range(300_000):
            b = buffer()
            watch(b).call(count.append)
            buffers.append(b)
        sys.setswitchinterval(1000)  # nobody else gets the interpreter meanwhile
        del b
        del buffers
        sys.setswitchinterval(0.005)
        print("left", _callbacks.drain(60.0), "called", len(count))
    """)
    assert "left 0 called 300000" in result.stdout
    assert result.stderr == ""


def test_process_a_callback_that_never_returns_does_not_hold_the_exit() -> None:
    result = run_process("""
        LIMIT = 0.5
        b = buffer()
        watch(b).call(lambda info: threading.Event().wait())
        b.release()
        _callbacks.drain(0.2)
    """)
    assert "left 0" in result.stdout
    assert result.stderr == ""


def test_process_a_callback_that_raises_is_reported_when_warnings_are_errors() -> None:
    result = run_process(
        """
        b = buffer()
        w = watch(b)
        w.call(lambda info: print("second", flush=True))
        w.call(lambda info: 1 / 0)
        b.release()
        """,
        "-W",
        "error",
    )
    assert "second" in result.stdout
    assert "ZeroDivisionError" in result.stderr
    assert "CleanupWarning: the on_destroy callback <lambda> of 'b' (64 bytes, created at app.py:1)" in result.stderr


def test_process_callbacks_that_register_others_come_to_an_end_at_exit() -> None:
    result = run_process("""
        def chain(info):
            if int(info.label) < 50:
                b = buffer()
                watch(b, str(int(info.label) + 1)).call(chain)
                b.release()
            else:
                print("end", flush=True)
        b = buffer()
        watch(b, "0").call(chain)
        b.release()
    """)
    assert "end" in result.stdout
    assert "left 0" in result.stdout


def test_process_objects_left_to_the_interpreter_are_destroyed_after_the_drain() -> None:
    result = run_process("""
        kept = [buffer() for _ in range(1000)]
        for b in kept:
            watch(b).call(print)
            watch(b).lease(np.zeros(100), 800)
    """)
    assert "left 2000" in result.stdout
    assert result.stderr == ""


def test_process_the_driver_may_call_back_when_the_interpreter_is_gone() -> None:
    result = run_process("""
        import ctypes
        libc = ctypes.CDLL(None)
        library = ctypes.CDLL(cl._cl.__file__)
        for _ in range(1000):
            b = buffer()
            watch(b).call(print)
            library.clRetainMemObject(ctypes.c_void_p(b.int_ptr))
            release = ctypes.cast(library.clReleaseMemObject, ctypes.c_void_p)
            libc.__cxa_atexit(release, ctypes.c_void_p(b.int_ptr), None)
        del b
    """)
    assert "left 1000" in result.stdout
    assert result.stderr == ""


def test_process_a_user_event_that_is_never_set_does_not_hold_the_exit() -> None:
    result = run_process("""
        queue = cl.CommandQueue(context)
        gate = cl.UserEvent(context)
        b = buffer()
        watch(b).call(print)
        done = cl.enqueue_fill_buffer(queue, b, np.uint8(1), 0, 64, wait_for=[gate])
        queue.flush()
        b.release()
        import ctypes
        for thing in (queue, gate, done):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    """)
    assert "left 1" in result.stdout
    assert result.stderr == ""


def test_process_callbacks_that_work_with_opencl_through_the_exit() -> None:
    result = run_process("""
        queue = cl.CommandQueue(context)
        other = buffer()
        def use(info):
            host = np.zeros(16, np.float32)
            for _ in range(20):
                cl.enqueue_fill_buffer(queue, other, np.float32(3), 0, 64).wait()
                cl.enqueue_copy(queue, host, other)
            gc.collect()
        for _ in range(50):
            b = buffer()
            watch(b).call(use)
            b.release()
    """)
    assert "left 0" in result.stdout
    assert result.stderr == ""


def test_process_a_callback_that_uses_opencl_for_ever_is_interrupted_and_reported() -> None:
    result = run_process("""
        LIMIT = 0.5
        queue = cl.CommandQueue(context)
        other = buffer()
        def use(info):
            host = np.zeros(16, np.float32)
            while True:
                cl.enqueue_fill_buffer(queue, other, np.float32(3), 0, 64).wait()
                cl.enqueue_copy(queue, host, other)
        for _ in range(20):
            b = buffer()
            watch(b).call(use)
            b.release()
    """)
    assert "left 0" in result.stdout
    assert result.stderr.count("CleanupWarning: the on_destroy callback use of 'b'") == 1
    assert "SystemExit" in result.stderr


def test_process_collection_inside_of_a_callback() -> None:
    result = run_process("""
        class Cycle:
            def __init__(self):
                self.itself, self.buffer = self, buffer()
                watch(self.buffer).call(count.append)
            def __del__(self):
                self.buffer.release()
        count = []
        def collect(info):
            for _ in range(50):
                Cycle()
            gc.collect()
        gc.disable()
        for _ in range(20):
            b = buffer()
            watch(b).call(collect)
            b.release()
        print("left", _callbacks.drain(20.0), "called", len(count))
    """)
    assert "left 0 called 1000" in result.stdout
    assert result.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_process_a_forked_child_neither_writes_nor_reads_the_notices_of_its_parent() -> None:
    result = run_process("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        os.register_at_fork(after_in_child=_callbacks.after_fork_in_child)
        import struct
        from clmemlife import _opencl
        b = buffer()
        w = watch(b)
        w.call(lambda info: print("called", flush=True))
        streams = list(_callbacks._dispatcher.notices.streams)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for stream in streams:
                    try:
                        os.write(stream.write_fd, struct.pack("=I", b.int_ptr & 0xFFFFFFFF))
                    except OSError:
                        pass
                _opencl.set_destructor_callback = lambda *_: None
                assert (_callbacks.outstanding(), _callbacks.leased_bytes()) == (0, 0)
                w.lease(object(), 8)
                seen = []
                mine = _callbacks.watch(0x1234, ObjectInfo("child", 1, "app.py:2"))
                mine.call(seen.append)
                own = _callbacks._dispatcher.notices.streams[0]
                os.write(own.write_fd, struct.pack("=I", 0x1234))
                assert _callbacks.drain(5.0) == 0
                assert len(seen) == 1
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        _callbacks.drain(1.0)
        assert not w.dead
        b.release()
    """)
    assert result.stdout.count("called") == 1
    assert result.stderr == ""


def test_process_a_failing_callback_of_an_object_without_a_label_names_it_so(run) -> None:
    output = run(
        """
        def fail(info):
            raise ValueError("not today")

        context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with cml.MemHandle.create_buffer(context, 64) as handle:
                handle.on_destroy(fail)
            deadline = time.monotonic() + 20
            while not caught and time.monotonic() < deadline:
                time.sleep(0.01)
        print(caught[0].message)
        """
    )
    assert "of unlabelled memory object (64 bytes, created at" in output
    assert "raised ValueError: not today" in output
