"""The hazard checker, without a device: its rules one by one, its words, and random programs against a brute force."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import hazard_model as model

from clmemlife import _journal
from clmemlife._journal import Access, Command, Flushed, HostWait, Released, UserEventSet
from clmemlife.diagnostics.hazards import Checker, _clocks, _order, _uses
from clmemlife.exceptions import HazardError, HazardWarning, MapConflictError, UnorderedAccessError

PROGRAMS = int(os.environ.get("CLMEMLIFE_HAZARD_PROGRAMS", "3000"))


class Event:
    """Stands for an event: hashable by identity."""


def read(obj: int = 1, start: int = 0, stop: int = 4096, **more: Any) -> Access:
    return Access(obj, start, stop, reads=True, label=f"field {obj}", size=4096, site="app.py:12", **more)


def write(obj: int = 1, start: int = 0, stop: int = 4096, **more: Any) -> Access:
    return Access(obj, start, stop, writes=True, label=f"field {obj}", size=4096, site="app.py:12", **more)


class Program:
    """Publishes commands to a checker as the library does; the site of a command is its name."""

    def __init__(self, mode: Any = "record", **more: Any) -> None:
        self.checker = Checker(mode, **more)
        self.checkers = [self.checker]

    def command(self, name: str, queue: int, *accesses: Access, kind: str = "enqueue_kernel", **more: Any) -> Event:
        more = {"site": f"{name}:1", "out_of_order": queue >= 10, **more}
        command = Command(kind, queue, name, accesses=accesses, **more)
        for checker in self.checkers:
            checker.before(command)
        command.event = event = Event()
        for checker in self.checkers:
            checker.after(command)
        return event

    def map(self, name: str, queue: int, access: Access, mapping: int = 1, **more: Any) -> Event:
        return self.command(name, queue, access, kind="map", mapping=mapping, **more)

    def unmap(self, name: str, queue: int, mapping: int = 1, **more: Any) -> Event:
        return self.command(name, queue, kind="unmap", mapping=mapping, **more)

    def wait(self, *events: Event) -> None:
        self.checker.host(HostWait(events))

    def finish(self, queue: int) -> None:
        self.checker.host(HostWait(queue=queue))

    def flush(self, queue: int) -> None:
        self.checker.host(Flushed(queue))

    def set(self, event: Event) -> None:
        self.checker.host(UserEventSet(event))

    def found(self) -> list[tuple[str, str, str]]:
        """Close the scope; return each finding as hazard, first and second name."""
        self.checker.close()
        return [(f.hazard, f.first.name, f.second.name) for f in self.checker.findings]


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the threads of the test runner: no other thread could set a user event."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])


# What collides


def test_two_reads_never_collide(program: Program) -> None:
    program.command("a", 1, read())
    program.command("b", 2, read())
    assert program.found() == []


@pytest.mark.parametrize(
    ("first", "second", "hazard"),
    [
        (write(), read(), "read_after_write"),
        (read(), write(), "write_after_read"),
        (write(), write(), "write_after_write"),
    ],
)
def test_uses_on_two_queues_without_an_event_are_found_by_kind(
    program: Program, first: Access, second: Access, hazard: str
) -> None:
    program.command("a", 1, first)
    program.command("b", 2, second)
    assert program.found() == [(hazard, "a", "b")]


def test_disjoint_bytes_of_one_object_do_not_collide(program: Program) -> None:
    program.command("a", 1, write(start=0, stop=100))
    program.command("b", 2, write(start=100, stop=200))
    assert program.found() == []


def test_one_shared_byte_collides(program: Program) -> None:
    program.command("a", 1, write(start=0, stop=101))
    program.command("b", 2, write(start=100, stop=200))
    (finding,) = program.checker.findings
    assert (finding.start, finding.stop) == (100, 101)


def test_an_empty_range_collides_with_nothing(program: Program) -> None:
    program.command("a", 1, write())
    program.command("b", 2, write(start=8, stop=8))
    assert program.found() == []


def test_boxes_beside_each_other_do_not_collide_though_their_bytes_interleave(program: Program) -> None:
    program.command("a", 1, write(box=((0, 0, 0), (8, 64, 1))))
    program.command("b", 2, write(box=((8, 0, 0), (8, 64, 1))))
    assert program.found() == []


def test_boxes_that_cross_collide(program: Program) -> None:
    program.command("a", 1, write(box=((0, 0, 0), (8, 64, 1))))
    program.command("b", 2, read(box=((7, 3, 0), (1, 1, 1))))
    assert program.found() == [("read_after_write", "a", "b")]


def test_boxes_with_other_pitches_are_compared_by_bytes(program: Program) -> None:
    program.command("a", 1, write(box=((0, 0, 0), (8, 64, 1)), pitches=(64, 4096)))
    program.command("b", 2, write(box=((8, 0, 0), (8, 64, 1)), pitches=(128, 8192)))
    assert program.found() == [("write_after_write", "a", "b")]


def test_a_box_and_a_plain_range_are_compared_by_bytes(program: Program) -> None:
    program.command("a", 1, write(start=0, stop=100, box=((0, 0, 0), (8, 64, 1))))
    program.command("b", 2, write(start=100, stop=200))
    program.command("c", 3, read(start=99, stop=101))
    assert program.found() == [("read_after_write", "a", "c"), ("read_after_write", "b", "c")]


def test_one_command_never_collides_with_itself(program: Program) -> None:
    program.command("a", 1, read(), write(), write(start=8, stop=16))
    assert program.found() == []


# What orders


def test_a_wait_list_orders(program: Program) -> None:
    a = program.command("a", 1, write())
    program.command("b", 2, read(), waits=(a,))
    assert program.found() == []


def test_order_goes_through_commands_that_use_nothing(program: Program) -> None:
    a = program.command("a", 1, write())
    b = program.command("b", 2, waits=(a,))
    program.command("c", 3, read(), waits=(b,))
    assert program.found() == []


def test_an_in_order_queue_orders(program: Program) -> None:
    program.command("a", 1, write())
    program.command("b", 1, read())
    assert program.found() == []


def test_an_out_of_order_queue_orders_nothing(program: Program) -> None:
    program.command("a", 10, write())
    program.command("b", 10, read())
    assert program.found() == [("read_after_write", "a", "b")]


def test_a_barrier_orders_what_comes_later_in_an_out_of_order_queue(program: Program) -> None:
    program.command("a", 10, write())
    program.command("", 10, kind="barrier")
    program.command("b", 10, read())
    assert program.found() == []


def test_a_barrier_with_a_wait_list_comes_after_that_list_only(program: Program) -> None:
    a = program.command("a", 10, write(1))
    program.command("b", 10, write(2))
    program.command("", 10, kind="barrier", waits=(a,))
    program.command("c", 10, read(1), read(2))
    assert program.found() == [("read_after_write", "b", "c")]


def test_a_marker_comes_after_all_that_is_in_the_queue_also_before_a_barrier_with_a_wait_list(program: Program) -> None:
    a = program.command("a", 10, write(1))
    program.command("b", 10, write(2))
    program.command("", 10, kind="barrier", waits=(a,))
    marker = program.command("", 10, kind="marker")
    program.command("c", 10, read(2), waits=(marker,))
    assert program.found() == []


def test_a_marker_orders_nothing_that_does_not_wait_for_it(program: Program) -> None:
    program.command("a", 10, write())
    program.command("", 10, kind="marker")
    program.command("b", 10, read())
    assert program.found() == [("read_after_write", "a", "b")]


def test_a_blocking_command_orders_everything_enqueued_later(program: Program) -> None:
    program.command("a", 1, write(), blocking=True)
    program.command("b", 2, read())
    assert program.found() == []


def test_a_host_wait_orders_everything_enqueued_later_and_all_that_came_before_it(program: Program) -> None:
    program.command("a", 1, write(1))
    b = program.command("b", 1, write(2))
    program.command("c", 1, write(3))
    program.wait(b)
    program.command("d", 2, read(1), read(2), read(3))
    assert program.found() == [("read_after_write", "c", "d")]


@pytest.mark.parametrize("queue", [1, 10])
def test_finish_orders_all_of_its_queue_and_no_other(program: Program, queue: int) -> None:
    program.command("a", queue, write(1))
    program.command("b", queue, write(2))
    program.command("c", 2, write(3))
    program.finish(queue)
    program.command("d", 3, read(1), read(2), read(3))
    assert program.found() == [("read_after_write", "c", "d")]


def test_a_wait_that_only_begins_orders_nothing(program: Program) -> None:
    a = program.command("a", 1, write())
    program.checker.host(HostWait((a,), returned=False))
    program.command("b", 2, read())
    assert program.found() == [("read_after_write", "a", "b")]


def test_threads_share_the_one_host(program: Program) -> None:
    a = program.command("a", 1, write())
    thread = threading.Thread(target=program.wait, args=(a,))
    thread.start()
    thread.join()
    program.command("b", 2, read())
    assert program.found() == []


# User events


def test_what_hangs_on_a_user_event_is_judged_when_it_is_set(program: Program) -> None:
    gate = Event()
    program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    program.command("b", 2, read())
    assert program.checker.findings == ()
    program.set(gate)
    assert [(f.first.name, f.second.name) for f in program.checker.findings] == [("a", "b")]


def test_what_hangs_on_a_user_event_that_is_never_set_is_judged_when_the_scope_ends(program: Program) -> None:
    gate = Event()
    program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    program.command("b", 2, read())
    assert program.found() == [("read_after_write", "a", "b")]


def test_setting_a_user_event_orders_what_the_host_waited_for_before_it(program: Program) -> None:
    gate = Event()
    program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    b = program.command("b", 2, read())
    program.wait(b)
    program.set(gate)
    assert program.found() == []


def test_what_comes_after_a_gated_command_hangs_too(program: Program) -> None:
    gate = Event()
    a = program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    program.command("b", 1, read())
    program.command("c", 2, read(), waits=(a,))
    program.set(gate)
    assert program.found() == []


def test_two_user_events_gate_until_both_are_set(program: Program) -> None:
    gates = Event(), Event()
    program.command("a", 1, write(), waits=gates, gates=gates)
    program.command("b", 2, read())
    program.set(gates[0])
    assert program.checker.findings == ()
    program.set(gates[1])
    assert len(program.checker.findings) == 1


def test_a_user_event_that_is_already_set_orders_nothing(program: Program) -> None:
    seen, unseen = Event(), Event()
    program.command("a", 1, write())
    program.set(seen)
    program.command("b", 2, read(), waits=(seen, unseen), opened=(unseen,))
    assert program.found() == [("read_after_write", "a", "b")]


def test_a_wait_that_returned_shows_that_its_user_event_was_set(program: Program) -> None:
    gate = Event()
    a = program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    program.wait(a)
    program.command("b", 2, read())
    assert program.found() == []


def test_the_error_of_a_user_event_comes_out_of_setting_it_and_all_that_it_gated_is_judged() -> None:
    program = Program("raise")
    gate = Event()
    program.command("a", 1, write(1), waits=(gate,), gates=(gate,))
    program.command("b", 1, write(2))
    program.command("c", 2, read(1), read(2))
    with pytest.raises(UnorderedAccessError):
        program.set(gate)
    assert len(program.checker.findings) == 2


@pytest.mark.usefixtures("lonely")
def test_waiting_for_what_only_the_host_could_let_go_is_a_wait_cycle() -> None:
    program = Program("raise")
    gate = Event()
    program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    b = program.command("b", 1)
    with pytest.raises(HazardError) as caught:
        program.checker.host(HostWait((b,), returned=False, site="app.py:50"))
    assert str(caught.value) == (
        "wait cycle through a user event\n"
        "  host wait (app.py:50) waits for the end of\n"
        "  enqueue_kernel 'a' on queue 1 (a:1) which waits for a user event that is not set\n"
        "  No other thread runs that could set it: this wait has no end. Set the user event before app.py:50.\n"
        "  [hazard=wait_cycle second=app.py:50 first=a:1]"
    )


@pytest.mark.usefixtures("lonely")
def test_a_blocking_command_behind_a_user_event_is_a_wait_cycle() -> None:
    program = Program("raise")
    gate = Event()
    program.command("a", 1, waits=(gate,), gates=(gate,))
    with pytest.raises(HazardError, match="wait cycle"):
        program.command("b", 1, blocking=True)
    program.command("c", 1)


def test_a_gated_wait_is_no_cycle_while_another_thread_could_set_the_event(program: Program) -> None:
    gate = Event()
    a = program.command("a", 1, waits=(gate,), gates=(gate,))
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    program.checker.host(HostWait((a,), returned=False))
    done.set()
    thread.join()
    assert program.found() == []


# Waits on what nobody flushed


def test_a_raw_wait_on_an_event_of_a_queue_that_was_not_flushed_is_found() -> None:
    program = Program("raise")
    first = program.command("a", 1)
    with pytest.raises(HazardError, match="queue that was not flushed") as caught:
        program.command("b", 2, waits=(first,), raw=True)
    finding = caught.value.finding
    assert (finding.hazard, finding.first.name, finding.second.name) == ("unflushed_wait", "a", "b")
    assert finding.advice == "Call flush() of queue 1 between a:1 and b:1."
    assert finding.key == "hazard=unflushed_wait second=b:1 first=a:1"
    assert "enqueue_kernel 'b' on queue 2 (b:1) waits for the end of" in str(finding)


def _flushes(program: Program, first: Event) -> None:
    program.flush(1)


def _finishes(program: Program, first: Event) -> None:
    program.finish(1)


def _waits(program: Program, first: Event) -> None:
    program.wait(first)


def _blocks(program: Program, first: Event) -> None:
    program.command("blocking", 1, blocking=True)


def _is_waited_for_by_ours(program: Program, first: Event) -> None:
    program.command("ours", 3, waits=(first,))


FLUSHES = [_flushes, _finishes, _waits, _blocks, _is_waited_for_by_ours]


@pytest.mark.parametrize("flush", FLUSHES)
def test_what_flushes_a_queue_flushes_all_before_it_and_nothing_after(
    program: Program, flush: Callable[..., None]
) -> None:
    first = program.command("a", 1)
    flush(program, first)
    program.command("b", 2, waits=(first,), raw=True)
    later = program.command("c", 1)
    program.command("d", 2, waits=(first,), raw=True)
    program.command("e", 2, waits=(later,), raw=True)
    assert program.found() == [("unflushed_wait", "c", "e")]


def test_a_flush_of_another_queue_counts_for_that_one_only(program: Program) -> None:
    first = program.command("a", 1)
    program.command("b", 2)
    program.flush(2)
    program.flush(7)  # never seen
    program.command("c", 3, waits=(first,), raw=True)
    assert program.found() == [("unflushed_wait", "a", "c")]


def test_a_wait_within_one_queue_needs_no_flush(program: Program) -> None:
    program.command("b", 10, waits=(program.command("a", 10),), raw=True)
    assert program.found() == []


def test_of_an_event_never_seen_and_a_user_event_nothing_is_said(program: Program) -> None:
    user = Event()
    program.command("a", 1)
    program.command("b", 2, waits=(Event(), user), gates=(user,), raw=True)
    program.set(user)
    program.command("c", 2, waits=(user,), opened=(user,), raw=True)
    assert program.found() == []


def test_a_flush_that_comes_while_another_thread_is_inside_is_not_waited_for_and_counts(program: Program) -> None:
    first = program.command("a", 1)
    checker, inside, go_on = program.checker, threading.Event(), threading.Event()

    def stay() -> None:
        with checker._lock:
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    program.flush(1)  # would hang here
    go_on.set()
    thread.join()
    program.command("b", 2, waits=(first,), raw=True)
    assert program.found() == []


# Maps


def test_a_command_between_map_and_unmap_races_with_the_host_even_in_order(program: Program) -> None:
    program.map("m", 1, write())
    program.command("a", 1, read())
    program.unmap("u", 1)
    assert program.found() == [("host_map", "m", "a")]


def test_waiting_for_the_map_event_does_not_end_the_map(program: Program) -> None:
    m = program.map("m", 1, write())
    program.command("a", 2, read(), waits=(m,))
    program.unmap("u", 1)
    assert program.found() == [("host_map", "m", "a")]


def test_a_reading_command_and_a_read_map_do_not_collide(program: Program) -> None:
    program.map("m", 1, read())
    program.command("a", 2, read())
    program.unmap("u", 1)
    assert program.found() == []


def test_two_maps_of_which_one_writes_race(program: Program) -> None:
    program.map("m", 1, read(), mapping=1)
    program.map("n", 1, write(), mapping=2)
    program.unmap("", 1, mapping=1)
    program.unmap("", 1, mapping=2)
    assert program.found() == [("host_map", "m", "n")]


def test_a_map_must_be_ordered_behind_earlier_commands(program: Program) -> None:
    program.command("a", 1, write())
    program.map("m", 2, read())
    program.unmap("u", 2)
    assert program.found() == [("read_after_write", "a", "m")]


def test_a_command_that_waits_for_the_unmap_is_ordered(program: Program) -> None:
    program.map("m", 1, write(), blocking=True)
    u = program.unmap("u", 1)
    program.command("a", 2, read(), waits=(u,))
    assert program.found() == []


def test_an_unmap_is_only_enqueued_so_another_queue_must_wait_for_it(program: Program) -> None:
    gate = Event()
    program.map("m", 1, write(), blocking=True)
    program.unmap("u", 1, waits=(gate,), gates=(gate,), site="app.py:40")
    program.command("a", 2, read(), site="app.py:41")
    (finding,) = program.checker.findings
    assert (finding.hazard, finding.first.kind) == ("read_after_write", "unmap")
    assert finding.advice == "At app.py:41 add wait_for=[unmap_event of the mapping unmapped at app.py:40]."


def test_waiting_for_the_map_on_the_host_does_not_end_it_either(program: Program) -> None:
    m = program.map("m", 1, write())
    program.wait(m)
    program.command("a", 1, read())
    assert program.found() == [("host_map", "m", "a")]


# Undefined content


def test_reading_what_a_migration_left_undefined_is_found_though_it_is_ordered() -> None:
    program = Program("raise")
    moved = program.command("moved", 1, write(), kind="migrate", undefined=True, site="app.py:7")
    with pytest.raises(HazardError, match="use of undefined content") as caught:
        program.command("a", 1, read(start=0, stop=8), waits=(moved,), site="app.py:9")
    assert "Write these bytes before app.py:9, or migrate at app.py:7 without CONTENT_UNDEFINED." in str(caught.value)
    assert not isinstance(caught.value, UnorderedAccessError)


def test_a_write_defines_the_bytes_that_it_writes_and_no_others(program: Program) -> None:
    program.command("m", 1, write(), kind="migrate", undefined=True)
    program.command("w", 1, write(start=0, stop=64))
    program.command("a", 1, read(start=0, stop=64))
    program.command("b", 1, read(start=0, stop=65))
    assert program.found() == [("undefined_content", "m", "b")]


def test_another_migration_does_not_define_anything(program: Program) -> None:
    program.command("m", 1, write(), kind="migrate", undefined=True)
    program.command("n", 1, write(), kind="migrate")
    program.command("a", 1, read())
    assert program.found() == [("undefined_content", "m", "a")]


def test_what_was_waited_for_on_the_host_stays_undefined(program: Program) -> None:
    program.wait(program.command("m", 1, write(), kind="migrate", undefined=True))
    program.command("a", 2, read())
    assert program.found() == [("undefined_content", "m", "a")]


def test_an_assumed_read_of_undefined_content_is_not_reported(program: Program) -> None:
    program.command("m", 1, write(), kind="migrate", undefined=True)
    program.command("a", 1, Access(1, 0, 4096, reads=True, writes=True, assumed=True))
    assert program.found() == []


# Commands of others


def test_whoever_waits_for_an_event_never_seen_is_taken_to_be_ordered(program: Program) -> None:
    program.command("a", 1, write())
    program.command("b", 2, read(), waits=(Event(),))
    assert program.found() == []


def test_an_event_never_seen_orders_nothing_that_came_after_it_was_first_met(program: Program) -> None:
    foreign = Event()
    program.command("a", 1, waits=(foreign,))
    program.command("b", 2, write())
    program.command("c", 3, read(), waits=(foreign,))
    assert program.found() == [("read_after_write", "b", "c")]


def test_a_declared_command_collides_with_what_does_not_wait_for_it(program: Program) -> None:
    program.checker.declare(Event(), writes=[read()], queue=1, site="raw.py:3")
    program.command("b", 2, read())
    (finding,) = program.checker.findings
    assert (finding.hazard, finding.first.site) == ("read_after_write", "raw.py:3")


def test_a_declared_command_takes_its_place_in_an_in_order_queue(program: Program) -> None:
    program.command("a", 1, read())
    program.checker.declare(Event(), writes=[write()], queue=1)
    program.command("b", 1, read())
    assert program.found() == []


def test_declaring_a_known_command_judges_it_in_its_own_place(program: Program) -> None:
    a = program.command("a", 1)
    program.command("b", 2, read(1), waits=(a,))
    program.command("c", 3, read(2))
    program.checker.declare(a, writes=[write(1), write(2)])
    assert program.found() == [("read_after_write", "a", "c")]


def test_a_declaration_of_what_hangs_on_a_user_event_waits_for_it(program: Program) -> None:
    gate = Event()
    a = program.command("a", 1, waits=(gate,), gates=(gate,))
    program.checker.declare(a, writes=[write()])
    program.command("b", 2, read())
    program.set(gate)
    assert program.found() == [("read_after_write", "a", "b")]


# What a finding says


def test_the_text_of_a_finding_names_both_commands_and_the_missing_event() -> None:
    program = Program("raise")
    field = {"label": "field", "size": 4096, "site": "app.py:12"}
    program.command("axpy", 1, Access(1, 0, 4096, reads=True, **field), site="app.py:38")
    with pytest.raises(UnorderedAccessError) as caught:
        program.command("scale", 2, Access(1, 0, 4096, writes=True, **field), site="app.py:41")
    assert str(caught.value) == (
        "write-after-read on 'field' (4096 bytes, created at app.py:12)\n"
        "  enqueue_kernel 'scale' on queue 2 (app.py:41) writes bytes [0, 4096)\n"
        "  enqueue_kernel 'axpy' on queue 1 (app.py:38) may still be reading bytes [0, 4096)\n"
        "  Nothing orders the two: the results depend on timing. "
        "At app.py:41 add wait_for=[event returned at app.py:38].\n"
        "  [hazard=write_after_read object=field bytes=0:4096 second=app.py:41 first=app.py:38]"
    )
    finding = caught.value.finding
    assert finding.key == "hazard=write_after_read object=field second=app.py:41 first=app.py:38"
    assert finding.as_dict()["second"]["name"] == "scale"
    assert finding.as_dict()["key"] == finding.key
    with pytest.raises(FrozenInstanceError):
        finding.count = 2


def test_an_object_without_a_label_is_named_by_its_creation_site(program: Program) -> None:
    program.command("a", 1, Access(1, 0, 8, writes=True, size=8, site="app.py:3"))
    program.command("b", 2, Access(1, 0, 8, reads=True, size=8, site="app.py:3"))
    text = str(program.checker.findings[0])
    assert text.startswith("read-after-write on an object (8 bytes, created at app.py:3)")
    assert "object=app.py:3 " in text


def test_an_assumed_use_and_a_box_say_so(program: Program) -> None:
    program.command("a", 1, write(assumed=True))
    program.command("b", 2, read(box=((0, 1, 0), (8, 2, 1))))
    text = str(program.checker.findings[0])
    assert "may still be writing bytes [0, 4096) (assumed: nothing declares how it is used)" in text
    assert "reads bytes [0, 4096) within origin (0, 1, 0), region (8, 2, 1)" in text


def test_the_host_in_a_map_is_named_as_such(program: Program) -> None:
    program.map("", 1, write(), site="app.py:5")
    program.command("a", 1, read(), site="app.py:6")
    assert str(program.checker.findings[0]) == (
        "racing host map on 'field 1' (4096 bytes, created at app.py:12)\n"
        "  enqueue_kernel 'a' on queue 1 (app.py:6) reads bytes [0, 4096)\n"
        "  map on queue 1 (app.py:5) lets the host write bytes [0, 4096)\n"
        "  The host may be using the bytes at any moment until the unmap. "
        "Unmap what is mapped at app.py:5 first; at app.py:6 add wait_for=[its unmap_event].\n"
        "  [hazard=host_map object='field 1' bytes=0:4096 second=app.py:6 first=app.py:5]"
    )


def test_a_missing_edge_is_reported_once_with_a_count(program: Program) -> None:
    for _ in range(5):
        program.command("a", 1, write())
        program.command("b", 2, read())
        program.finish(1)
        program.finish(2)
    (finding,) = program.checker.findings
    assert finding.count == 5


def test_two_uses_of_one_object_by_one_command_miss_one_edge(program: Program) -> None:
    program.command("a", 1, write())
    program.command("b", 2, read(start=0, stop=8), write(start=8, stop=16))
    (finding,) = program.checker.findings
    assert finding.count == 1


def test_a_suppressed_key_is_neither_raised_nor_kept() -> None:
    key = "hazard=read_after_write object='field 1' second=b:1 first=a:1"
    program = Program("raise", suppress=[key])
    program.command("a", 1, write())
    program.command("b", 2, read())
    assert program.found() == []


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'record'"):
        Checker("loud")  # type: ignore[arg-type]


# Modes


def test_a_raised_command_leaves_no_trace() -> None:
    program = Program("raise")
    a = program.command("a", 1, write())
    with pytest.raises(UnorderedAccessError):
        program.command("b", 2, write())
    program.command("c", 3, write(), waits=(a,))
    program.command("d", 2, read(2))


def test_a_warning_points_at_the_second_command_and_comes_once() -> None:
    program = Program("warn")
    program.command("a", 1, write())
    with pytest.warns(HazardWarning, match="read-after-write") as caught:
        program.command("b", 2, read(), site="app.py:41")
    assert (caught[0].filename, caught[0].lineno) == ("app.py", 41)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.command("b", 2, read(), site="app.py:41")


def test_a_warning_that_is_an_error_leaves_no_trace_either() -> None:
    program = Program("warn")
    a = program.command("a", 1, write())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HazardWarning):
            program.command("b", 2, write())
        program.command("c", 3, write(), waits=(a,))


def test_a_command_that_the_driver_refused_never_was(program: Program) -> None:
    a = program.command("a", 1, write())
    for refused in (
        Command("enqueue_kernel", 2, accesses=(write(1, 0, 64), write(2)), waits=(a,)),
        Command("barrier", 10),
        Command("map", 2, accesses=(write(2),), mapping=1),
    ):
        program.checker.before(refused)
        program.checker.abandoned(refused)
    program.command("b", 2, read(1))
    program.command("c", 3, read(2))
    assert program.found() == [("read_after_write", "a", "b")]


def test_a_refused_unmap_leaves_the_map_open(program: Program) -> None:
    program.map("m", 1, write())
    refused = Command("unmap", 1, mapping=1)
    program.checker.before(refused)
    program.checker.abandoned(refused)
    program.command("a", 1, read())
    program.unmap("u", 1)
    program.command("b", 1, read())
    assert program.found() == [("host_map", "m", "a")]


def test_a_refused_command_behind_a_user_event_is_not_judged_later(program: Program) -> None:
    gate = Event()
    refused = Command("enqueue_kernel", 1, accesses=(write(),), waits=(gate,), gates=(gate,))
    program.checker.before(refused)
    program.checker.abandoned(refused)
    program.command("b", 2, read())
    assert program.found() == []


# What to wait for


def test_dependencies_are_the_last_writer_for_a_read_and_the_readers_since_for_a_write(program: Program) -> None:
    a = program.command("a", 1, write())
    b = program.command("b", 2, read(), waits=(a,))
    c = program.command("c", 3, read(), waits=(a,))
    assert program.checker.dependencies(reads=[read()]) == [a]
    assert set(program.checker.dependencies(writes=[read()])) == {b, c}


def test_dependencies_leave_out_what_is_ordered_by_another_of_them(program: Program) -> None:
    program.command("a", 1, write(1))
    b = program.command("b", 1, write(2))
    assert program.checker.dependencies(reads=[read(1), read(2)]) == [b]


def test_dependencies_leave_out_what_the_host_has_waited_for(program: Program) -> None:
    program.wait(program.command("a", 1, write()))
    assert program.checker.dependencies(writes=[write()]) == []


def test_dependencies_know_what_hangs_on_a_user_event(program: Program) -> None:
    gate = Event()
    program.command("a", 1, write())
    program.command("b", 1, read(), waits=(gate,), gates=(gate,))
    c = program.command("c", 1, read())
    assert program.checker.dependencies(writes=[write()]) == [c]


def test_dependencies_of_a_mapped_object_name_its_unmap_or_refuse(program: Program) -> None:
    gate = Event()
    program.map("m", 1, write())
    with pytest.raises(MapConflictError, match="m:1"):
        program.checker.dependencies(reads=[read()])
    u = program.unmap("u", 1, waits=(gate,), gates=(gate,))
    assert program.checker.dependencies(reads=[read()]) == [u]


def test_a_command_that_waits_for_its_dependencies_is_silent_in_random_programs() -> None:
    for seed in range(300):
        checker = Checker("record")
        model.check(model.random_program(seed), checker)
        before = checker.findings
        probe = [Access(obj, 0, 16) for obj in range(4)]
        try:
            waits = tuple(checker.dependencies(writes=probe))
        except MapConflictError:
            continue
        checker.before(Command("probe", "new", waits=waits, accesses=tuple(write(a.obj, 0, 16) for a in probe)))
        assert checker.findings == before, seed


def test_explain_tells_the_recent_uses_and_which_still_matter(program: Program) -> None:
    program.wait(program.command("a", 1, write()))
    program.command("b", 1, read(start=0, stop=8))
    assert program.checker.explain(1) == (
        "field 1 (4096 bytes, created at app.py:12)\n"
        "  enqueue_kernel 'a' on queue 1 (a:1) writes bytes [0, 4096)\n"
        "  enqueue_kernel 'b' on queue 1 (b:1) reads bytes [0, 8): what comes next must be ordered behind it"
    )
    assert program.checker.explain(2) == "no use on record"


# Memory and threads


def kept(checker: Checker) -> int:
    order = checker._order
    return len(order.nodes) + len(order.queues) + len(order.waiting) + len(checker._in_flight) + len(order.maps)


@pytest.mark.parametrize("queue", [1, 10])
def test_what_is_kept_does_not_grow_with_the_number_of_commands(queue: int) -> None:
    program = Program("raise")
    event = program.command("a", queue, write())
    for number in range(3000):
        event = program.command("a", queue, write(), read(2, number % 64, number % 64 + 1), waits=(event,))
        program.command("b", queue, read(3))
        if queue >= 10:
            program.command("", queue, kind="barrier")
    assert kept(program.checker) < 300
    assert sum(len(uses.segments) for uses in program.checker._objects.uses.values()) < 200


def test_an_out_of_order_queue_that_is_finished_now_and_then_keeps_little(program: Program) -> None:
    for number in range(3000):
        program.command("a", 10, write(number % 7, number * 8, number * 8 + 8))
        if number % 10 == 0:
            program.finish(10)
    assert kept(program.checker) < 300
    assert sum(len(uses.segments) for uses in program.checker._objects.uses.values()) < 7 * 200
    assert program.found() == []


def test_an_event_that_somebody_holds_is_known_for_ever(program: Program) -> None:
    first = program.command("a", 1, write())
    for _ in range(500):
        program.command("b", 2)
    program.command("c", 3, read(), waits=(first,))
    program.command("d", 4, write(2))
    program.command("e", 5, read(2), waits=(first,))
    assert program.found() == [("read_after_write", "d", "e")]


def test_what_two_checkers_keep_of_the_same_commands_does_not_grow_either() -> None:
    program = Program("raise")
    program.checkers.append(Checker("raise"))
    gate = Event()
    first = program.command("held", 3)
    event = program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    for number in range(3000):
        event = program.command("a", 1 + number % 2, write(), waits=(event,))
        if number % 1000 == 0:
            for checker in program.checkers:
                checker.host(UserEventSet(gate))
    for checker in program.checkers:
        assert kept(checker) < 300
        assert first in checker._order.nodes
        assert gate in checker._order.nodes


def test_a_released_object_is_forgotten_once_nothing_hangs_on_a_user_event(program: Program) -> None:
    gate = Event()
    program.command("a", 1, write(), waits=(gate,), gates=(gate,))
    program.command("b", 2, read())
    program.checker.host(Released(1))
    program.set(gate)
    assert program.checker.explain(1) == "no use on record"
    assert program.found() == [("read_after_write", "a", "b")]


def test_records_from_a_collection_inside_the_checker_are_dealt_with_after_it() -> None:
    program = Program("raise")
    program.command("a", 1, write())

    class Collected(Event):
        """An event whose hash runs what a garbage collection might."""

        def __hash__(self) -> int:
            if not program.checker.findings:
                program.command("late", 2, read())
            return 1

    program.command("b", 1, write(), waits=(Collected(),))
    with pytest.warns(HazardWarning, match="late"):
        program.command("c", 1, read())
    assert [f.second.name for f in program.checker.findings] == ["late"]


def test_threads_may_publish_at_once() -> None:
    program = Program("raise")

    def work(number: int) -> None:
        event = program.command("a", number, write(number))
        for _ in range(200):
            event = program.command("a", number, write(number), read(99), waits=(event,))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert program.found() == []


# The journal


def test_a_listener_that_raises_keeps_the_command_from_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _journal, "listeners", ()
    )  # these commands are not for the checker that the environment asks for
    quiet, loud = Checker("record"), Checker("raise")
    _journal.subscribe(quiet)
    _journal.subscribe(loud)
    try:
        first = Command("enqueue_kernel", 1, "a", accesses=(write(),))
        _journal.before(first)
        _journal.after(first, Event())
        with pytest.raises(UnorderedAccessError):
            _journal.before(Command("enqueue_kernel", 2, "b", accesses=(write(),)))
        third = Command("enqueue_kernel", 1, "c", accesses=(read(),))
        _journal.before(third)
        _journal.abandoned(third)
        _journal.host(Released(1))
    finally:
        _journal.unsubscribe(loud)
        _journal.unsubscribe(quiet)
        _journal.unsubscribe(quiet)
    assert [f.second.name for f in quiet.findings] == ["b"]


# Random programs


def disagreement(programs: range, *, boxes: bool = False) -> str:
    """Return the first program where the checker and the brute force differ, or an empty string."""
    for seed in programs:
        program = model.random_program(seed, boxes=boxes)
        every, bare = model.hazards(program)
        found = model.check(program, Checker("record"))
        # A box stands for another only if it covers it wholly, so more than the bare ones may be named.
        if not bare <= found <= every or (not boxes and found != bare):
            ops = "\n".join(f"{number} {op}" for number, op in enumerate(program.ops))
            return f"seed {seed}: missed {bare - found}, false {found - every}, more {found - bare}\n{ops}"
    return ""


def test_the_checker_agrees_with_a_search_of_the_whole_graph() -> None:
    assert disagreement(range(PROGRAMS)) == ""


def test_the_checker_agrees_about_boxes_of_images() -> None:
    assert disagreement(range(PROGRAMS // 3), boxes=True) == ""


def test_the_checker_agrees_when_it_tidies_up_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (_clocks.Queue, _order.Order, _uses.Uses):
        monkeypatch.setattr(owner, "slack", 0)
    assert disagreement(range(PROGRAMS, PROGRAMS + PROGRAMS // 3)) == ""


def test_the_random_programs_contain_silent_and_hazardous_ones() -> None:
    hazards = [len(model.hazards(model.random_program(seed))[0]) for seed in range(200)]
    assert hazards.count(0) > 20
    assert sum(0 < number < 4 for number in hazards) > 20


def _own_waits_only(preds: list[Any], own: Any) -> dict[Any, int]:
    return {pred.chain: pred.index for pred in preds if pred.chain is not own}


def _settle_one(self: Any, node: Any) -> None:
    node.chain.ordered = max(node.chain.ordered, node.index)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (_order, "joined", _own_waits_only),
        (_order, "joined", lambda preds, own: _clocks.joined(preds[:-1], own)),
        (_order, "prolonged", lambda preds, clock: preds[0].chain if preds else _clocks.Chain()),
        (_order.Order, "settle", _settle_one),
        (
            _uses,
            "_append",
            lambda segments, segment: segments.append((*segment[:3], None)) if segment[2][1:] else None,
        ),
    ],
    ids=["not transitive", "last wait forgotten", "wrong chain", "host wait not transitive", "bytes forgotten"],
)
def test_a_fault_planted_in_the_clocks_shows(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, fault)
    assert disagreement(range(200)) != ""


def test_with_every_suggestion_taken_nothing_is_left_to_report() -> None:
    for seed in range(PROGRAMS // 3):
        program = model.random_program(seed)
        if any(op.gates for op in program.ops):
            continue  # an edge back to what is gated could close a circle
        ops = list(program.ops)
        ends = {op.of: number for number, op in enumerate(ops) if op.kind == "unmap"}
        pairs = model.check(program, Checker("record"))
        if any(ops[first].kind == "map" and ends.get(first, len(ops)) > second for first, second, _ in pairs):
            continue  # to be unmapped first: no event helps
        for first, second, _ in pairs:
            op = ops[second]
            ops[second] = model.Op(
                op.kind, op.queue, op.uses, (*op.waits, ends.get(first, first)), op.gates, op.blocking, op.of
            )
        assert model.check(model.Program(program.out_of_order, tuple(ops)), Checker("record")) == set(), seed
