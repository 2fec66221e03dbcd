"""The timeline tells who did what when, in data, as a trace, as a graph, as a picture, and holds nothing for it."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clmemlife as cml
from clmemlife import In, InOut, MapFlags, Mapping, MemHandle, Migration, _journal, _ledger
from clmemlife._journal import Access, Command, Flushed, HostWait, Released
from clmemlife.diagnostics.timeline import _ended
from clmemlife.diagnostics.timeline._entries import Entry, Queue
from clmemlife.diagnostics.timeline._graph import dot, quoted
from clmemlife.diagnostics.timeline._recording import Recording
from clmemlife.diagnostics.timeline._rows import MOST_LANES, OBJECTS, Bar, lanes, rows
from clmemlife.diagnostics.timeline._spans import DRIFT, Clock, Snapshot, TimelineCommand, TimelineEvent, TimelineQueue
from clmemlife.diagnostics.timeline._trace import trace

SIZE = 4096
ONE = np.int32(1)
DOCS = Path(__file__).resolve().parents[1] / "docs"
QUEUE = TimelineQueue(1, "a device", profiled=True)
FREE = TimelineQueue(2, "a device", out_of_order=True)


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, SIZE, label="field") as handle:
        yield handle


@pytest.fixture
def profiled(context: cl.Context, devices: list[cl.Device]) -> Iterator[cl.CommandQueue]:
    made = cl.CommandQueue(context, devices[0], cl.command_queue_properties.PROFILING_ENABLE)
    yield made
    made.finish()


@pytest.fixture
def profiled2(context: cl.Context, devices: list[cl.Device]) -> Iterator[cl.CommandQueue]:
    made = cl.CommandQueue(context, devices[-1], cl.command_queue_properties.PROFILING_ENABLE)
    yield made
    made.finish()


# -- what the formats ask for ------------------------------------------------------------------------------------------


def checked(text: str) -> list[dict[str, Any]]:
    """Check a trace by the rules of its format; return its events."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    events = json.loads(text, parse_constant=refuse)["traceEvents"]
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    names = {(one["name"], one["pid"], one["tid"]): one["args"] for one in events if one["ph"] == "M"}
    ends: dict[str, dict[int, dict]] = {"s": {}, "f": {}}
    for one in events:
        assert one["ph"] in "MXCsf"
        if one["ph"] == "M":
            continue
        assert one["ts"] >= 0
        if one["ph"] == "X":
            assert one["dur"] > 0
            assert one["name"]
            assert names["process_name", one["pid"], 0]["name"]
            assert names["thread_name", one["pid"], one["tid"]]["name"]
            rows.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
        elif one["ph"] == "C":
            assert one["args"]["bytes"] >= 0
        else:
            assert one["id"] not in ends[one["ph"]]
            ends[one["ph"]][one["id"]] = one
    for slices in rows.values():
        slices.sort()
        for (_, end), (begin, _) in itertools.pairwise(slices):
            assert end <= begin + 1e-6  # one after the other
    assert ends["s"].keys() == ends["f"].keys()
    for number, start in ends["s"].items():
        finish = ends["f"][number]
        assert finish["bp"] == "e"
        assert start["ts"] <= finish["ts"]
        for one in (start, finish):
            inside = [begin <= one["ts"] < end for begin, end in rows[one["pid"], one["tid"]]]
            assert sum(inside) == 1
    return events


TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([A-Za-z_][A-Za-z_0-9]*|-?[0-9.]+)|(->)|([{}\[\];,=]))')


def parsed(text: str) -> tuple[dict[str, dict[str, str]], set[tuple[str, str]]]:
    """Parse what is used here of the DOT language; return nodes with their attributes, and edges."""
    tokens: list[str] = []
    place = 0
    while text[place:].strip():
        match = TOKEN.match(text, place)
        assert match, text[place : place + 40]
        tokens.append(next(group for group in match.groups() if group is not None))
        place = match.end()
    nodes: dict[str, dict[str, str]] = {}
    edges: set[tuple[str, str]] = set()

    def attributes() -> dict[str, str]:
        found = {}
        if tokens[0] == "[":
            while tokens.pop(0) != "]":
                name, equals, value = (tokens.pop(0) for _ in range(3))
                assert equals == "="
                found[name] = value
        return found

    def block() -> None:
        assert tokens.pop(0) == "{"
        while tokens[0] != "}":
            first = tokens.pop(0)
            if first == "subgraph":
                tokens.pop(0)
                block()
                continue
            if tokens[0] == "=":
                del tokens[:2]
            elif tokens[0] == "->":
                tokens.pop(0)
                edges.add((first, tokens.pop(0)))
                attributes()
            else:
                nodes[first] = attributes()
            assert tokens.pop(0) == ";"
        tokens.pop(0)

    assert [tokens.pop(0) for _ in range(2)] == ["digraph", "timeline"]
    block()
    assert tokens == []
    defaults = {"node", "edge", "graph"}
    assert {end for edge in edges for end in edge} <= set(nodes) - defaults
    return {name: found for name, found in nodes.items() if name not in defaults}, edges


def reachable(root: object) -> list[object]:
    """Return what of OpenCL an object keeps alive."""
    seen: set[int] = set()
    found, stack = [], [root]
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, (type, types.ModuleType, types.FunctionType, threading.Thread)):
            continue
        seen.add(id(one))
        if isinstance(one, (cl.Event, cl.CommandQueue, cl.MemoryObjectHolder, cl.Context, MemHandle, np.ndarray)):
            found.append(one)
        stack += gc.get_referents(one)
    return found


def saved(recorded: cml.record_timeline, tmp_path: Any) -> list[dict[str, Any]]:
    path = tmp_path / "trace.json"
    recorded.save(path)
    parsed(recorded.to_dot())
    return checked(path.read_text(encoding="utf-8"))


def edges(recorded: cml.record_timeline) -> set[tuple[str, str]]:
    names = {one.number: one.title for one in recorded.commands}
    names |= {one.number: one.kind for one in recorded.events if one.number is not None}
    return {(names[number], one.title) for one in recorded.commands for number in one.waits}


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_a_program_is_told_in_the_order_of_its_calls(field, profiled, profiled2, kernel, tmp_path):
    with cml.record_timeline() as recorded:
        filled = cml.enqueue_fill(profiled, field, ONE)
        with Mapping(profiled, field, MapFlags.READ, wait_for=filled) as mapping:
            assert mapping.array[0] == 1
        ran = cml.enqueue_kernel(profiled, kernel("inc"), (8,), None, InOut(field), wait_for=mapping.unmap_event)
        moved = Migration(profiled2, field, wait_for=ran)
        cml.enqueue_copy(profiled2, np.empty(SIZE, np.uint8), field, wait_for=moved)
    titles = ["fill field", "map field", "unmap field", "inc", "migrate field", "copy from field"]
    assert [one.title for one in recorded.commands] == titles
    assert edges(recorded) == set(itertools.pairwise(titles))
    for one in recorded.commands:
        assert (one.status, one.unseen, one.thread) == (0, 0, "MainThread")
        assert 0 <= one.called <= one.returned
        assert one.site.startswith(__file__)
        if one.kind == "migrate" and one.started is None:
            continue  # NVIDIA's driver gives the times of another command
        assert one.queued <= one.submitted <= one.started <= one.ended
        assert one.called - one.queue.clock_error <= one.queued <= one.returned + one.queue.clock_error
        assert one.ended <= one.seen + one.queue.clock_error
    assert [one.blocking for one in recorded.commands] == [False] * 5 + [True]
    (mapped,) = [one for one in recorded.events if one.kind == "map"]
    assert (mapped.name, mapped.nbytes, mapped.of) == ("field", SIZE, (2, 3))
    assert recorded.commands[1].ended <= mapped.begin <= mapped.end == recorded.commands[2].called
    trace_events = saved(recorded, tmp_path)
    assert sum(one["ph"] == "s" for one in trace_events) >= 4  # all but one stay on one device
    timeless = [one["name"] for one in trace_events if "not profiled" in one.get("cat", "")]
    assert set(timeless) <= {one.title for one in recorded.commands if one.started is None}


def test_without_profiling_there_are_the_call_and_the_end_as_seen(field, queue, tmp_path):
    with cml.record_timeline() as recorded:
        cml.enqueue_fill(queue, field, ONE).wait()
    (command,) = recorded.commands
    assert (command.queued, command.submitted, command.started, command.ended) == (None,) * 4
    assert command.called <= command.returned <= command.seen
    assert (command.queue.profiled, command.queue.clock_error) == (False, None)
    (wait,) = [one for one in recorded.events if one.kind == "wait"]
    assert command.seen <= wait.end
    assert wait.of == (command.number,)
    (drawn,) = [one for one in saved(recorded, tmp_path) if one["name"] == "fill field"]
    assert "not profiled" in drawn["cat"]
    assert drawn["args"]["times"] == "from the call to the end as seen"
    assert drawn["ts"] * 1000 == pytest.approx(command.called)


def test_life_spans_and_live_bytes(context, queue, field):
    with cml.record_timeline() as recorded:
        short = MemHandle.create_buffer(context, 1000, label="short")
        with short, MemHandle.retain(short), MemHandle.create_buffer(context, 2 * SIZE) as whole:
            whole.sub_buffer(0, 1024, label="part").release()
    lives = {one.name: one for one in recorded.events if one.kind == "object"}
    assert lives.keys() == {"field", "short", "unlabelled"}  # a part is a part of its whole
    assert (lives["field"].begin, lives["field"].end) == (None, None)
    assert lives["short"].begin <= lives["unlabelled"].begin <= lives["unlabelled"].end <= lives["short"].end
    assert lives["short"].nbytes == 1000
    before = recorded.live_bytes[0][1]
    assert [nbytes - before for _, nbytes in recorded.live_bytes] == [0, 1000, 1000 + 2 * SIZE, 1000, 0]


def test_user_events_gate_what_waits_for_them(field, queue, gate, tmp_path):
    with cml.record_timeline() as recorded:
        gated = cml.enqueue_fill(queue, field, ONE, wait_for=gate)
        assert recorded.commands[0].status is None
        (unset,) = [one for one in recorded.events if one.kind == "user_event"]
        assert unset.end is None
        gate.set_status(0)
        gated.wait()
    (event,) = [one for one in recorded.events if one.kind == "user_event"]
    (command,) = recorded.commands
    assert command.waits == (event.number,)
    assert command.called <= event.begin <= event.end <= command.seen
    assert (event.status, event.thread) == (0, "MainThread")
    names = [one["name"] for one in saved(recorded, tmp_path) if one["ph"] in "sX"]
    assert event.name in names
    assert "wait_for" in names
    nodes, arrows = parsed(recorded.to_dot())
    assert (f"n{event.number}", f"n{command.number}") in arrows
    assert nodes[f"n{event.number}"]["shape"] == "diamond"


def test_one_that_was_set_before_is_known_as_set(context, field, queue):
    done = cl.UserEvent(context)
    done.set_status(0)
    with cml.record_timeline() as recorded:
        cml.enqueue_fill(queue, field, ONE, wait_for=done).wait()
    (event,) = [one for one in recorded.events if one.kind == "user_event"]
    assert event.end is not None
    assert event.status == 0


def test_a_failing_command_has_its_status_and_no_times(field, profiled, gate, tmp_path):
    with cml.record_timeline() as recorded:
        first = cml.enqueue_fill(profiled, field, ONE, wait_for=gate)
        second = cml.enqueue_fill(profiled, field, ONE, wait_for=first)
        mapping = Mapping(profiled, field, MapFlags.READ, wait_for=second)
        gate.set_status(-7)
        for event in (first, second, mapping.map_event):
            with suppress(cl.Error):
                event.wait()
        ran = first.command_execution_status == 0
        mapping.unmap().wait()
    if ran and "Intel" in profiled.device.platform.name:
        pytest.xfail("the Intel CPU runtime runs a command whose wait-list event failed as if it had completed")
    failed = recorded.commands[:3]
    assert all(one.failed and one.status < 0 and one.started is None for one in failed)
    assert [one.status for one in recorded.events if one.kind == "user_event"] == [-7]
    assert not [one for one in recorded.events if one.kind == "map"]
    assert sum("(failed)" in one["name"] for one in saved(recorded, tmp_path)) == 3
    assert "failed: " in recorded.to_dot()


def test_what_the_driver_refuses_is_not_there(field, queue, kernel):
    with cml.record_timeline() as recorded:
        with pytest.raises(cl.Error):
            cml.enqueue_kernel(queue, kernel("inc"), (8,), (3,), InOut(field))
        assert recorded.commands == ()


@pytest.mark.parametrize("name", ["marker", "barrier"])
def test_markers_and_barriers(field, out_of_order_queue, name, tmp_path):
    with cml.record_timeline() as recorded:
        filled = cml.enqueue_fill(out_of_order_queue, field, ONE)
        done = getattr(cl, f"enqueue_{name}")(out_of_order_queue, [filled])
        cml.enqueue_fill(out_of_order_queue, field, ONE, wait_for=done)
        out_of_order_queue.finish()
    assert edges(recorded) == {("fill field", name), (name, "fill field")}
    assert {one.queue.out_of_order for one in recorded.commands} == {True}
    assert [one.name for one in recorded.events if one.kind == "wait"] == ["finish queue 1"]
    saved(recorded, tmp_path)


def test_an_operation_with_nothing_to_do_is_its_marker(field, queue):
    with cml.record_timeline() as recorded:
        cml.enqueue_fill(queue, field, ONE, 0).wait()
    assert [(one.kind, one.title) for one in recorded.commands] == [("marker", "enqueue_fill")]


def test_raw_commands_are_seen_with_their_edges(context, field, profiled, tmp_path):
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, SIZE)
    host = np.zeros(SIZE, np.uint8)
    with cml.record_timeline() as recorded:
        event = cml.enqueue_fill(profiled, field, ONE)
        event = cl.enqueue_copy(profiled, raw, field.mem, wait_for=[event])
        event = cl.enqueue_copy(profiled, host, raw, wait_for=[event], is_blocking=False)
        array, event = cl.enqueue_map_buffer(
            profiled, raw, cl.map_flags.READ, 0, SIZE, np.uint8, wait_for=[event], is_blocking=False
        )
        cml.enqueue_fill(profiled, field, ONE, wait_for=event).wait()
        array.base.release(profiled).wait()
    foreign = [one for one in recorded.commands if one.kind != "enqueue_fill"]
    assert len(foreign) >= 3
    assert all(one.status == 0 and one.started is not None and one.unseen == 0 for one in foreign)
    assert recorded.commands[-1].waits or recorded.commands[-2].waits
    for one, other in zip(recorded.commands[:4], recorded.commands[1:5], strict=True):
        assert other.waits == (one.number,)
    saved(recorded, tmp_path)


def test_an_event_from_before_is_counted_as_not_seen(field, queue):
    before = cl.enqueue_marker(queue)
    with cml.record_timeline() as recorded:
        cml.enqueue_fill(queue, field, ONE, wait_for=before).wait()
    assert (recorded.commands[0].waits, recorded.commands[0].unseen) == ((), 1)
    assert "also waits for 1 not seen" in recorded.to_dot()


def test_staged_migrations_and_streams(context, queue, profiled, profiled2, kernel, tmp_path):
    inc = kernel("inc")

    def launch(slot: cml.Slot, wait_for: Any) -> cl.Event:
        return cml.enqueue_kernel(slot.queue, inc, (256,), None, InOut(slot.input), wait_for=wait_for)

    with cml.record_timeline() as recorded:
        with MemHandle.create_buffer(context, 1 << 20, label="large") as large:
            filled = cml.enqueue_fill(profiled, large, ONE)
            Migration(profiled2, large, via="staged", source_queue=profiled, wait_for=filled).wait()
        chunks = [np.arange(256, dtype=np.int32)] * 5
        for result in cml.stream_chunks(chunks, launch, queues=(profiled, profiled2, queue), in_place=True):
            assert result[5] == 6
    titles = [one.title for one in recorded.commands]
    if len({profiled.device, profiled2.device}) > 1:
        assert "copy large to staging" in titles
    assert titles.count("inc") == 5
    assert titles.count("copy staging to stream input") == 5
    assert titles.count("copy stream input to staging") == 5
    assert all(one.status == 0 for one in recorded.commands)
    saved(recorded, tmp_path)


def test_threads_have_rows_of_their_own(context, devices, kernel, tmp_path):
    def work() -> None:
        mine = cl.CommandQueue(context, devices[0], cl.command_queue_properties.PROFILING_ENABLE)
        with MemHandle.create_buffer(context, SIZE) as own:
            done = None
            for _ in range(50):
                done = cml.enqueue_fill(mine, own, ONE, wait_for=done)
            done.wait()

    with cml.record_timeline() as recorded:
        threads = [threading.Thread(target=work, name=f"worker {number}") for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(recorded.commands) == 200
    assert {one.thread for one in recorded.commands} == {f"worker {number}" for number in range(4)}
    assert len({one.queue.number for one in recorded.commands}) == 4
    names = {one["args"]["name"] for one in saved(recorded, tmp_path) if one["name"] == "thread_name"}
    assert {f"thread worker {number}" for number in range(4)} <= names


def test_a_queue_that_is_gone_is_not_taken_for_the_next_one_at_its_address(context, devices, field):
    with cml.record_timeline() as recorded:
        for _ in range(20):
            queue = cl.CommandQueue(context, devices[0])
            cml.enqueue_fill(queue, field, ONE).wait()
            del queue
        assert len({one.queue.number for one in recorded.commands}) == 20
        again = cl.CommandQueue(context, devices[0])
        first, second = (cl.CommandQueue.from_int_ptr(again.int_ptr, True) for _ in range(2))
        for same in (again, first, second):
            cml.enqueue_fill(same, field, ONE).wait()
    assert len({one.queue.number for one in recorded.commands}) == 21


def test_blocks_nest_and_each_has_its_own(field, queue):
    with cml.record_timeline() as outer:
        event = cml.enqueue_fill(queue, field, ONE)
        with cml.record_timeline() as inner:
            cml.enqueue_fill(queue, field, ONE, wait_for=event).wait()
        cml.enqueue_fill(queue, field, ONE).wait()
    assert [len(one.commands) for one in (outer, inner)] == [3, 1]
    assert inner.commands[0].unseen == 1
    assert outer.commands[1].waits == (1,)


def test_a_block_can_be_used_again_and_asked_before(field, queue):
    recorded = cml.record_timeline()
    assert (recorded.commands, recorded.events, recorded.live_bytes, recorded.dropped) == ((), (), (), 0)
    checked(json.dumps(trace(Snapshot())))
    assert parsed(recorded.to_dot()) == ({}, set())
    for _ in range(2):
        with recorded:
            cml.enqueue_fill(queue, field, ONE).wait()
        assert [one.number for one in recorded.commands] == [1]
    recorded.stop()


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        cml.record_timeline(limit=0)


# -- what it costs and what it holds -----------------------------------------------------------------------------------


def test_nobody_listens_before_and_after():
    def state() -> tuple[Any, ...]:
        return _journal.listeners, _ledger.observers, cl.Event.wait, cl.enqueue_copy

    before = state()
    with cml.record_timeline() as recorded:
        assert len(_journal.listeners) == len(before[0]) + 1
        assert len(_ledger.observers) == len(before[1]) + 1
        recorded.stop()
        recorded.stop()
        assert state() == before
    with pytest.raises(ZeroDivisionError), cml.record_timeline():
        raise ZeroDivisionError
    assert state() == before


def test_nothing_of_opencl_is_kept(field, queue, profiled, kernel, gate):
    with cml.record_timeline() as recorded:
        done = cml.enqueue_fill(profiled, field, ONE)
        done = cml.enqueue_copy(profiled, np.empty(SIZE, np.uint8), field, is_blocking=False, wait_for=done)
        with Mapping(queue, field, MapFlags.READ, wait_for=done) as mapping:
            mapping.wait()
        done = cml.enqueue_kernel(queue, kernel("inc"), (8,), None, InOut(field), wait_for=mapping.unmap_event)
        gated = cml.enqueue_fill(profiled, field, ONE, wait_for=[done, gate])
        assert {type(one) for one in reachable(recorded)} <= {cl.Event, cl.UserEvent}
    assert reachable(recorded) == []
    assert not _ended._held
    gate.set_status(0)
    gated.wait()
    assert recorded.commands[-1].status is None  # what comes after the block is not known


def held(recorded: cml.record_timeline) -> int:
    return len(_ended._held) + len(reachable(recorded))


@pytest.mark.alone("it holds the latest events as well")
def test_events_are_let_go_while_it_runs_and_known_for_as_long_as_somebody_has_them(field, queue, wait):
    kept = []
    with cml.record_timeline() as recorded, cml.record_timeline():
        for number in range(1000):
            event = cml.enqueue_fill(queue, field, ONE)
            if not number % 100:
                kept.append(event)
            if not number % 50:
                event.wait()
        event.wait()
        assert len(_ended._held) < 300
        cml.enqueue_fill(queue, field, ONE, wait_for=kept).wait()
        del event

        def held_after_a_call() -> int:
            cml.enqueue_fill(queue, field, ONE).wait()
            return held(recorded)

        wait(lambda: held_after_a_call() < len(kept) + 10, "what nobody has is let go")
        kept.clear()
        wait(lambda: held_after_a_call() < 10, "all is let go")
    assert [len(one.waits) for one in recorded.commands if one.waits] == [10]


def test_it_and_the_checker_do_not_keep_events_for_each_other(field, queue):
    with cml.record_timeline() as recorded, cml.check_hazards():
        for _ in range(2000):
            cml.enqueue_fill(queue, field, ONE).wait()
        assert held(recorded) < 300


def test_there_is_a_bound_to_what_is_held_for_others(field, queue, monkeypatch):
    monkeypatch.setattr(_ended, "MOST", 20)
    with cml.record_timeline() as recorded:
        events = [cml.enqueue_fill(queue, field, ONE) for _ in range(100)]
        queue.finish()
        assert len(_ended._held) <= 20
        cml.enqueue_fill(queue, field, ONE, wait_for=events).wait()
    last = recorded.commands[-1]
    assert 1 <= len(last.waits) <= 20
    assert len(last.waits) + last.unseen == 100


@pytest.mark.alone("its hooks have seen that")
def test_a_user_event_that_was_set_unseen_is_seen_to_be_set(context, field, queue):
    gate = cl.UserEvent(context)
    set_status = cl.UserEvent.set_status
    with cml.record_timeline() as recorded:
        gated = cml.enqueue_fill(queue, field, ONE, wait_for=gate)
        set_status(gate, 0)
        gated.wait()
    (event,) = [one for one in recorded.events if one.kind == "user_event"]
    assert (event.status, event.thread) == (0, "")
    assert event.end is not None


def test_a_long_run_stays_bounded(field, queue, tmp_path):
    with cml.record_timeline(limit=50) as recorded:
        done = None
        for _ in range(500):
            done = cml.enqueue_fill(queue, field, ONE, wait_for=done)
            done.wait()
    assert [one.number for one in recorded.commands] == list(range(451, 501))
    waits = [one for one in recorded.events if one.kind == "wait"]
    assert len(waits) == 50
    assert recorded.dropped == 2 * 450
    assert [one.name for one in recorded.events if one.kind == "object"] == ["field"]  # alive: it stays
    saved(recorded, tmp_path)


def test_gated_commands_that_are_dropped_are_let_go_without_a_wait(run):
    run(
        """
        gate = cl.UserEvent(context)
        begin = time.monotonic()
        with MemHandle.create_buffer(context, 4096) as field, cml.record_timeline(limit=3) as recorded:
            raw, host = field.mem, np.zeros(4096, np.uint8)
            events = [cl.enqueue_copy(queue, host, raw, is_blocking=False, wait_for=[gate])]
            for _ in range(200):
                cml.enqueue_copy(queue, np.empty(4096, np.uint8), field, is_blocking=False, wait_for=gate)
            assert len(recorded.commands) == 3
            recorded.save(os.devnull), recorded.to_dot()
        gc.collect()
        assert all(one.status is None for one in recorded.commands)
        assert time.monotonic() - begin < 30
        gate.set_status(0)
        queue.finish()
        """
    )


def test_a_block_that_is_open_at_exit_harms_nobody(run):
    run(
        """
        recorded = cml.record_timeline()
        recorded.start()
        field = MemHandle.create_buffer(context, 4096, label="field")
        gate = cl.UserEvent(context)
        cml.enqueue_copy(queue, np.empty(4096, np.uint8), field, is_blocking=False, wait_for=gate)
        gate.set_status(0)
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_leaves_the_block_without_a_word_to_the_driver(run):
    run(
        """
        gate = cl.UserEvent(context)
        with MemHandle.create_buffer(context, 4096, label="field") as field, cml.record_timeline() as recorded:
            event = cml.enqueue_fill(queue, field, np.int32(1), wait_for=gate)
            child = os.fork()
            if not child:
                recorded.stop()
                del event
                gc.collect()
                os._exit(0 if len(recorded.commands) == 1 else 1)
            assert os.waitpid(child, 0)[1] == 0
            gate.set_status(0)
            event.wait()
        assert recorded.commands[0].status == 0
        """
    )


def test_two_devices_are_two_groups_of_rows(run, tmp_path):
    if cl.get_platforms()[0].name != "Portable Computing Language":
        pytest.skip("only PoCL has as many devices as one asks for")
    path = tmp_path / "trace.json"
    run(
        f"""
        profiled = cl.command_queue_properties.PROFILING_ENABLE
        queues = [cl.CommandQueue(context, one, profiled) for one in context.devices]
        assert len(queues) == 2
        with MemHandle.create_buffer(context, 4096, label="field") as field, cml.record_timeline() as recorded:
            done = cml.enqueue_fill(queues[0], field, np.int32(1))
            moved = Migration(queues[1], field, wait_for=done)
            cml.enqueue_kernel(queues[1], cl.Kernel(program, "inc"), (8,), None, InOut(field), wait_for=moved).wait()
        assert [one.queue.device_number for one in recorded.commands] == [1, 2, 2]
        ends = [(one.started, one.ended) for one in recorded.commands]
        slack = sum(one.queue.clock_error for one in recorded.commands)
        assert ends[0][1] <= ends[1][0] + slack and ends[1][1] <= ends[2][0] + slack
        recorded.save({str(path)!r})
        """,
        POCL_DEVICES="pthread pthread",
    )
    groups = [one["args"]["name"] for one in checked(path.read_text()) if one["name"] == "process_name"]
    assert [one.partition(":")[0] for one in groups] == ["host", "device 1", "device 2", "memory objects"]


def run_file(path: Path, *options: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Non-empty compiler output", str(path), *options],
        capture_output=True, text=True, timeout=100, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_of_the_documentation_makes_its_picture(tmp_path):
    pytest.importorskip("matplotlib")
    page = DOCS / "how-to" / "record-a-timeline.md"
    (code,) = re.findall(r"^```python no-run file=picture.py\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "picture.py"
    path.write_text(code, encoding="utf-8")
    run_file(path, folder=tmp_path)
    made, printed = (folder / "timeline.svg" for folder in (tmp_path, page.parent))
    for text in ("even", "odd", "live MiB", "mapped for the host"):
        assert text in made.read_text()
        assert text in printed.read_text()
    assert "settle" in printed.read_text()  # on a GPU that is over before its bar has room for a name
    assert printed.stat().st_size < 200_000


def test_the_two_device_pipeline_saves_a_trace(tmp_path):
    if "Intel" in cl.get_platforms()[0].name:
        pytest.skip("on the Intel CPU runtime the events that this example keeps keep its memory, which it finds")
    path = DOCS.parent / "examples" / "two_device_pipeline.py"
    run_file(path, "--rounds", "1", "--timeline", "timeline.json", folder=tmp_path)
    assert sum(one["ph"] == "s" for one in checked((tmp_path / "timeline.json").read_text(encoding="utf-8"))) > 0


# -- the parts alone ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(0, 10**5)), min_size=1, max_size=30),
    st.floats(-DRIFT / 2, DRIFT / 2),
    st.integers(-(10**12), 10**12),
    st.lists(st.integers(0, 40 * 10**6), max_size=20),
)
def test_the_clock_of_a_device_is_right_within_its_error_and_never_turns_back(calls, drift, lead, times):
    def host(time: int) -> int:
        return round(time * (1 + drift)) + lead

    samples, time = [], 0
    for gap, before, after in calls:
        time += gap
        samples.append((time, host(time) - before - time, host(time) + after - time))
    clock = Clock(samples)
    for time, low, high in samples:
        assert low - 2 <= clock.host(time) - time <= high + 2
        assert abs(clock.host(time) - host(time)) <= clock.error + 2
    found = [clock.host(one) for one in sorted(times)]
    assert found == sorted(found)


def test_times_without_that_of_the_queueing_are_another_command_s():
    command = Command("migrate", object())
    entry = Entry(command, 1, Queue(1, command.queue, False), 100, 110, "MainThread")
    entry.profile, entry.seen = (100, 101, 102, 103), 120
    assert entry.sample() is not None
    entry.profile = 0, 0, 2, 3
    assert entry.sample() is None
    told = entry.record(TimelineQueue(1, "device"), Clock([(100, 0, 0)]))
    assert (told.started, told.ended, told.seen) == (None, None, 120)


def test_a_clock_without_samples_has_no_error():
    assert Clock([]).error is None


def test_a_clock_that_contradicts_itself_says_how_much():
    clock = Clock([(1000, 0, 10), (1001, 5000, 5010)])
    assert clock.error >= 2400


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=80), st.integers(1, 6))
def test_bars_in_lanes_never_overlap_and_keep_their_ends(spans, most):
    bars = [Bar(begin, begin + length, "x", "kernel", command(1)) for begin, length in spans]
    found = lanes("group", "name", bars, most)
    assert len(found) <= most
    assert sum(len(row.bars) for row in found) == len(bars)
    for row in found:
        assert all(one.begin < one.end for one in row.bars)
        assert all(one.end <= two.begin for one, two in zip(row.bars, row.bars[1:], strict=False))
    if len(found) < most:
        assert {(bar.begin, max(bar.end, bar.begin + 1)) for bar in bars} == {
            (bar.begin, bar.end) for row in found for bar in row.bars
        }


def command(number: int, kind: str = "enqueue_kernel", name: str = "k", **other: Any) -> TimelineCommand:
    values = {"queue": QUEUE, "called": 10 * number, "returned": 10 * number + 1, "status": 0, **other}
    if values["queue"].profiled:
        values = {"started": 100 * number, "ended": 100 * number + 50, "seen": 10**6, **values}
    return TimelineCommand(number, kind, name, **values)


def access(label: str | None = "x", *, reads: bool = False, writes: bool = False) -> Access:
    return Access(7, 0, 16, reads=reads, writes=writes, label=label, size=16)


@pytest.mark.parametrize(
    ("made", "title"),
    [
        (command(1), "k"),
        (command(1, "enqueue_kernel", ""), "kernel"),
        (command(1, "enqueue_fill", "", accesses=(access(writes=True),)), "fill x"),
        (command(1, "enqueue_copy", "", accesses=(access(None, writes=True),)), "copy to object 7"),
        (command(1, "enqueue_copy", "", accesses=(access(reads=True),)), "copy from x"),
        (command(1, "enqueue_copy", "", accesses=(access("y", writes=True), access(reads=True))), "copy x to y"),
        (command(1, "enqueue_copy", ""), "copy"),
        (command(1, "enqueue_copy", "", accesses=(access(),)), "copy x"),
        (command(1, "migrate", "to the host", accesses=(access(reads=True),)), "migrate x to the host"),
        (command(1, "foreign", "enqueue_copy", accesses=(access(reads=True),)), "enqueue_copy"),
        (command(1, "foreign", ""), "foreign"),
        (command(1, "something new", "with a name"), "with a name"),
    ],
)
def test_titles(made, title):
    assert made.title == title


def test_any_kind_and_any_name_can_be_shown():
    names = ['"', "\\", "a\nb", "\x00\r\t", "ünïcödé", "{}->;", "\\N\\G", "*/ //", ""]
    commands = tuple(
        command(number, kind, name, waits=tuple(range(1, number)), site=f"{name}:1", thread=name)
        for number, (kind, name) in enumerate([(k, n) for k in ("enqueue_kernel", "foreign", "new") for n in names], 1)
    )
    snapshot = Snapshot(commands, end=10**6)
    checked(json.dumps(trace(snapshot)))
    nodes, found = parsed(dot(snapshot))
    assert len(nodes) == len(commands)
    assert len(found) == len(commands) * (len(commands) - 1) // 2


def test_quoting_is_undone_by_what_reads_it():
    assert quoted('a "b" \\n', "c") == r'"a \"b\" \\n\nc"'


def test_arrows_go_forward_also_where_clocks_or_ends_as_seen_would_have_them_go_back():
    late = command(1, queue=FREE, seen=5000)
    early = command(2, started=300, ended=301, waits=(1,))
    before = command(3, started=0, ended=1, waits=(2,))
    events = checked(json.dumps(trace(Snapshot((late, early), end=6000))))
    assert sum(one["ph"] == "s" for one in events) == 1
    events = checked(json.dumps(trace(Snapshot((late, early, before), end=6000))))
    assert sum(one["ph"] == "s" for one in events) == 1  # and none where they contradict each other


def test_many_at_once_share_a_bounded_number_of_rows():
    commands = tuple(command(number, queue=FREE, status=None) for number in range(1, 500))
    snapshot = Snapshot(commands, end=10**6)
    assert sum(row.name.startswith("queue") for row in rows(snapshot)) == MOST_LANES
    checked(json.dumps(trace(snapshot)))


def test_every_sort_of_event_has_its_row():
    events = (
        TimelineEvent("object", "x", None, None, nbytes=16),
        TimelineEvent("map", "x", 10, None, nbytes=16, of=(1,)),
        TimelineEvent("wait", "wait", 5, None, thread="a thread"),
        TimelineEvent("user_event", "user event 9", 5, 20, number=9, status=-7),
    )
    snapshot = Snapshot((command(1, waits=(9,)),), events, ((0, 16),), end=200)
    document = trace(snapshot)
    found = checked(json.dumps(document))
    names = {one["args"]["name"] for one in found if one["name"] in ("process_name", "thread_name")}
    assert names >= {"host", "thread a thread", "user events", "maps", OBJECTS, "mapped for the host", "queue 1"}
    assert [one["args"] for one in found if one["ph"] == "C"] == [{"bytes": 16}]
    assert document["otherData"]["dropped"] == 0
    assert "set to -7" in dot(snapshot)


def take(recording: Recording, event: cl.Event, *, queue: str = "q", waits: tuple[Any, ...] = ()) -> None:
    made = Command("enqueue_kernel", queue, "k", waits=waits)
    recording.before(made)
    made.event = event
    recording.after(made)


@pytest.fixture
def event(context) -> cl.Event:
    made = cl.UserEvent(context)
    made.set_status(0)
    return made


def test_an_end_whose_begin_was_not_seen_is_taken(event):
    recording = Recording(10)
    made = Command("enqueue_kernel", "q", "k")
    made.event = event
    recording.after(made)
    recording.abandoned(made)
    recording.host(HostWait((), None, site="here:1"))
    recording.host(Released(123))
    recording.host(Flushed("q"))
    found = recording.snapshot()
    assert found.commands[0].called == found.commands[0].returned
    assert [one.begin == one.end for one in found.events] == [True]


@pytest.mark.parametrize("blocking", [False, True])
def test_a_command_whose_event_nobody_has_is_complete_if_its_call_waited(blocking):
    recording = Recording(10)
    made = Command("enqueue_copy", "q", blocking=blocking)
    made.event = object()
    recording.after(made)
    made = Command("enqueue_copy", "q", waits=(made.event,))
    recording.after(made)
    recording.host(HostWait((object(),), None))
    one, other = recording.snapshot().commands
    assert (one.status, one.seen) == ((0, one.returned) if blocking else (None, None))
    assert other.unseen == 1


def test_what_comes_while_the_lock_is_taken_waits_for_its_turn(event, context):
    recording = Recording(10)
    with recording._lock:
        take(recording, event)
    take(recording, cl.UserEvent(context))
    assert [one.number for one in recording.snapshot().commands] == [1, 2]


def test_a_wait_of_another_thread_that_is_not_over_is_shown_as_such():
    recording = Recording(10)
    thread = threading.Thread(target=recording.host, args=(HostWait((), "q", returned=False),), name="waiting")
    thread.start()
    thread.join()
    recording.host(HostWait((), "q", returned=False))  # this one is: we are here
    (wait,) = recording.snapshot().events
    assert (wait.name, wait.thread, wait.end) == ("finish queue 1", "waiting", None)


# -- the picture -------------------------------------------------------------------------------------------------------


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"clmemlife\[plot\]"):
        cml.record_timeline().plot()


def test_importing_it_does_not_load_matplotlib(run):
    run("import sys; cml.record_timeline; assert 'matplotlib' not in sys.modules")


@pytest.fixture
def drawn(field, profiled, queue, gate, kernel) -> cml.record_timeline:
    with cml.record_timeline() as recorded:
        filled = cml.enqueue_fill(profiled, field, ONE)
        with Mapping(queue, field, MapFlags.READ, wait_for=filled) as mapping:
            mapping.wait()
        gated = cml.enqueue_kernel(profiled, kernel("inc"), (8,), None, In(field), wait_for=[mapping.unmap_event, gate])
        gate.set_status(0)
        gated.wait()
    return recorded


def test_a_picture_shows_rows_and_live_bytes(drawn):
    pytest.importorskip("matplotlib")
    figure = drawn.plot()
    upper, lower = figure.axes
    labels = [one.get_text() for one in upper.get_yticklabels()]
    assert labels == ["thread MainThread", "user events", "queue 1", "queue 2 (not profiled)", "maps"]
    assert "since the recording began" in lower.get_xlabel()
    assert lower.get_ylabel() == "live KiB"


def test_an_svg_has_the_same_bytes_each_time(drawn, tmp_path):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        drawn.plot(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b"dc:date" not in paths[0].read_bytes()
    drawn.plot(str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_it_draws_into_axes_of_the_caller(drawn):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    pair = figure.subplots(2)
    assert drawn.plot(axes=pair) is figure
    one = pytest.importorskip("matplotlib.figure").Figure()
    assert drawn.plot(axes=one.subplots()) is one
    assert all(axes.patches or axes.collections for axes in (*pair, *one.axes))


def test_nothing_and_very_much_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from clmemlife.diagnostics.timeline._picture import draw

    draw(Snapshot(), tmp_path / "nothing.svg", None)
    many = tuple(command(number, started=10 * number, ended=10 * number + 9) for number in range(1, 20_000))
    draw(Snapshot(many, end=10**6), tmp_path / "much.svg", None)
    assert (tmp_path / "much.svg").stat().st_size < 500_000
