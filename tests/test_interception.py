"""`sanitize`: what a program can and cannot notice of it, its modes, its scopes, and what it publishes."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest

import clmemlife as cml
from clmemlife import _journal
from clmemlife.diagnostics import interception
from clmemlife.diagnostics.interception import _cpython, _places

mf, mapf = cl.mem_flags, cl.map_flags
N = 256
early_map, early_wait, early_copy = cl.enqueue_map_buffer, cl.wait_for_events, cl.enqueue_copy


class Recorder:
    """A listener of the journal that keeps what it is told."""

    def __init__(self) -> None:
        self.commands: list[_journal.Command] = []
        self.told: list[object] = []

    def before(self, command: _journal.Command) -> None:
        self.commands.append(command)

    def after(self, command: _journal.Command) -> None:
        pass

    def abandoned(self, command: _journal.Command) -> None:
        self.commands.remove(command)

    def host(self, record: object) -> None:
        self.told.append(record)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    one = Recorder()
    _journal.subscribe(one)
    yield one
    _journal.unsubscribe(one)


@pytest.fixture
def buffer(context: cl.Context) -> cl.Buffer:
    return cl.Buffer(context, mf.READ_WRITE, 4 * N)


class Kernels:
    """The kernels of a program, each made once."""

    def __init__(self, program: cl.Program) -> None:
        self.inc, self.setval, self.copy = (cl.Kernel(program, name) for name in ("inc", "setval", "copy"))


@pytest.fixture
def kernels(program: cl.Program) -> Kernels:
    return Kernels(program)


def kinds(sanitizer: cml.sanitize) -> list[str]:
    return [one.kind for one in sanitizer.findings]


def signature(function: object) -> str:
    """Return the signature as text, or why there is none: Python knows those of functions in C since 3.13 or so."""
    try:
        return str(inspect.signature(function))
    except ValueError:
        return "none"


def names() -> dict[str, object]:
    """Return all that the sanitizer might replace."""
    found = {f"pyopencl.{name}": value for name, value in vars(cl).items()}
    found |= {f"_cl.{name}": value for name, value in vars(cl._cl).items()}
    for kind in [value for value in vars(cl._cl).values() if isinstance(value, type)]:
        found |= {f"{kind.__name__}.{name}": value for name, value in vars(kind).items() if name != "__doc__"}
    return found


# What a program can notice


def test_everything_is_put_back() -> None:
    before = names()
    with cml.sanitize():
        assert cl._cl.enqueue_nd_range_kernel is not before["_cl.enqueue_nd_range_kernel"]
    after = names()
    assert {name for name in before if before[name] is not after.get(name)} == set()
    assert set(after) == set(before)


def test_everything_is_put_back_if_the_body_raises() -> None:
    before = names()
    with pytest.raises(KeyError), cml.sanitize():
        raise KeyError
    assert all(before[name] is value for name, value in names().items())


def test_a_checker_around_the_block_sees_afterwards_what_it_saw_before(queue) -> None:
    with cml.check_hazards():
        before = names()
        with cml.sanitize():
            pass
        assert {name for name, value in names().items() if before[name] is not value} == set()
    assert cl.wait_for_events is early_wait


def test_all_modules_that_have_hooks_are_known_to_stand_in_the_place_of_pyopencl() -> None:
    folder = Path(interception.__file__).parent
    hooks = {str(path) for path in folder.glob("*.py") if "site = caller(sys._getframe(1))" in path.read_text()}
    assert len(hooks) > 3
    assert hooks <= _places._HOOKS


def test_names_taken_before_and_in_the_block_are_hooked_and_put_back(queue, buffer) -> None:
    original = early_map
    with cml.sanitize() as sanitizer:
        array, _ = early_map(queue, buffer, 0, 0, (N,), np.int32)
        assert kinds(sanitizer) == ["wrong_map_flags"]
        array.base.release(queue)
    assert early_map is original


@pytest.mark.parametrize(
    "function",
    [
        lambda: cl.enqueue_copy,
        lambda: cl.enqueue_fill_buffer,
        lambda: cl.enqueue_barrier,
        lambda: cl.create_image,
        lambda: cl.Kernel.set_arg_types,
    ],
)
def test_signatures_stay_what_they_are(function) -> None:
    before = inspect.signature(function())
    with cml.sanitize():
        assert inspect.signature(function()) == before


@pytest.mark.parametrize("name", ["_enqueue_read_buffer", "enqueue_map_buffer", "enqueue_nd_range_kernel"])
def test_functions_keep_their_names_and_docstrings(name) -> None:
    before = getattr(cl._cl, name)
    with cml.sanitize():
        hooked = getattr(cl._cl, name)
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            assert getattr(hooked, attribute) == getattr(before, attribute)
        assert functools.wraps(hooked)(lambda: None).__name__ == name
        assert signature(hooked) == signature(before)


def test_errors_stay_what_they_are(context, queue, buffer) -> None:
    def errors() -> list[str]:
        found = []
        for call in (
            lambda: cl.Buffer(context),
            lambda: cl.Buffer(context, mf.READ_WRITE, 0),
            lambda: cl.enqueue_copy(queue, buffer),
            lambda: cl.enqueue_copy(queue, np.zeros(1), np.zeros(1)),
            lambda: cl.enqueue_map_buffer(queue, buffer, 1, 0, (N,)),
            lambda: cl.enqueue_map_buffer(queue, buffer, 1, 0, (N * N,), np.int32),
            lambda: cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 1, 8),
            lambda: cl._cl._enqueue_read_buffer(buffer, queue),
            lambda: cl.enqueue_migrate_mem_objects(queue, [1]),
            lambda: buffer.get_sub_region("a"),
            lambda: buffer[3],
            lambda: cl.Buffer.from_int_ptr("a"),
            lambda: cl.wait_for_events([1]),
        ):
            try:
                call()
                found.append("fine")
            except Exception as error:
                found.append(f"{type(error).__name__}: {str(error).partition(' object at 0x')[0]}")
        return found

    plain = errors()
    with cml.sanitize():
        assert errors() == plain


def test_objects_stay_what_they_are(context, queue) -> None:
    class Mine(cl.Buffer):
        pass

    with cml.sanitize():
        made = cl.Buffer(context, mf.READ_WRITE, 4096)
        part, mine = made[0:1024], Mine(context, mf.READ_WRITE, 16)
        array, event = cl.enqueue_map_buffer(queue, made, mapf.READ, 0, (N,), np.int32)
        copied = cl.enqueue_copy(queue, np.zeros(N, np.int32), made)
        assert type(made) is cl.Buffer
        assert type(part) is cl.Buffer
        assert type(mine) is Mine
        assert type(array) is np.ndarray
        assert type(array.base) is cl.MemoryMap
        assert type(event) is cl.Event
        assert type(copied) is cl.NannyEvent
        del array


def test_reference_counts_stay_what_they_are(context, queue, kernels) -> None:
    def counts() -> list[int]:
        host = np.zeros(N, np.int32)
        a = cl.Buffer(context, mf.READ_WRITE, 4 * N)
        b = cl.Buffer(context, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host)
        kernels.setval(queue, (N,), None, a, np.int32(1))
        kernels.setval(queue, (N,), None, b, np.int32(1))
        event = cl.enqueue_copy(queue, host, a)
        array, _ = cl.enqueue_map_buffer(queue, a, mapf.READ, 0, (N,), np.int32)
        queue.finish()
        found = [sys.getrefcount(one) for one in (a, b, host, event, array, array.base, context, kernels.setval)]
        found += [a.reference_count, b.reference_count, a.map_count]
        del array
        queue.finish()
        return [*found, a.map_count]

    plain = counts()
    with cml.sanitize():
        assert counts() == plain


def test_nothing_is_kept_alive(context, queue, kernels) -> None:
    host = np.zeros(N, np.int32)
    before = sys.getrefcount(host)
    with cml.sanitize():
        for _ in range(3):
            b = cl.Buffer(context, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host)
            kernels.inc(queue, (N,), None, b).wait()
            cl.enqueue_copy(queue, b, host, is_blocking=False).wait()
            del b
    gc.collect()
    cml.statistics()
    deadline = threading.Event()
    for _ in range(500):
        if sys.getrefcount(host) == before:
            break
        deadline.wait(0.01)
    assert sys.getrefcount(host) == before


@pytest.mark.alone("warnings of PyOpenCL name its hooks")
def test_warnings_name_the_callers_line(context, queue, buffer) -> None:
    def lines() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cl.enqueue_copy(queue, buffer, np.zeros(N, np.int32), device_offset=0)
            cl.Buffer(context, mf.READ_WRITE | mf.COPY_HOST_PTR, hostbuf=np.zeros(4))
            cl.Image(context, mf.READ_ONLY, cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT), shape=(4, 4))
        return [f"{one.category.__name__} {one.filename.rpartition('/')[2]}:{one.lineno}" for one in caught]

    with warnings.catch_warnings():
        plain = lines()
        assert plain
        with cml.sanitize():
            assert lines() == plain


# Modes and scopes


def test_mode_raise_raises_at_the_line(queue, buffer) -> None:
    with cml.sanitize("raise") as sanitizer:
        with pytest.raises(cml.HazardError, match="wrong_map_flags"):
            cl.enqueue_map_buffer(queue, buffer, 0, 0, (N,), np.int32)
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.WRITE, 0, (N,), np.int32)
        with pytest.raises(cml.MapConflictError):
            cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 0, 4 * N)
        array.base.release(queue).wait()
        with pytest.raises(cml.UnmappedError):
            array.sum()
    assert kinds(sanitizer) == ["wrong_map_flags", "command_on_mapped", "stale_map_array"]
    assert array.shape == (N,)


@pytest.mark.unordered("it shows a missing event")
def test_mode_raise_raises_for_a_missing_event(queue, queue2, buffer) -> None:
    with cml.sanitize("raise") as sanitizer:
        done = cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 0, 4 * N)
        queue.flush()
        with pytest.raises(cml.UnorderedAccessError):
            cl.enqueue_fill_buffer(queue2, buffer, np.int32(0), 0, 4 * N)
        done.wait()
    assert kinds(sanitizer) == ["write_after_write"]


def test_mode_warn_warns_once(queue, buffer) -> None:
    with cml.sanitize("warn") as sanitizer:
        with pytest.warns(cml.HazardWarning, match="wrong_map_flags") as caught:
            for _ in range(3):
                array, _ = cl.enqueue_map_buffer(queue, buffer, 0, 0, (N,), np.int32)
                array.base.release(queue)
        assert len(caught) == 1
    assert [one.count for one in sanitizer.findings] == [3]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode"):
        cml.sanitize("loud")


def test_scopes_nest_and_have_findings_of_their_own(queue, buffer) -> None:
    with cml.sanitize() as outer:
        cl.enqueue_map_buffer(queue, buffer, 0, 0, (N,), np.int32)[0].base.release(queue)
        with cml.sanitize() as inner:
            cl.enqueue_map_buffer(queue, buffer, 0, 0, (N,), np.int32)[0].base.release(queue)  # another line
        cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 0, 4 * N)
    assert len(outer.findings) == 2
    assert len(inner.findings) == 1
    assert inner.findings[0] in outer.findings
    assert outer.statistics["commands"] > inner.statistics["commands"]


def test_start_and_stop_do_what_a_block_does(queue, buffer) -> None:
    sanitizer = cml.sanitize()
    sanitizer.stop()
    sanitizer.start()
    with pytest.raises(RuntimeError):
        sanitizer.start()
    cl.enqueue_map_buffer(queue, buffer, 0, 0, (N,), np.int32)[0].base.release(queue)
    sanitizer.stop()
    sanitizer.stop()
    assert kinds(sanitizer) == ["wrong_map_flags"]


def test_all_threads_are_seen(context, queue) -> None:
    def work() -> None:
        for _ in range(50):
            b = cl.Buffer(context, mf.READ_WRITE, 4 * N)
            cl.enqueue_fill_buffer(queue, b, np.int32(1), 0, 4 * N)
            b.release()
            with pytest.raises(cml.ReleasedError):
                b.size

    with cml.sanitize() as sanitizer:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        queue.finish()
    assert [(one.kind, one.count) for one in sanitizer.findings] == [("use_after_release", 200)]
    assert sanitizer.statistics == {"commands": 200, "objects": 200, "maps": 0}


@pytest.mark.unordered("it shows a missing event")
def test_without_hazards_missing_events_are_not_looked_for(queue, queue2, buffer) -> None:
    with cml.sanitize(hazards=False) as sanitizer:
        cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 0, 4 * N)
        cl.enqueue_fill_buffer(queue2, buffer, np.int32(0), 0, 4 * N)
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.WRITE, 0, (N,), np.int32)
        cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 0, 4 * N)
        array.base.release(queue)
        queue.finish()
        queue2.finish()
    assert kinds(sanitizer) == ["command_on_mapped"]


def test_what_is_alive_at_the_end_is_listed_with_its_line(context) -> None:
    kept: list[object] = []
    with cml.sanitize() as sanitizer:
        held = cl.Buffer(context, mf.READ_WRITE, 64)
        line = inspect.currentframe().f_lineno + 1
        kept.append(cl.Buffer(context, mf.READ_WRITE, 128))
    assert held.size == 64
    (record,) = sanitizer.leaks
    assert (record.size, record.kind, record.how) == (128, "buffer", "pyopencl")
    assert record.site == f"{__file__}:{line}"
    assert record.why
    assert "leak: " in sanitizer.report()
    with cml.sanitize(leaks=False) as other:
        kept.append(cl.Buffer(context, mf.READ_WRITE, 128))
    assert other.leaks == ()


def test_what_the_collector_has_had_no_occasion_to_free_is_no_finding_while_the_program_runs(context) -> None:
    class Plan:
        def __init__(self) -> None:
            self.me, self.memory = self, cl.Buffer(context, mf.READ_WRITE, 1 << 20)

    gc.collect()
    gc.disable()
    try:
        with cml.sanitize() as sanitizer:
            Plan()
    finally:
        gc.enable()
    assert sanitizer.findings == ()
    assert sanitizer.leaks == ()


def test_handles_that_no_variable_leads_to_are_listed_too_and_what_the_collector_ended(context, queue) -> None:
    class Node:
        def __init__(self) -> None:
            self.me, self.handle = self, cml.MemHandle.create_buffer(context, 256, label="in a cycle")

    kept: list[object] = []
    with cml.sanitize() as sanitizer:
        held = cml.MemHandle.create_buffer(context, 64, label="held")
        kept.append(cml.MemHandle.create_buffer(context, 128, label="kept"))
        kept.append(cml.Mapping(queue, held, cml.MapFlags.READ))
        with cml.MemHandle.create_buffer(context, 64, label="ended"):
            Node()
        with pytest.warns(cml.exceptions.LeakWarning, match="in a cycle"):
            gc.collect()
        assert {one.label for one in sanitizer.leaks} == {"kept", "held", "in a cycle"}
    told = {(one.label, one.kind, one.state) for one in sanitizer.leaks}
    assert told == {("kept", "buffer", "alive"), ("held", "map", "mapped"), ("in a cycle", "buffer", "collected")}
    assert "a list of 2" in next(one for one in sanitizer.leaks if one.label == "kept").why[0]
    assert sanitizer.as_dict()["leaks"]
    with cml.sanitize() as after:
        pass
    assert after.leaks == ()
    kept.pop().unmap()
    kept.pop().release()
    held.release()


def test_the_modules_that_stand_in_the_place_of_pyopencl_are_where_they_are_looked_for() -> None:
    files = {sys.modules[name].__file__ for name in sys.modules if name.startswith("clmemlife.")}
    assert files >= _places._HOOKS


def test_the_report_is_text_and_plain_values(queue, buffer) -> None:
    with cml.sanitize() as sanitizer:
        cl.enqueue_map_buffer(queue, buffer, 0, 0, (N,), np.int32)[0].base.release(queue)
    told = json.loads(json.dumps(sanitizer.as_dict()))
    (finding,) = told["findings"]
    assert finding["kind"] == "wrong_map_flags"
    assert finding["key"] == sanitizer.findings[0].key
    assert finding["site"].startswith(__file__)
    assert "1 finding, 0 leaks" in sanitizer.report()
    assert set(told) == {"findings", "leaks", "unknown", "statistics"}
    with pytest.raises(AttributeError):
        sanitizer.findings[0].kind = "another"


# What is published


def shape(command: _journal.Command) -> tuple[object, ...]:
    return (command.kind, [(one.start, one.stop, one.reads, one.writes) for one in command.accesses], command.blocking)


def test_commands_are_published_with_their_bytes(context, queue, buffer, kernels, recorder) -> None:
    host = np.zeros(16, np.int32)
    with cml.sanitize(hazards=False):
        cl.enqueue_copy(queue, buffer, host, dst_offset=64)
        cl.enqueue_copy(queue, host, buffer, src_offset=128, is_blocking=False).wait()
        cl.enqueue_copy(queue, buffer, buffer, byte_count=32, dst_offset=512)
        cl.enqueue_fill_buffer(queue, buffer, np.int32(0), 16, 64)
        kernels.copy(queue, (16,), None, buffer, cl.Buffer(context, mf.READ_WRITE, 64))
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.WRITE_INVALIDATE_REGION, 64, (8,), np.int32)
        array.base.release(queue)
        cl.enqueue_migrate_mem_objects(queue, [buffer])
        cl.enqueue_marker(queue)
        cl.enqueue_barrier(queue)
        queue.finish()
    assert [shape(one) for one in recorder.commands] == [
        ("enqueue_copy", [(64, 128, False, True)], True),
        ("enqueue_copy", [(128, 192, True, False)], False),
        ("enqueue_copy", [(512, 544, False, True), (0, 32, True, False)], False),
        ("enqueue_fill", [(16, 80, False, True)], False),
        ("enqueue_kernel", [(0, 4 * N, True, False), (0, 64, False, True)], False),
        ("map", [(64, 96, False, True)], True),
        ("unmap", [], False),
        ("migrate", [(0, 4 * N, True, True)], False),
        ("marker", [], False),
        ("barrier", [], False),
    ]
    assert {one.site.rpartition(":")[0] for one in recorder.commands} == {__file__}
    assert all(one.raw for one in recorder.commands)


def test_rectangles_and_images_are_published_as_such(context, queue, buffer, recorder) -> None:
    host = np.zeros((4, 16), np.uint8)
    image = cl.create_image(
        context, mf.READ_WRITE, cl.ImageFormat(cl.channel_order.R, cl.channel_type.UNSIGNED_INT8), shape=(16, 4)
    )
    with cml.sanitize(hazards=False) as sanitizer:
        cl.enqueue_copy(
            queue, host, buffer, buffer_origin=(4, 1, 0), host_origin=(0, 0, 0), region=(8, 2, 1), buffer_pitches=(32,),
            host_pitches=(16,),
        )  # fmt: skip
        cl.enqueue_copy(queue, image, host, origin=(0, 0), region=(16, 4))
        cl.enqueue_copy(queue, buffer, image, origin=(2, 1), region=(4, 2), offset=8)
        cl.enqueue_fill_image(queue, image, np.zeros(4, np.uint32), (0, 0), (8, 2))
        array = cl.enqueue_map_image(queue, image, mapf.READ, (1, 1), (4, 2), (2, 4), np.uint8)[0]
        del array
        queue.finish()
    assert dict(sanitizer.unknown) == {}
    rectangle, written, copied, filled, mapped, _ = recorder.commands
    assert rectangle.accesses[0].rows == (36, 8, 32, 2, 64, 1)
    assert written.accesses[0].box == ((0, 0, 0), (16, 4, 1))
    assert {(one.start, one.stop, one.box) for one in copied.accesses} == {
        (8, 16, None),
        (0, image.size, ((2, 1, 0), (4, 2, 1))),
    }
    assert filled.accesses[0].box == ((0, 0, 0), (8, 2, 1))
    assert mapped.accesses[0].box == ((1, 1, 0), (4, 2, 1))


def test_commands_of_our_helpers_are_published_once(context, queue, kernels, recorder) -> None:
    host = np.zeros(N, np.int32)
    with cml.sanitize() as sanitizer, cml.MemHandle.create_buffer(context, 4 * N) as handle:
        cml.enqueue_copy(queue, handle, host)
        cml.enqueue_fill(queue, handle, np.int32(1))
        cml.enqueue_kernel(queue, kernels.inc, (N,), None, handle)
        with cml.Mapping(queue, handle, cml.MapFlags.READ) as mapping:
            mapping.array
        cml.Migration(queue, handle).wait()
        kernels.inc(queue, (N,), None, handle.mem)
        queue.finish()
    assert [(one.kind, one.raw) for one in recorder.commands] == [
        ("enqueue_copy", False), ("enqueue_fill", False), ("enqueue_kernel", False), ("map", False), ("unmap", False),
        ("migrate", False), ("enqueue_kernel", True),
    ]  # fmt: skip
    numbers = {access.obj for one in recorder.commands for access in one.accesses}
    assert len(numbers) == 1
    assert sanitizer.findings == ()
    assert sanitizer.statistics["commands"] == 1


@pytest.mark.unordered("it shows a missing event")
def test_a_helper_and_a_raw_command_on_a_raw_buffer_are_ordered_by_events_only(queue, queue2, buffer) -> None:
    with cml.sanitize() as sanitizer:
        cml.enqueue_fill(queue, buffer, np.int32(1))
        queue.flush()
        cl.enqueue_fill_buffer(queue2, buffer, np.int32(1), 0, 4 * N)
        queue.finish()
        queue2.finish()
    assert kinds(sanitizer) == ["write_after_write"]


def test_check_hazards_within_the_scope_publishes_nothing_twice(queue, buffer, recorder) -> None:
    with cml.sanitize(), cml.check_hazards("record"):
        cl.enqueue_fill_buffer(queue, buffer, np.int32(1), 0, 4 * N)
        cl.enqueue_barrier(queue)
    assert [one.kind for one in recorder.commands] == ["enqueue_fill", "barrier"]


def test_wait_lists_can_be_rewritten_and_events_seen(context, queue, buffer, kernels, monkeypatch) -> None:
    gate = cl.UserEvent(context)
    gate.set_status(0)
    calls, seen = [], []

    def rewrite(on: cl.CommandQueue, events: list[cl.Event], name: str) -> list[cl.Event]:
        calls.append((on == queue, len(events), name))
        return [*events, gate]

    monkeypatch.setattr(interception, "rewrite_waits", rewrite)
    monkeypatch.setattr(interception, "after_enqueue", lambda on, event: seen.append(event))
    with cml.sanitize():
        first = kernels.inc(queue, (N,), None, buffer)
        kernels.inc(queue, (N,), None, buffer, wait_for=[first])
        cl.enqueue_copy(queue, np.zeros(N, np.int32), buffer)
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ, 0, (N,), np.int32)
        array.base.release()
        queue.finish()
    assert calls == [(True, 0, "inc"), (True, 1, "inc"), (True, 0, "unmap")]  # what blocks is left alone
    assert len(seen) == 5
    assert all(isinstance(one, cl.Event) for one in seen)


# Objects and arrays


def test_arrays_of_pyopencl_are_silent(context, queue) -> None:
    with cml.sanitize("raise") as sanitizer:
        for on in (
            queue,
            cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE),
        ):
            x = cla.arange(on, N, dtype=np.float32)
            y = (2 * x + 1)[8:] * x[8:]
            assert (y.get() == ((2 * np.arange(N) + 1) * np.arange(N))[8:]).all()
            x.set(np.ones(N, np.float32))
            x[3:7] = 0
            assert x.get().sum() == N - 4
    assert sanitizer.findings == ()


def test_what_a_kernel_does_is_read_in_its_text(context, queue, recorder) -> None:
    source = """
    void helper(global int *x) {}
    kernel void k(global int *a, global const int *b, global int *c, global int *d, global int *e) {
        a[0] = c[0]; d[0] += 1; helper(e); }"""
    kernel = cl.Kernel(cl.Program(context, source).build(), "k")
    with cml.sanitize(hazards=False) as sanitizer:
        kernel(queue, (1,), None, *[cl.Buffer(context, mf.READ_WRITE, 4) for _ in range(5)])
    assert [(one.reads, one.writes, one.assumed) for one in recorder.commands[0].accesses] == [
        (False, True, False),
        (True, False, False),
        (True, False, False),
        (True, True, False),
        (True, False, True),  # which cannot be known
    ]
    assert sum(sanitizer.unknown.values()) == 1


@pytest.mark.skipif(not _cpython.can_watch_arrays, reason="the class of an array cannot be changed here")
def test_a_stale_array_behaves_as_before(queue, buffer) -> None:
    cl.enqueue_fill_buffer(queue, buffer, np.int32(5), 0, 4 * N).wait()
    with cml.sanitize() as sanitizer:
        array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ | mapf.WRITE, 0, (N,), np.int32)
        plain = repr(array)
        array.base.release(queue).wait()
        assert array.shape == (N,)
        assert array.dtype == np.int32
        assert sanitizer.findings == ()  # looking at that is no use of the memory
        assert isinstance(array, np.ndarray)
        assert repr(array) == plain
        assert array[0] == 5
        assert (array + 1).sum() == 6 * N
        assert type(array + 1) is np.ndarray
        assert np.array_equal(array[1:3], [5, 5])
        same = array
        array += 1
        assert array is same
        assert array[3:].max() == 6
        assert list(array)[:2] == [6, 6]
        assert f"{array[0]:d}" == "6"
    assert set(kinds(sanitizer)) == {"stale_map_array"}
    assert type(array) is np.ndarray
    assert array.sum() == 6 * N


@pytest.mark.skipif(not _cpython.can_watch_arrays, reason="the class of an array cannot be changed here")
def test_many_stale_arrays_come_and_go(queue, buffer) -> None:
    kept = []
    with cml.sanitize():
        for number in range(2000):
            array, _ = cl.enqueue_map_buffer(queue, buffer, mapf.READ, 0, (4,), np.int32)
            array.base.release(queue)
            if number % 7 == 0:
                kept.append(array)
            del array
        gc.collect()
        del kept[::2]
    assert {type(one) for one in kept} == {np.ndarray}
    queue.finish()


def test_shared_virtual_memory_is_known_by_its_allocation(context, queue, recorder) -> None:
    if not context.devices[0].svm_capabilities:
        pytest.skip("the device shares no virtual memory")
    with cml.sanitize() as sanitizer:
        memory = cl.SVM(cl.csvm_empty(context, N, np.int32))
        cl.enqueue_svm_memfill(queue, memory, np.int32(3))
        host = np.zeros(N, np.int32)
        cl.enqueue_copy(queue, host, memory)
    assert (host == 3).all()
    fill, copy = [one for one in recorder.commands if one.kind.startswith("enqueue_")]
    assert [(one.start, one.stop) for one in fill.accesses] == [(0, 4 * N)]
    assert copy.accesses[0].obj == fill.accesses[0].obj
    assert sanitizer.findings == ()


def test_shared_virtual_memory_that_goes_between_two_scopes_is_not_looked_for(run) -> None:
    run("""
        import numpy as np, pyopencl as cl, clmemlife as cml

        context = cl.create_some_context(interactive=False)
        queue = cl.CommandQueue(context)
        source = "kernel void inc(global int *x) { x[get_global_id(0)] += 1; }"
        inc = cl.Kernel(cl.Program(context, source).build(), "inc")
        if context.devices[0].svm_capabilities:
            for _ in range(20):
                with cml.sanitize() as one:
                    memory = cl.SVM(cl.csvm_empty(context, 64, np.int32))
                    inc(queue, (64,), None, memory).wait()
                memory = cl.SVM(cl.csvm_empty(context, 64, np.int32))
                with cml.sanitize() as two:
                    inc(queue, (64,), None, memory).wait()  # what it has not seen made, it does not keep
                    memory = cl.SVM(cl.csvm_empty(context, 64, np.int32))
                    inc(queue, (64,), None, memory).wait()
                    queue.finish()
                assert one.findings == (), one.report()
                assert two.findings == (), two.report()
    """)


def test_commands_cost_little_memory(queue, buffer, kernels) -> None:
    others = _journal.listeners
    with cml.sanitize() as sanitizer:
        for _ in range(300):
            kernels.inc(queue, (N,), None, buffer)
        queue.finish()
        (checker,) = [one for one in _journal.listeners if hasattr(one, "has_waited_for") and one not in others]
        assert len(checker._order.nodes) < 300
    assert sanitizer.statistics["commands"] == 300
