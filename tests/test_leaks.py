"""Readings of the ledger, and scopes that find what was made in them and not ended."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import sys
import threading
import time

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import LeakError, LeakWarning, MapFlags, Mapping, MemFlags, MemHandle, _site

KEPT: list[object] = []


class Owner:
    """Something of the user's that holds a handle."""


@pytest.fixture(autouse=True)
def empty_kept():
    yield
    for one in KEPT:
        if isinstance(one, MemHandle):
            one.release()
        if isinstance(one, Mapping):
            one.unmap()
    KEPT.clear()


def line() -> int:
    return inspect.currentframe().f_back.f_lineno


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_record_says_flags_state_and_who_else_holds_a_reference(context):
    with MemHandle.create_buffer(context, 64, MemFlags.READ_ONLY, label="field") as handle:
        (record,) = cml.live()
        assert (record.flags, record.state, record.others) == (MemFlags.READ_ONLY, "alive", 0)
        wrapper = handle.mem
        assert cml.live()[0].others == 1
        del wrapper
        assert cml.live()[0].others == 0


def test_handles_and_parts_of_ours_are_not_others(context):
    step = max(device.mem_base_addr_align // 8 for device in context.devices)
    with (
        MemHandle.create_buffer(context, 2 * step) as root,
        MemHandle.retain(root),
        root.sub_buffer(0, step),
        root.sub_buffer(step, step),
    ):
        first, second, part, _ = cml.live()
        assert (first.others, first.children) == (0, 2)
        assert (second.others, part.others, part.children) == (0, 0, 0)


def test_the_state_of_a_handle_follows_its_maps_and_queued_commands(context, queue, gate, wait):
    with MemHandle.create_buffer(context, 64) as handle:
        with Mapping(queue, handle, MapFlags.READ, is_blocking=True):
            assert (cml.live()[0].state, cml.live()[0].maps) == ("mapped", 1)
        cml.enqueue_fill(queue, handle, b"\0", wait_for=gate)
        assert (cml.live()[0].state, cml.live()[0].commands) == ("in flight", 1)
        gate.set_status(cl.command_execution_status.COMPLETE)
        wait(lambda: cml.live()[0].state == "alive", "the command is complete")


def test_a_map_whose_handle_is_gone_says_its_flags_and_age(context, queue):
    handle = MemHandle.create_buffer(context, 64, label="field")
    with Mapping(queue, handle, MapFlags.READ | MapFlags.WRITE):
        handle.release()
        (record,) = cml.live()
        assert (record.kind, record.flags, record.state) == ("map", MapFlags.READ | MapFlags.WRITE, "mapped")
        assert record.age >= 0.0


# -- report ------------------------------------------------------------------------------------------------------------


def test_the_report_says_why_an_object_is_alive(context, queue):
    owner = Owner()
    owner.buffer = MemHandle.create_buffer(context, 64, label="field")
    KEPT.append(owner)
    with owner.buffer, Mapping(queue, owner.buffer, MapFlags.READ) as mapping:
        mapping.wait()
        text = str(cml.report())
    assert "'field' (64 bytes, created at " in text
    assert f"attribute 'buffer' of a {__name__}.Owner" in text
    assert f"the open map made at {__file__}" in text


@pytest.mark.needs_gil("gc.get_referrers does not find every dictionary of a module")
@pytest.mark.parametrize("container", [list, tuple, set, dict])
def test_containers_are_followed_to_the_name_that_holds_them(context, container):
    with MemHandle.create_buffer(context, 64) as handle:
        KEPT.append({"key": handle} if container is dict else container([handle]))
        reasons = cml.report().records[0].why
        KEPT.clear()
    what = "entry 'key' of a dict" if container is dict else f"a {container.__name__} of 1"
    assert any(what in reason and f"global 'KEPT' of module {__name__}" in reason for reason in reasons), reasons


def test_a_suspended_generator_and_a_closure_are_named(context):
    def hold(handle):
        yield handle

    with MemHandle.create_buffer(context, 64) as handle:
        suspended = hold(handle)
        next(suspended)
        call = (lambda one: lambda: one)(handle)
        reasons = " ".join(cml.report().records[0].why)
        suspended.close()
        del call
    assert "hold() (" in reasons  # the generator, or before Python 3.11 its frame
    assert "a variable of a closure" in reasons


def test_pyopencl_objects_of_a_handle_are_found_by_name(context):
    with MemHandle.create_buffer(context, 64) as handle:
        owner = Owner()
        owner.raw = handle.mem
        reasons = cml.report().records[0].why
        del owner.raw
    assert any("a PyOpenCL object: attribute 'raw'" in reason for reason in reasons), reasons


def test_the_search_for_reasons_is_bounded(context):
    with MemHandle.create_buffer(context, 64) as handle:
        KEPT.extend([[handle] for _ in range(500)])
        began = time.monotonic()
        reasons = cml.report().records[0].why
        assert time.monotonic() - began < 10
        assert len(reasons) <= 4
        KEPT.clear()


def test_a_report_is_plain_data_for_json(context):
    with MemHandle.create_buffer(context, 64, label="field"):
        data = json.loads(json.dumps(cml.report().as_dict()))
    assert data["statistics"]["current_count"] == 1
    assert data["records"][0]["label"] == "field"
    assert data["records"][0]["flags"] == str(MemFlags.READ_WRITE)


def test_statistics_tell_what_queued_commands_still_hold(context, queue, gate, wait):
    with MemHandle.create_buffer(context, 4096) as handle:
        cml.enqueue_fill(queue, handle, b"\0", wait_for=gate)
    assert cml.statistics().pending_bytes == 4096
    gate.set_status(cl.command_execution_status.COMPLETE)
    wait(lambda: cml.statistics().pending_bytes == 0, "the command is complete")


def test_a_part_in_a_queue_whose_whole_was_released_counts_once(context, queue, gate, wait):
    with cml.track("record") as scope:
        before = cml.statistics().pending_bytes
        whole = MemHandle.create_buffer(context, 4096, label="whole")
        part = whole.sub_buffer(0, 1024)
        done = cml.enqueue_fill(queue, part, np.int32(1), wait_for=gate)
        whole.release()
        part.release()
        pending = cml.statistics().pending_bytes - before
        assert pending in (4096, 1024)  # not every driver names a root that nobody else holds
        gate.set_status(cl.command_execution_status.COMPLETE)
        done.wait()
        del done  # on the Intel CPU runtime an event keeps what its command used
    assert scope.leaks == ()


# -- how deep the call stack is kept -----------------------------------------------------------------------------------


def test_each_line_has_its_own_site_also_in_code_at_the_address_of_another(monkeypatch):
    monkeypatch.setattr(_site, "_MOST_LINES", 100)
    for number in range(300):
        names = {"caller_site": _site.caller_site}
        exec(compile("def ours(): return caller_site()", f"{_site.PACKAGE}ours.py", "exec"), names)
        exec(
            compile("def one():\n  return [ours(),\n    ours()]\ndef two(): return [ours()]", f"{number}.py", "exec"),
            names,
        )
        for _ in range(2):
            assert names["one"]() + names["two"]() == [f"{number}.py:2", f"{number}.py:3", f"{number}.py:4"]
    assert len(_site._lines) <= 100


def test_one_line_of_the_call_stack_is_kept_unless_more_are_asked_for(context):
    with MemHandle.create_buffer(context, 64) as handle:
        assert cml.live()[0].stack == (handle.site,)
    before = cml.set_site_depth(3)
    try:

        def make():
            return MemHandle.create_buffer(context, 64)

        with make() as handle:
            expected = line() - 1
            record = cml.live()[0]
            assert record.site == handle.site
            assert record.stack[0] == handle.site
            assert record.stack[1] == f"{__file__}:{expected}"
            assert len(record.stack) == 3
            assert f"called from {__file__}:{expected}" in str(record)
    finally:
        assert cml.set_site_depth(before) == 3
    with pytest.raises(ValueError, match="at least one line"):
        cml.set_site_depth(0)


def test_the_environment_sets_the_depth(run):
    code = """
        def make():
            return MemHandle.create_buffer(context, 64)
        with make():
            print(len(cml.live()[0].stack))
    """
    assert run(code, CLMEMLIFE_SITE_DEPTH="2") == "2\n"
    assert run(code, CLMEMLIFE_SITE_DEPTH="many") == "1\n"


# -- track -------------------------------------------------------------------------------------------------------------


def test_a_scope_without_leaks_is_silent(context, queue):
    with cml.track() as scope, MemHandle.create_buffer(context, 64) as handle, Mapping(queue, handle, MapFlags.READ):
        pass
    assert scope.leaks == ()


@pytest.mark.needs_gil("gc.get_referrers does not find every dictionary of a module")
def test_a_handle_that_is_not_released_raises_with_its_line(context):
    with pytest.raises(LeakError) as caught, cml.track():
        KEPT.append(MemHandle.create_buffer(context, 64, label="field"))
        made_at = f"{__file__}:{line() - 1}"
    (record,) = caught.value.records
    assert (record.label, record.site, record.state) == ("field", made_at, "alive")
    assert made_at in str(caught.value)
    assert any("global 'KEPT'" in reason for reason in record.why)


def test_a_map_that_is_not_ended_is_found_on_an_older_handle_too(context, queue):
    with MemHandle.create_buffer(context, 64, label="field") as handle:
        with cml.track("record") as scope:
            KEPT.append(Mapping(queue, handle, MapFlags.READ))
        (record,) = scope.leaks
        assert (record.kind, record.label, record.state) == ("map", "field", "mapped")
        KEPT.pop().unmap()


@pytest.mark.filterwarnings("ignore::clmemlife.LeakWarning")
def test_what_only_garbage_collection_ended_is_a_leak(context, queue):
    with cml.track("record") as scope:
        cycle = [MemHandle.create_buffer(context, 64, label="dropped")]
        cycle.append(cycle)
        del cycle
        with MemHandle.create_buffer(context, 64, label="mapped") as handle:
            Mapping(queue, handle, MapFlags.READ)
    assert sorted((one.label, one.kind, one.state) for one in scope.leaks) == [
        ("dropped", "buffer", "collected"), ("mapped", "map", "collected"),
    ]  # fmt: skip


def test_memory_that_somebody_holds_after_the_release_is_a_leak(context):
    with cml.track("record") as scope, MemHandle.create_buffer(context, 64, label="field") as handle:
        owner = Owner()
        owner.raw = handle.mem
    (record,) = scope.leaks
    assert (record.label, record.state) == ("field", "released")
    assert any("attribute 'raw'" in reason for reason in record.why), record.why


def test_a_sub_buffer_that_somebody_holds_is_reported_and_not_its_root(context):
    with (
        cml.track("record") as scope,
        MemHandle.create_buffer(context, 64, label="root") as root,
        root.sub_buffer(0, 64, label="part") as part,
    ):
        raw = part.mem
    assert [(one.label, one.state) for one in scope.leaks] == [("part", "released")]
    raw.release()


def test_what_was_given_away_or_shared_is_no_leak(context):
    foreign = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    with cml.track() as scope:
        raw = MemHandle.create_buffer(context, 64).detach()
        MemHandle.retain(foreign).release()
    assert scope.leaks == ()
    raw.release()


def test_a_disabled_release_is_found(context, monkeypatch):
    unreleased = []
    with monkeypatch.context() as patch, cml.track("record") as scope:
        patch.setattr("clmemlife._opencl.release_mem_object", unreleased.append)
        MemHandle.create_buffer(context, 64, label="field").release()
    assert [(one.label, one.state) for one in scope.leaks] == [("field", "released")]
    (int_ptr,) = unreleased
    cl.MemoryObject.from_int_ptr(int_ptr, False).release()


def test_an_older_handle_is_not_the_scopes(context):
    with MemHandle.create_buffer(context, 64), cml.track() as scope:
        assert scope.total_count == 0
    assert scope.leaks == ()


def test_a_gated_command_neither_hangs_the_scope_nor_is_a_leak(context, queue, gate):
    began = time.monotonic()
    with cml.track(timeout_seconds=60) as scope, MemHandle.create_buffer(context, 64) as handle:
        cml.enqueue_fill(queue, handle, b"\0", wait_for=gate)
    assert scope.leaks == ()
    assert time.monotonic() - began < 30
    with cml.track("record", timeout_seconds=60) as scope:
        KEPT.append(MemHandle.create_buffer(context, 64))
    assert len(scope.leaks) == 1
    assert time.monotonic() - began < 30


def test_a_late_release_by_a_callback_is_waited_for(context, queue, gate):
    other = MemHandle.create_buffer(context, 64)
    opened = threading.Timer(0.2, gate.set_status, [cl.command_execution_status.COMPLETE])
    with cml.track(timeout_seconds=10) as scope, MemHandle.create_buffer(context, 64, label="first") as first:
        raw = first.mem
        threading.Timer(0.2, raw.release).start()
        opened.start()
        cml.enqueue_fill(queue, other, b"\0", wait_for=gate)
    assert scope.leaks == ()
    opened.join()
    other.release()


def test_an_exception_of_the_body_is_never_masked(context):
    with pytest.raises(KeyError), cml.track() as scope:
        KEPT.append(MemHandle.create_buffer(context, 64))
        raise KeyError("mine")
    assert len(scope.leaks) == 1


def test_mode_warn_warns_at_the_line_that_made_it(context):
    with pytest.warns(LeakWarning, match="'field'") as caught, cml.track("warn"):
        KEPT.append(MemHandle.create_buffer(context, 64, label="field"))
    assert [f"{one.filename}:{one.lineno}" for one in caught] == [KEPT[0].site]


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be"):
        cml.track("loud")


def test_nested_scopes_have_their_own_peaks_and_leaks(context):
    with MemHandle.create_buffer(context, 100), cml.track("record") as outer:
        with MemHandle.create_buffer(context, 8000):
            pass
        with cml.track("record") as inner, MemHandle.create_buffer(context, 4000):
            pass
        assert inner.peak_bytes == 4100
        with cml.track("record") as ended:
            late = MemHandle.create_buffer(context, 64, label="late")
        late.release()
    assert [one.label for one in ended.leaks] == ["late"]
    assert (outer.peak_bytes, outer.begin_bytes, outer.leaks) == (8100, 100, ())
    assert (outer.total_bytes, outer.total_count, outer.peak_count) == (12064, 3, 2)
    assert inner.peak_bytes == 4100


def test_a_scope_does_not_lower_the_peak_of_the_process(context):
    with MemHandle.create_buffer(context, 1 << 20):
        pass
    before = cml.statistics().peak_bytes
    with cml.track("record") as scope:
        assert cml.statistics().peak_bytes == before
    assert cml.statistics().peak_bytes == before
    assert scope.peak_bytes < before


def test_scopes_of_two_threads_may_end_in_any_order(context):
    first, second = cml.track("record"), cml.track("record")
    first.start()
    second.start()
    with MemHandle.create_buffer(context, 512):
        first.stop()
        assert first.peak_bytes >= 512
    assert len(first.leaks) == 1
    assert second.stop() == ()
    assert second.stop() == ()


def test_a_scope_forgets_what_the_driver_has_destroyed(context):
    with cml.track() as scope:
        for _ in range(2000):
            with MemHandle.create_buffer(context, 64):
                pass
        cml.statistics()
        assert len(scope._watched) < 1500
    assert scope.leaks == ()


def test_a_scope_that_ended_listens_no_more(context):
    from clmemlife import _ledger

    with cml.track("record") as scope:
        pass
    assert scope not in _ledger.observers
    with MemHandle.create_buffer(context, 64):
        assert scope.total_count == 0


def test_host_memory_of_a_scope_is_given_back(context):
    array = cml.aligned_empty(4096, np.uint8, context)
    references = sys.getrefcount(array)
    flags = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
    with cml.track() as scope, MemHandle.create_buffer(context, flags=flags, hostbuf=array):
        pass
    assert scope.leaks == ()
    gc.collect()
    assert sys.getrefcount(array) <= references + 1


def test_records_are_frozen(context):
    with MemHandle.create_buffer(context, 64):
        record = cml.live()[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.label = "other"
