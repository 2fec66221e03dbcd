"""The records tell where an object is, what was moved to bring it there, and which moves were for nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clmemlife as cml
from clmemlife import In, InOut, MapFlags, Mapping, MemHandle, Migration, MigrationFlags, Out
from clmemlife._journal import Access, Command, Released
from clmemlife.diagnostics.residency._recorder import Recorder

SIZE = 4096
UNDEFINED = MigrationFlags.CONTENT_UNDEFINED


@pytest.fixture
def field(context):
    with MemHandle.create_buffer(context, SIZE, label="field") as handle:
        yield handle


@pytest.fixture
def recording():
    with cml.record_residency() as found:
        yield found


def moves(report) -> set:
    return {(one.source, one.destination, one.explicit, one.nbytes, one.count) for one in report.moves}


def test_without_records_there_is_no_answer(field):
    with pytest.raises(RuntimeError, match="record_residency"):
        cml.residency(field)


def test_nobody_listens_before_and_after(field, queue):
    from clmemlife import _journal

    before = _journal.listeners  # the hazard checker, where the whole run is under it
    with cml.record_residency() as found:
        assert len(_journal.listeners) == len(before) + 1
        found.stop()
        found.stop()
        assert _journal.listeners == before


def test_what_nobody_has_touched_is_nowhere(field, recording):
    report = cml.residency(field)
    assert (report.label, report.size, report.places, report.moves) == ("field", SIZE, {}, ())
    assert "not known" in str(report)


def test_a_copy_from_the_host_brings_it_to_the_device(field, queue, recording):
    cml.enqueue_copy(queue, field, np.zeros(SIZE, np.uint8))
    report = cml.residency(field)
    assert report.places == {queue.device: SIZE}
    assert moves(report) == {(None, queue.device, True, SIZE, 1)}


@pytest.mark.needs_two_devices
def test_a_kernel_elsewhere_makes_the_driver_move_it(field, queue, queue2, kernel, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    cml.enqueue_kernel(queue2, kernel("inc"), (8,), None, In(field, 0, 1024), wait_for=filled).wait()
    report = cml.residency(field)
    assert report.places == {queue.device: SIZE, queue2.device: 1024}
    assert moves(report) == {(queue.device, queue2.device, False, 1024, 1)}


def test_what_is_only_written_is_not_moved(field, queue, queue2, kernel, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    cml.enqueue_kernel(queue2, kernel("inc"), (8,), None, Out(field), wait_for=filled).wait()
    report = cml.residency(field)
    assert report.places == {queue2.device: SIZE}
    assert report.moves == ()


@pytest.mark.needs_two_devices
def test_a_migration_moves_it_explicitly_and_the_kernel_then_finds_it(field, queue, queue2, kernel, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    moved = Migration(queue2, field, wait_for=filled)
    assert cml.residency(field).places == {queue.device: SIZE, queue2.device: SIZE}
    cml.enqueue_kernel(queue2, kernel("inc"), (8,), None, InOut(field), wait_for=moved).wait()
    report = cml.residency(field)
    assert report.places == {queue2.device: SIZE}
    assert moves(report) == {(queue.device, queue2.device, True, SIZE, 1)}
    assert recording.findings == ()


def test_a_migration_to_the_host_is_one(field, queue, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    Migration(queue, field, MigrationFlags.HOST, wait_for=filled).wait()
    assert moves(cml.residency(field)) == {(queue.device, None, True, SIZE, 1)}


def test_a_map_brings_it_to_the_host_and_one_that_writes_leaves_it_there(field, queue, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    with Mapping(queue, field, MapFlags.READ, size=1024, wait_for=filled) as mapping:
        assert mapping.array[0] == 1
    assert cml.residency(field).places == {queue.device: SIZE, None: 1024}
    with Mapping(queue, field, MapFlags.WRITE_INVALIDATE_REGION, size=512, wait_for=mapping.unmap_event) as mapping:
        mapping.array[:] = 2
    mapping.unmap_event.wait()
    report = cml.residency(field)
    assert report.places == {queue.device: SIZE - 512, None: 1024}
    assert moves(report) == {(queue.device, None, False, 1024, 1)}


@pytest.mark.needs_two_devices
def test_a_part_is_a_part_of_its_whole(context, field, queue, queue2, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    with field.sub_buffer(0, 1024) as part:
        Migration(queue2, part, wait_for=filled).wait()
        assert cml.residency(part) == cml.residency(field) == cml.residency(field.mem)
    assert cml.residency(field).places[queue2.device] == 1024


@pytest.mark.needs_two_devices
def test_a_staged_migration_is_one_move_there_and_nothing_else(context, queue, queue2, recording):
    with MemHandle.create_buffer(context, 1 << 20, label="large") as large:
        filled = cml.enqueue_fill(queue, large, np.int32(1))
        Migration(queue2, large, via="staged", source_queue=queue, wait_for=filled).wait()
        assert cml.residency(large).places == {queue2.device: 1 << 20}
    assert recording.findings == ()
    assert sum(one.nbytes for one in recording.moves if one.source == queue.device) == 1 << 20
    assert {one.source for one in recording.moves} == {queue.device, None}


def test_a_copy_on_the_device_moves_nothing_to_the_host(context, field, queue, recording):
    with MemHandle.create_buffer(context, SIZE) as other:
        filled = cml.enqueue_fill(queue, field, np.int32(1))
        cml.enqueue_copy(queue, other, field, wait_for=filled).wait()
        assert cml.residency(other).places == {queue.device: SIZE}
    assert recording.moves == ()


# -- findings ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs_two_devices
def test_ping_pong_is_found_once(field, queue, queue2, kernel, recording):
    done = cml.enqueue_fill(queue, field, np.int32(1))
    for number in range(10):
        where = (queue2, queue)[number % 2]
        done = cml.enqueue_kernel(where, kernel("inc"), (8,), None, InOut(field), wait_for=done)
    done.wait()
    (finding,) = recording.findings
    assert (finding.kind, finding.label) == ("ping_pong", "field")
    assert __file__ in finding.site
    assert "to and fro" in str(finding)


@pytest.mark.needs_two_devices
def test_there_and_back_once_is_no_ping_pong(field, queue, queue2, kernel, recording):
    done = cml.enqueue_fill(queue, field, np.int32(1))
    for where in (queue2, queue):
        done = cml.enqueue_kernel(where, kernel("inc"), (8,), None, InOut(field), wait_for=done)
    done.wait()
    assert recording.findings == ()


def test_a_migration_to_where_it_is_is_needless(field, queue, queue2, recording):
    done = cml.enqueue_fill(queue, field, np.int32(1))
    for _ in range(2):
        done = Migration(queue, field, wait_for=done)
    done.wait()
    assert {one.kind for one in recording.findings} == {"needless_migration"}


@pytest.mark.unordered("it reads undefined content")
def test_reading_what_a_migration_left_undefined_is_found(field, queue, queue2, kernel, recording):
    filled = cml.enqueue_fill(queue, field, np.int32(1))
    moved = Migration(queue2, field, UNDEFINED, wait_for=filled)
    assert cml.residency(field).undefined_bytes == SIZE
    assert cml.residency(field).places == {}
    assert "undefined" in str(cml.residency(field))
    cml.enqueue_kernel(queue2, kernel("inc"), (8,), None, In(field, 0, 256), wait_for=moved).wait()
    (finding,) = recording.findings
    assert finding.kind == "undefined_read"
    assert finding.text.startswith("256 of the bytes")


def test_writing_it_first_is_right(field, queue, queue2, kernel, recording):
    moved = Migration(queue2, field, UNDEFINED)
    filled = cml.enqueue_fill(queue2, field, np.int32(1), wait_for=moved)
    cml.enqueue_kernel(queue2, kernel("inc"), (8,), None, In(field), wait_for=filled).wait()
    assert cml.residency(field).undefined_bytes == 0
    assert recording.findings == ()


# -- the recorder alone ------------------------------------------------------------------------------------------------


def command(kind: str, place: str, start: int, stop: int, *, reads=False, writes=False, undefined=False) -> Command:
    access = Access(1, start, stop, reads=reads, writes=writes, label="x", size=32)
    return Command(kind, place, accesses=(access,), undefined=undefined, site="here:1")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enqueue_kernel", "migrate", "undefined"]),
            st.sampled_from("ABC"),
            st.integers(0, 31),
            st.integers(1, 32),
            st.booleans(),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_segments_say_what_single_bytes_would(steps):
    recorder, model, undefined, moved = Recorder(), [set() for _ in range(32)], [False] * 32, 0
    for kind, place, start, length, reads, writes in steps:
        stop = min(start + length, 32)
        if kind == "undefined":
            recorder.after(command("migrate", place, start, stop, writes=True, undefined=True))
        else:
            migrates = kind == "migrate"
            recorder.after(command(kind, place, start, stop, reads=reads or migrates, writes=writes or migrates))
        for byte in range(start, stop):
            if kind == "undefined":
                model[byte], undefined[byte] = {place}, True
                continue
            if reads or kind == "migrate":
                moved += bool(model[byte]) and place not in model[byte] and not undefined[byte]
                model[byte] = model[byte] | {place}
            if writes and kind != "migrate":
                model[byte], undefined[byte] = {place}, False
    report = recorder.report(1, "x", 32)
    assert report.undefined_bytes == sum(undefined)
    for place in "ABC":
        valid = sum(place in places and not lost for places, lost in zip(model, undefined, strict=True))
        assert report.places.get(place, 0) == valid
    assert sum(one.nbytes for one in report.moves) == moved


def test_an_object_that_is_gone_is_forgotten_and_its_moves_are_kept():
    recorder = Recorder()
    recorder.after(command("enqueue_kernel", "A", 0, 32, writes=True))
    recorder.after(command("enqueue_kernel", "B", 0, 32, reads=True))
    recorder.host(Released(1))
    assert recorder.report(1, "x", 32).places == {}
    assert str(recorder.moves()[0]) == "A -> B: 32 bytes, 1 x implicit"


def test_threads_may_record_at_once():
    recorder = Recorder()

    def work(place: str) -> None:
        for start in range(1000):
            recorder.after(command("enqueue_kernel", place, start % 32, start % 32 + 1, reads=True, writes=True))

    threads = [threading.Thread(target=work, args=(place,)) for place in "ABCD"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(recorder.report(1, "x", 32).places.values()) == 32


@pytest.mark.parametrize("wrong", [None, "x", 3, []])
def test_what_is_no_memory_object_has_no_residency(wrong):
    with cml.record_residency(), pytest.raises(TypeError, match="residency takes a memory object, not"):
        cml.residency(wrong)
