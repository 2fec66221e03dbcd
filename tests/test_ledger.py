"""The ledger, without a device; then what `live` and `statistics` read from it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import InOut, MapFlags, Mapping, MemFlags, MemHandle, _journal, _ledger
from clmemlife._ledger import Entry, MapEntry, Root


@pytest.fixture(autouse=True)
def fresh(monkeypatch, request):
    """A ledger of its own for the tests without a device."""
    if "context" in request.fixturenames:
        return
    for name in ("_roots", "_entries", "_open_maps", "_by_address"):
        monkeypatch.setattr(_ledger, name, {})
    monkeypatch.setattr(_ledger, "_removed", type(_ledger._removed)())
    monkeypatch.setattr(_ledger, "counters", _ledger._Counters())
    monkeypatch.setattr(_ledger, "keeper", None)  # it would ask the driver


def make_entry(root: Root, int_ptr: int | None = None, size: int | None = None, offset: int = 0) -> Entry:
    return Entry(
        root.int_ptr if int_ptr is None else int_ptr, "buffer", root.size if size is None else size,
        "create_buffer", root.label, root.site, root, offset, lambda: None,
    )  # fmt: skip


def make_map(root: Root, *, writes: bool = False) -> MapEntry:
    return MapEntry(root, 0, root.size, None, (0, 0), writes, "app.py:3", lambda: None)


def new_root(int_ptr: int = 0x1000, size: int = 64, label: str | None = "field") -> Root:
    return _ledger.root_for(int_ptr, size, label, "app.py:1")


def test_ledger_and_journal_need_no_pyopencl():
    code = "import sys, clmemlife._ledger, clmemlife._journal; assert 'pyopencl' not in sys.modules, 'loaded'"
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], check=True)


def test_an_entry_is_listed_from_add_to_remove():
    entry = make_entry(new_root())
    assert _ledger.entries() == ()
    _ledger.add(entry)
    assert _ledger.entries() == (entry,)
    _ledger.remove(entry)
    assert _ledger.entries() == ()


def test_entries_are_listed_oldest_first():
    made = [make_entry(new_root(0x1000 * n)) for n in range(1, 5)]
    for entry in made:
        _ledger.add(entry)
    assert list(_ledger.entries()) == made


def test_removing_twice_is_a_no_op():
    entry = make_entry(new_root())
    other = make_entry(new_root(0x2000))
    _ledger.add(entry)
    _ledger.add(other)
    _ledger.remove(entry)
    _ledger.remove(entry)
    assert _ledger.entries() == (other,)
    assert _ledger.counters.current_count == 1
    assert _ledger.counters.current_bytes == 64


def test_numbers_are_never_used_again_addresses_are():
    first = make_entry(new_root(0x1000))
    _ledger.add(first)
    _ledger.remove(first)
    _ledger.entries()
    second = make_entry(new_root(0x1000, 32))
    assert second.root is not first.root
    assert second.root.number > first.root.number
    assert second.number > first.number
    assert second.root.size == 32


def test_handles_of_one_object_share_its_root():
    first = make_entry(new_root())
    _ledger.add(first)
    assert new_root(label="other name") is first.root
    assert _ledger.find_root(0x1000) is first.root
    assert _ledger.find_root(0x2000) is None


def test_the_root_lives_until_its_last_user():
    root = new_root()
    first, second, child = make_entry(root), make_entry(root), make_entry(root, 0x1040, 16, 32)
    for entry in (first, second, child):
        _ledger.add(entry)
    for entry in (first, second):
        _ledger.remove(entry)
        assert _ledger.find_root(0x1000) is root
    _ledger.remove(child)
    assert _ledger.find_root(0x1000) is None


def test_the_owner_of_an_address_is_the_oldest_live_handle_of_that_object():
    root = new_root()
    first, second, child = make_entry(root), make_entry(root), make_entry(root, 0x1040, 16, 32)
    assert _ledger.owner_of(0x1000) is None
    for entry in (first, second, child):
        _ledger.add(entry)
    assert _ledger.owner_of(0x1000) is first
    assert _ledger.owner_of(0x1040) is child
    _ledger.remove(first)
    assert _ledger.owner_of(0x1000) is second
    _ledger.remove(second)
    assert _ledger.owner_of(0x1000) is None


def test_bytes_count_each_object_once_and_counts_count_handles():
    root = new_root()
    first, child = make_entry(root), make_entry(root, 0x1040, 16, 32)
    other = make_entry(new_root(0x2000, 100))
    counters = _ledger.counters
    for entry in (first, child, other):
        _ledger.add(entry)
    assert (counters.current_bytes, counters.peak_bytes, counters.total_bytes) == (164, 164, 164)
    assert (counters.current_count, counters.peak_count, counters.total_count) == (3, 3, 3)
    _ledger.remove(other)
    _ledger.remove(child)
    _ledger.entries()
    assert (counters.current_bytes, counters.peak_bytes, counters.total_bytes) == (64, 164, 164)
    _ledger.remove(first)
    _ledger.add(make_entry(new_root(0x3000, 10)))
    assert (counters.current_bytes, counters.peak_bytes, counters.total_bytes) == (10, 164, 174)
    assert (counters.current_count, counters.peak_count, counters.total_count) == (1, 3, 4)


def test_a_map_keeps_its_root_and_stands_in_its_list():
    root = new_root()
    entry = make_entry(root)
    _ledger.add(entry)
    mapped = make_map(root)
    _ledger.open_map(mapped, lambda: None)
    assert root.maps == (mapped,)
    assert _ledger.open_maps() == (mapped,)
    _ledger.remove(entry)
    assert _ledger.entries() == ()
    assert _ledger.find_root(0x1000) is root
    _ledger.remove(mapped)
    assert mapped.closed
    assert (root.maps, _ledger.open_maps(), _ledger.find_root(0x1000)) == ((), (), None)


def test_a_map_that_the_check_refuses_is_not_entered():
    root = new_root()

    def refuse():
        raise ValueError("conflict")

    with pytest.raises(ValueError, match="conflict"):
        _ledger.open_map(make_map(root), refuse)
    assert (root.maps, root.users, _ledger.open_maps()) == ((), 0, ())


def test_a_removal_while_another_thread_holds_the_lock_does_not_wait_and_is_done_later():
    entry = make_entry(new_root())
    _ledger.add(entry)
    held, free = threading.Event(), threading.Event()

    def hold():
        with _ledger._lock:
            held.set()
            free.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    _ledger.remove(entry)  # would block here for ten seconds
    assert _ledger._entries == {entry.number: entry}
    free.set()
    holder.join(10)
    assert _ledger.entries() == ()
    assert _ledger.counters.current_count == 0


class Interrupted(int):
    """An address at whose use in a table something else happens first, as a collection might."""

    def __hash__(self) -> int:
        if self.interrupt:
            interrupt, self.interrupt = self.interrupt, None
            interrupt()
        return int.__hash__(self)


def test_a_handle_collected_in_the_middle_of_adding_another_does_not_disturb_the_tables():
    root = new_root()
    dying, entry = make_entry(root), make_entry(root)
    _ledger.add(dying)
    entry.int_ptr = Interrupted(0x1000)
    entry.int_ptr.interrupt = lambda: _ledger.remove(dying)
    _ledger.add(entry)
    assert entry.int_ptr.interrupt is None
    assert _ledger.entries() == (entry,)
    assert _ledger.owner_of(0x1000) is entry
    assert _ledger.counters.current_count == 1
    _ledger.remove(entry)
    assert (_ledger.entries(), _ledger._by_address, _ledger._roots) == ((), {}, {})


def test_a_map_collected_in_the_middle_of_entering_another_does_not_disturb_the_tables():
    root = new_root()
    dying, mapped = make_map(root), make_map(root)
    _ledger.open_map(dying, lambda: None)
    _ledger.open_map(mapped, lambda: _ledger.remove(dying))
    assert _ledger.open_maps() == (mapped,)
    assert root.maps == (mapped,)
    _ledger.remove(mapped)
    assert (root.maps, _ledger.open_maps(), _ledger._roots) == ((), (), {})
    assert _ledger.counters.current_bytes == 0


def test_an_address_used_again_before_its_removal_was_done_gets_a_new_root():
    entry = make_entry(new_root(0x1000, 64))
    _ledger.add(entry)
    held, free = threading.Event(), threading.Event()

    def hold():
        with _ledger._lock:
            held.set()
            free.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    _ledger.remove(entry)
    free.set()
    holder.join(10)
    again = new_root(0x1000, 32)
    assert again is not entry.root
    assert again.size == 32


def test_listeners_are_told_when_an_object_has_no_user_left(monkeypatch):
    told = []
    monkeypatch.setattr(_journal, "listeners", (object(),))
    monkeypatch.setattr(_journal, "host", told.append)
    root = new_root()
    first, second = make_entry(root), make_entry(root)
    _ledger.add(first)
    _ledger.add(second)
    _ledger.remove(first)
    assert told == []
    _ledger.remove(second)
    assert told == [_journal.Released(root.number)]


class Keeper:
    """Keeps what it is given as alive."""

    def __init__(self):
        self.roots = {}

    def keep(self, root, *, alive):
        if alive:
            self.roots[root.int_ptr] = root
        return self.roots.get(root.int_ptr) is root

    def find(self, int_ptr):
        return self.roots.get(int_ptr)


@pytest.fixture
def keeper(monkeypatch):
    monkeypatch.setattr(_ledger, "keeper", Keeper())
    return _ledger.keeper


@pytest.fixture
def told(monkeypatch):
    """What listeners hear."""
    records = []
    monkeypatch.setattr(_journal, "listeners", (object(),))
    monkeypatch.setattr(_journal, "host", records.append)
    return records


def test_an_object_that_may_outlive_its_last_user_is_kept_and_comes_back_as_itself(keeper, told):
    entry = make_entry(new_root())
    _ledger.add(entry)
    _ledger.remove(entry)
    assert told == []
    assert new_root() is entry.root
    again = make_entry(new_root())
    _ledger.add(again)
    _ledger.remove(again)
    assert (told, again.root.users) == ([], 0)


def test_nothing_is_kept_while_nobody_listens(keeper, monkeypatch):
    monkeypatch.setattr(_journal, "listeners", ())  # not even the checker that the environment asks for
    entry = make_entry(new_root())
    _ledger.add(entry)
    _ledger.remove(entry)
    assert keeper.roots == {}
    assert new_root() is not entry.root


def test_what_is_struck_out_later_is_kept_while_its_reference_is_still_there(keeper, told):
    entry = make_entry(new_root())
    _ledger.add(entry)
    held, free = threading.Event(), threading.Event()

    def hold():
        with _ledger._lock:
            held.set()
            free.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    _ledger.remove(entry)
    assert keeper.roots == {0x1000: entry.root}
    free.set()
    holder.join(10)
    assert new_root() is entry.root
    assert told == []


def test_what_cannot_be_kept_is_told_as_gone(told):
    entry = make_entry(new_root())
    _ledger.add(entry)
    _ledger.remove(entry)
    assert told == [_journal.Released(entry.root.number)]


def test_sums_are_right_after_many_threads_added_and_removed():
    barrier = threading.Barrier(16)

    def work(thread: int) -> None:
        barrier.wait(10)
        for n in range(200):
            entry = make_entry(_ledger.root_for((thread << 16) + n + 1, 8, None, "app.py:1"))
            _ledger.add(entry)
            _ledger.remove(entry)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert _ledger.entries() == ()
    counters = _ledger.counters
    assert (counters.current_count, counters.current_bytes) == (0, 0)
    assert (counters.total_count, counters.total_bytes) == (16 * 200, 16 * 200 * 8)
    assert not _ledger._roots
    assert not _ledger._by_address


# live and statistics, with a device


def test_live_lists_each_handle_with_where_and_how(context):
    step = max(device.mem_base_addr_align // 8 for device in context.devices)
    assert cml.live() == ()
    with (
        MemHandle.create_buffer(context, 4 * step, label="field") as root,
        root.sub_buffer(step, step, label="part") as child,
        MemHandle.retain(root) as shared,
    ):
        one, two, three = cml.live()
        assert (one.label, one.size, one.site, one.kind, one.how) == (
            "field", 4 * step, root.site, "buffer", "create_buffer",
        )  # fmt: skip
        assert (one.offset, one.maps, one.parent) == (0, 0, None)
        assert (two.label, two.kind, two.how, two.offset, two.parent) == (
            "part", "sub-buffer", "sub_buffer", step, "field",
        )  # fmt: skip
        assert (two.site, three.site) == (child.site, shared.site)
        assert three.how == "retain"
        assert one.age >= two.age >= three.age >= 0
    assert cml.live() == ()


def test_a_live_record_is_frozen(context):
    with MemHandle.create_buffer(context, 64):
        record = cml.live()[0]
    assert record.size == 64
    with pytest.raises(AttributeError):
        record.size = 65


def test_an_open_map_is_counted_and_outlives_its_handle_in_the_list(context, queue):
    handle = MemHandle.create_buffer(context, 64, label="field")
    mapping = Mapping(queue, handle, MapFlags.READ, offset=16, size=16)
    assert cml.live()[0].maps == 1
    handle.release()
    (record,) = cml.live()
    assert (record.kind, record.label, record.size, record.offset) == ("map", "field", 16, 16)
    mapping.unmap()
    assert cml.live() == ()


def test_an_image_is_listed_as_one(context):
    if not any(device.image_support for device in context.devices):
        pytest.skip("no device with images")
    rgba = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    with MemHandle.create_image(context, (8, 4), rgba):
        assert (cml.live()[0].kind, cml.live()[0].how) == ("image", "create_image")


def test_statistics_sum_what_is_alive_and_remember_the_peak(context):
    before = cml.statistics()
    with MemHandle.create_buffer(context, 1000):
        with MemHandle.create_buffer(context, 500):
            now = cml.statistics()
            assert now.current_bytes - before.current_bytes == 1500
            assert now.current_count - before.current_count == 2
        assert cml.statistics().current_bytes - before.current_bytes == 1000
    after = cml.statistics()
    assert after.current_bytes == before.current_bytes
    assert after.total_bytes - before.total_bytes == 1500
    assert after.total_count - before.total_count == 2
    assert after.peak_bytes >= before.current_bytes + 1500
    assert after.peak_count >= 2
    with pytest.raises(AttributeError):
        after.peak_bytes = 0


def test_what_was_released_but_is_still_used_by_a_command_is_pending(context, queue, kernel, gate, ints):
    step = max(device.mem_base_addr_align // 8 for device in context.devices)
    assert cml.statistics().pending_bytes == 0
    handle = MemHandle.create_buffer(context, 4 * step)
    part = handle.sub_buffer(step, step)
    done = cml.enqueue_kernel(queue, kernel("inc"), (step // 4,), None, InOut(part), wait_for=gate)
    again = cml.enqueue_fill(queue, handle, np.int32(0), wait_for=gate)
    assert cml.statistics().pending_bytes == 0
    part.release()
    handle.release()
    now = cml.statistics()
    assert (now.pending_bytes, now.current_bytes) == (4 * step, 0)
    gate.set_status(cl.command_execution_status.COMPLETE)
    cl.wait_for_events([done, again])
    assert cml.statistics().pending_bytes == 0


def test_handles_dropped_in_a_cycle_leave_the_sums(context):
    before = cml.statistics()
    cycle: list = [MemHandle.create_buffer(context, 64, MemFlags.READ_ONLY)]
    cycle.append(cycle)
    assert cml.statistics().current_count == before.current_count + 1
    with pytest.warns(cml.LeakWarning):
        del cycle
        gc.collect()
    after = cml.statistics()
    assert (after.current_count, after.current_bytes) == (before.current_count, before.current_bytes)
