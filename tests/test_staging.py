"""Pinned memory is lent to one user at a time, and what goes through it arrives: copies across, staged migration."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clmemlife as cml
from clmemlife import (
    CallError,
    ContextMismatchError,
    DependencyError,
    In,
    InOut,
    MapConflictError,
    MapFlags,
    Mapping,
    MemFlags,
    MemHandle,
    Migration,
    MigrationFlags,
    _across,
    _block,
    _limits,
    _opencl,
    _staging,
)

sys.path.insert(0, str(Path(__file__).parent))

from fake_driver import error_for

MIB = 1 << 20
RGBA = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)


@pytest.fixture
def pool(context):
    """The context's pinned memory, empty before and after."""
    with cml.staging(context) as found:
        found.trim()
        yield found
    assert found.idle_bytes == 0


@pytest.fixture
def no_staging_left(context, wait):
    yield
    gc.collect()
    cml.staging(context).trim()

    def none_left() -> bool:
        return cml.statistics().staging_bytes == 0

    wait(none_left, "all pinned memory is given back")


pytestmark = pytest.mark.usefixtures("no_staging_left")


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def content(queue: cl.CommandQueue, handle: MemHandle, wait_for=None) -> np.ndarray:
    found = np.empty(handle.size, np.uint8)
    cml.enqueue_copy(queue, found, handle, wait_for=wait_for)
    return found


def address(block) -> int:
    return block.address


# -- lending -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 40))
def test_blocks_have_at_most_a_quarter_more_than_is_asked_for(nbytes):
    size = _block.size_class(nbytes)
    assert nbytes <= size <= max(1 << 16, nbytes * 5 // 4)
    assert _block.size_class(size) == size


def test_a_block_that_is_given_back_is_lent_again(pool):
    block = pool._lend(MIB)
    where = address(block)
    pool._give_back(block)
    del block
    again = pool._lend(MIB - 1)
    assert address(again) == where
    pool._give_back(again)


def test_a_block_that_is_lent_again_is_a_new_object_to_the_checker(pool):
    block = pool._lend(MIB)
    before = block.root.number
    pool._give_back(block)
    assert pool._lend(MIB).root.number != before
    pool.trim()


def test_two_users_get_two_blocks(pool):
    one, two = pool._lend(MIB), pool._lend(MIB)
    assert address(one) != address(two)
    for block in (one, two):
        pool._give_back(block)


def test_a_block_is_not_lent_while_commands_use_it(pool, gate, context):
    block = pool._lend(MIB)
    where = address(block)
    pool._give_back(block, [gate])
    other = pool._lend(MIB)
    assert address(other) != where
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert address(pool._lend(MIB)) == where
    pool._give_back(other)


def test_a_block_whose_command_failed_is_not_lent_again(pool, gate):
    block = pool._lend(MIB)
    root = block.root
    pool._give_back(block, [gate])
    gate.set_status(-1)
    del block
    other = pool._lend(MIB)
    assert pool.idle_bytes == 0
    assert other.root is not root
    pool._give_back(other)


def test_a_block_is_not_lent_while_an_array_over_it_lives(pool):
    block = pool._lend(MIB)
    kept = block.array[10:20].view(np.int16)
    where = address(block)
    pool._give_back(block)
    del block
    other = pool._lend(MIB)
    assert address(other) != where
    del kept
    assert address(pool._lend(MIB)) == where
    pool._give_back(other)


def test_an_array_over_a_block_stays_valid_after_everything_else_is_gone(pool):
    block = pool._lend(MIB)
    block.array[:] = 7
    kept = block.array[5:]
    pool._give_back(block)
    del block
    pool.trim()
    gc.collect()
    assert cml.statistics().staging_bytes == MIB
    assert (kept == 7).all()
    del kept
    assert cml.statistics().staging_bytes == 0


def test_what_is_kept_for_later_is_bounded(pool):
    pool.idle_bytes_limit = 3 * MIB
    blocks = [pool._lend(MIB) for _ in range(5)]
    assert cml.statistics().staging_bytes == 5 * MIB
    for block in blocks:
        pool._give_back(block)
    blocks.clear()
    del block
    assert pool.idle_bytes == cml.statistics().staging_bytes == 3 * MIB
    pool.idle_bytes_limit = _staging.IDLE_BYTES


def test_leaving_the_scope_releases_what_is_idle(context):
    with cml.staging(context) as pool:
        pool._give_back(pool._lend(MIB))
        assert pool.idle_bytes >= MIB
    assert cml.staging(context) is pool
    assert pool.idle_bytes == cml.statistics().staging_bytes == 0


def test_pinned_memory_is_accounted_for_and_is_nobody_s_leak(pool):
    block = pool._lend(MIB)
    assert cml.statistics().staging_bytes == MIB
    assert cml.statistics().current_bytes == 0
    assert cml.live() == ()
    pool._give_back(block)


def test_threads_never_share_a_block(pool):
    clashes = []

    def work(number: int) -> None:
        for round_ in range(200):
            block = pool._lend(1 << 16)
            block.array[:] = number
            if not (block.array == number).all():
                clashes.append((number, round_))
            pool._give_back(block)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert pool.idle_bytes <= 6 << 16


def test_many_contexts_do_not_pile_up(devices):
    contexts = [cl.Context(devices[:1]) for _ in range(_staging._POOLS + 3)]
    for context in contexts:
        pool = cml.staging(context)
        pool._give_back(pool._lend(1 << 16))
    assert cml.statistics().staging_bytes <= _staging._POOLS << 16
    for context in contexts:
        cml.staging(context).trim()


def test_exit_is_silent_with_blocks_idle_lent_and_looked_at(run):
    out = run("""
        pool = cml.staging(context)
        lent = pool._lend(1 << 20)
        view = pool._lend(1 << 20).array[3:]
        pool._give_back(pool._lend(1 << 20))
        print("end", pool.idle_bytes)
    """)
    assert out == f"end {MIB}\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
def test_a_forked_child_leaves_the_parent_s_blocks_alone(run):
    out = run("""
        pool = cml.staging(context)
        view = pool._lend(1 << 20).array[3:]
        view[:] = 5
        pool._give_back(pool._lend(1 << 20))
        child = os.fork()
        if not child:
            del view, pool
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (view == 5).all()
        print(cml.staging(context).idle_bytes)
    """)
    assert out == f"{MIB}\n"


@pytest.mark.parametrize("when", ["trim", "drop", "exit"])
def test_a_refused_unmap_keeps_the_memory_and_says_so(run_process, when):
    done = run_process(f"""
        from clmemlife import _opencl
        pool = cml.staging(context)
        pool._give_back(pool._lend(1 << 20))
        view = pool._lend(2 << 20).array[3:]
        def refuse(*arguments):
            raise cl.LogicError("refused")
        _opencl.enqueue_unmap_mem_object = refuse
        if {when!r} == "trim":
            pool.trim()
            assert cml.statistics().staging_bytes == 3 << 20
        elif {when!r} == "drop":
            del view
            assert cml.statistics().staging_bytes == 3 << 20
        print("end")
    """)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert done.stderr.count("CleanupWarning: 1048576 bytes of pinned memory") == 1
    assert done.stderr.count("CleanupWarning: 2097152 bytes of pinned memory") == (when == "drop")


def test_what_is_idle_can_be_let_go_of_by_whoever_finds_no_memory(context, pool, gate):
    assert _staging.trim_idle(context) == 0
    view = pool._lend(MIB).array[:1]
    one, two, three = (pool._lend(MIB) for _ in range(3))
    pool._give_back(one)
    pool._give_back(two, [gate])
    del one, two
    assert _staging.trim_idle(context) == 2 * MIB
    assert cml.statistics().staging_bytes == 2 * MIB  # what is lent, and what is looked at
    pool._give_back(three)
    del three, view


def test_letting_go_makes_no_pool(devices):
    alone = cl.Context(devices[:1])
    assert _staging.trim_idle(alone) == 0
    assert alone.int_ptr not in _staging._pools


# -- the checker sees the blocks ---------------------------------------------------------------------------------------


@pytest.mark.unordered("the event is left out")
def test_two_transfers_through_one_block_without_an_event_between_them_are_found(context, queue, queue2, pool):
    block = pool._lend(4096)
    with (
        MemHandle.create_buffer(context, 4096) as one,
        MemHandle.create_buffer(context, 4096) as two,
        cml.check_hazards("record") as checker,
    ):
        events = []
        for where, handle in ((queue, one), (queue2, two)):
            mem, use = _across.target(where, handle, reads=True, writes=False)
            events.append(_staging.transfer(where, mem, use, block, 4096, 0, None, to_device=False))
    assert [finding.label for finding in checker.findings] == [_block.LABEL]
    pool._give_back(block, events)


@pytest.mark.unordered("the event is left out")
def test_a_copy_across_that_forgot_to_wait_for_its_blocks_would_be_found(context, queue, queue2, monkeypatch):
    real = _staging.transfer

    def careless(*args, to_device):
        return real(*args[:-1], args[-1] if to_device else None, to_device=to_device)

    monkeypatch.setattr(_across, "transfer", careless)
    with (
        MemHandle.create_buffer(context, MIB) as one,
        MemHandle.create_buffer(context, MIB) as two,
        cml.check_hazards("record") as checker,
    ):
        cml.enqueue_copy_across(queue, queue2, two, one, chunk_bytes=MIB // 16).wait()
    assert {finding.label for finding in checker.findings} == {_block.LABEL}


@pytest.mark.unordered("the event is left out")
def test_taking_new_pinned_memory_orders_nothing(context, queue, queue2, pool):
    with MemHandle.create_buffer(context, 4096) as field, cml.check_hazards("record") as checker:
        cml.enqueue_fill(queue, field, np.int32(1))
        pool._give_back(pool._lend(MIB))
        cml.enqueue_fill(queue2, field, np.int32(2))
    assert [finding.label for finding in checker.findings] == [None]


# -- copies across -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=st.integers(1, 5000), other=st.integers(1, 5000))
def test_copies_across_are_numpy_s_copies(context, devices, data, size, other):
    queues = [
        cl.CommandQueue(context, device, data.draw(st.sampled_from([0, 1]), label="out of order"))
        for device in (devices[0], devices[-1])
    ]
    source, expected = noise(size), noise(other, 1)
    src_offset = data.draw(st.integers(0, size), label="src_offset")
    dst_offset = data.draw(st.integers(0, other), label="dst_offset")
    most = min(size - src_offset, other - dst_offset)
    count = data.draw(st.none() | st.integers(0, most), label="byte_count")
    chunk = data.draw(st.none() | st.integers(1, 6000), label="chunk_bytes")
    with (
        cml.check_hazards(),
        MemHandle.create_buffer(context, size) as src,
        MemHandle.create_buffer(context, other) as dest,
    ):
        filled = [
            cml.enqueue_copy(queues[0], src, source, is_blocking=False),
            cml.enqueue_copy(queues[1], dest, expected, is_blocking=False),
        ]
        done = cml.enqueue_copy_across(
            *queues, dest, src, wait_for=filled, chunk_bytes=chunk, src_offset=src_offset, dst_offset=dst_offset,
            byte_count=count,
        )  # fmt: skip
        count = most if count is None else count
        want = expected.copy()
        want[dst_offset : dst_offset + count] = source[src_offset : src_offset + count]
        assert (content(queues[1], dest, done) == want).all()
        assert (content(queues[0], src, done) == source).all()


@pytest.fixture
def shared_memory(devices):
    if not all(device.host_unified_memory for device in devices):
        pytest.skip("these devices have memory of their own")


def test_without_chunk_bytes_devices_that_share_memory_copy_directly(context, queue, queue2, shared_memory):
    with MemHandle.create_buffer(context, MIB) as one, MemHandle.create_buffer(context, MIB) as two:
        data = noise(MIB)
        written = cml.enqueue_copy(queue, one, data)
        before = cml.statistics().staging_bytes
        done = cml.enqueue_copy_across(queue, queue2, two, one, wait_for=written)
        assert (content(queue2, two, done) == data).all()
        assert cml.statistics().staging_bytes == before


def test_a_copy_across_waits_for_its_wait_list_and_does_not_block(context, queue, queue2, gate):
    with MemHandle.create_buffer(context, MIB) as one, MemHandle.create_buffer(context, MIB) as two:
        done = cml.enqueue_copy_across(queue, queue2, two, one, wait_for=gate, chunk_bytes=MIB // 8)
        assert done.command_execution_status > 0
        gate.set_status(cl.command_execution_status.COMPLETE)
        done.wait()


def test_memory_stays_with_the_chunks_in_flight(context, queue, queue2, pool):
    with MemHandle.create_buffer(context, 8 * MIB) as one, MemHandle.create_buffer(context, 8 * MIB) as two:
        cml.enqueue_copy_across(queue, queue2, two, one, chunk_bytes=1 << 16).wait()
        assert cml.statistics().staging_bytes == 4 << 16


def test_if_a_chunk_fails_so_does_the_copy(context, queue, queue2, gate):
    out_of_order = [
        cl.CommandQueue(context, one.device, cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
        for one in (queue, queue2)
    ]
    with MemHandle.create_buffer(context, MIB) as one, MemHandle.create_buffer(context, MIB) as two:
        written = cml.enqueue_copy(queue2, two, noise(MIB))
        done = cml.enqueue_copy_across(*out_of_order, two, one, wait_for=[gate, written], chunk_bytes=MIB // 8)
        gate.set_status(-5)
        with pytest.raises(cl.Error):
            done.wait()
        assert (content(queue2, two) == noise(MIB)).all()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"chunk_bytes": 0}, ValueError),
        ({"chunk_bytes": 16, "byte_count": 5000}, ValueError),
        ({"chunk_bytes": 16, "src_offset": -1}, ValueError),
        ({"chunk_bytes": 16, "dst_offset": 5000}, ValueError),
        ({"chunk_bytes": "16"}, TypeError),
    ],
)
def test_ranges_that_do_not_fit_are_refused(context, queue, queue2, wrong, error):
    with (
        MemHandle.create_buffer(context, 4096) as one,
        MemHandle.create_buffer(context, 4096) as two,
        pytest.raises(error),
    ):
        cml.enqueue_copy_across(queue, queue2, two, one, **wrong)


def test_what_cannot_be_copied_across_is_refused(context, devices, queue, queue2):
    elsewhere = cl.CommandQueue(cl.Context(devices[:1]))
    with MemHandle.create_buffer(context, 4096) as one, MemHandle.create_image(context, (4, 4), RGBA) as image:
        with pytest.raises(TypeError, match="between buffers"):
            cml.enqueue_copy_across(queue, queue2, one, np.zeros(4096, np.uint8))
        with pytest.raises(TypeError, match="between buffers"):
            cml.enqueue_copy_across(queue, queue2, one, image)
        with pytest.raises(ContextMismatchError):
            cml.enqueue_copy_across(queue, elsewhere, one, one)
        with pytest.raises(ValueError, match="overlap"):
            cml.enqueue_copy_across(queue, queue2, one, one, chunk_bytes=64, byte_count=100, dst_offset=50)
    with (
        MemHandle.create_buffer(context, 4096) as one,
        MemHandle.create_buffer(context, 4096, MemFlags.READ_WRITE | MemFlags.HOST_READ_ONLY) as two,
        pytest.raises(ValueError, match="HOST_READ_ONLY"),
    ):
        cml.enqueue_copy_across(queue, queue2, two, one, chunk_bytes=64)


# -- staged migration --------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful(monkeypatch):
    """A driver that makes use of its right to lose content that is declared undefined (PoCL keeps it)."""
    real = _opencl.enqueue_migrate_mem_objects

    def migrate(queue, mems, flags, waits):
        event = real(queue, mems, flags, waits)
        if flags & MigrationFlags.CONTENT_UNDEFINED.value:
            for mem in mems:
                if mem.type == cl.mem_object_type.BUFFER:
                    event = cl.enqueue_fill_buffer(queue, mem, np.uint8(0xEE), 0, mem.size, wait_for=[event])
                else:
                    region = (mem.width, mem.height or 1, mem.depth or 1)
                    colour = np.full(4, 0xEE, np.uint32)
                    event = cl.enqueue_fill_image(queue, mem, colour, (0, 0, 0), region, wait_for=[event])
        return event

    monkeypatch.setattr(_opencl, "enqueue_migrate_mem_objects", migrate)


@pytest.mark.needs_two_devices
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=4),
    parts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4000)), max_size=3),
    there_and_back=st.booleans(),
)
def test_staged_migration_changes_no_byte(context, devices, forgetful, has_fault, sizes, parts, there_and_back):
    one, two = (cl.CommandQueue(context, device) for device in (devices[0], devices[-1]))
    step = max(device.mem_base_addr_align for device in devices) // 8
    if has_fault("overlapping sub-buffers"):
        parts = [(8 * place, size) for place, size in {number // 8: size for number, size in parts}.items()]
    with cml.check_hazards():
        handles = [MemHandle.create_buffer(context, size) for size in sizes]
        data = [noise(size, number) for number, size in enumerate(sizes)]
        filled = [cml.enqueue_copy(one, *pair, is_blocking=False) for pair in zip(handles, data, strict=True)]
        whole = MemHandle.create_buffer(context, 64 * step + 4000)
        fields = [whole.sub_buffer(number * step, size) for number, size in parts]
        data.append(noise(whole.size, 99))
        filled.append(cml.enqueue_copy(one, whole, data[-1], is_blocking=False))
        moved = Migration(two, [*handles, *fields], wait_for=filled, via="staged", source_queue=one)
        assert moved.via == "staged"
        if there_and_back:
            moved = moved.back()
            assert moved.via == "staged"
            assert moved.device == one.device
        for handle, want in zip([*handles, whole], data, strict=True):
            assert (content(two, handle, [moved, *filled]) == want).all()
        for handle in (*handles, *fields, whole):
            handle.release()


@pytest.mark.parametrize("flags", [MemFlags(0), MemFlags.HOST_NO_ACCESS, MemFlags.HOST_WRITE_ONLY])
def test_host_access_flags_do_not_hinder_staging(context, queue, queue2, kernel, flags):
    with (
        MemHandle.create_buffer(context, 4096, MemFlags.READ_WRITE | flags) as field,
        MemHandle.create_buffer(context, 4096) as seen,
        cml.check_hazards(),
    ):
        filled = cml.enqueue_fill(queue, field, np.int32(41))
        moved = Migration(queue2, field, wait_for=filled, via="staged", source_queue=queue)
        done = cml.enqueue_kernel(queue2, kernel("inc"), (1024,), None, InOut(field), wait_for=moved)
        copied = cml.enqueue_copy(queue2, seen, field, wait_for=done)
        assert (content(queue2, seen, copied).view(np.int32) == 42).all()


@pytest.mark.needs_two_devices
@pytest.mark.parametrize("shape", [(301, 77), (33, 5, 7), (129,)])
def test_images_are_staged_too(context, queue, queue2, forgetful, shape):
    pixels = noise(int(np.prod(shape)) * 4)
    origin, region = (0, 0, 0), (*shape, 1, 1)[:3]
    with MemHandle.create_image(context, shape, RGBA) as image, cml.check_hazards():
        written = cml.enqueue_copy(queue, image, pixels, origin=origin, region=region)
        moved = Migration(queue2, image, wait_for=written, via="staged", source_queue=queue)
        assert moved.via == "staged"
        found = np.empty_like(pixels)
        cml.enqueue_copy(queue2, found, image, origin=origin, region=region, wait_for=moved)
        assert (found == pixels).all()


@pytest.mark.parametrize("flags", [MigrationFlags.HOST, MigrationFlags.CONTENT_UNDEFINED])
def test_where_no_bytes_are_to_be_carried_the_driver_does_it(context, queue, queue2, flags):
    data = noise(4096)
    with MemHandle.create_buffer(context, 4096) as field, cml.check_hazards():
        written = cml.enqueue_copy(queue, field, data)
        moved = Migration(queue2, field, flags, wait_for=written, via="staged", source_queue=queue)
        assert moved.via == "driver"
        if flags is MigrationFlags.HOST:
            assert moved.device is None
            assert (content(queue, field, moved.back()) == data).all()


def test_staged_on_one_device_is_the_driver_s(context, queue):
    with MemHandle.create_buffer(context, 4096) as field:
        assert Migration(queue, field, via="staged", source_queue=queue).via == "driver"


def test_of_nothing_is_a_marker_that_carries_the_chain(queue, queue2, gate):
    moved = Migration(queue2, [], wait_for=gate, via="staged", source_queue=queue)
    assert moved.event.command_execution_status > 0
    gate.set_status(cl.command_execution_status.COMPLETE)
    moved.wait()


def test_staged_needs_a_queue_to_read_on(context, queue):
    with MemHandle.create_buffer(context, 4096) as field, pytest.raises(ValueError, match="source_queue"):
        Migration(queue, field, via="staged")


def test_auto_takes_the_driver_s_no_op_where_devices_share_memory(context, queue, queue2, shared_memory):
    with MemHandle.create_buffer(context, 4 * MIB) as field:
        assert Migration(queue2, field, via="auto", source_queue=queue).via == "driver"
        assert Migration(queue2, field, via="auto").via == "driver"


@pytest.mark.needs_two_devices
def test_auto_stages_between_devices_with_memory_of_their_own(context, queue, queue2, monkeypatch):
    monkeypatch.setattr(_across, "apart", lambda source_queue, queue: source_queue.device != queue.device)
    data = noise(4 * MIB)
    with MemHandle.create_buffer(context, 4 * MIB) as large, MemHandle.create_buffer(context, MIB * 2) as small:
        written = cml.enqueue_copy(queue, large, data)
        moved = Migration(queue2, large, via="auto", source_queue=queue, wait_for=written)
        assert moved.via == "staged"
        assert (content(queue2, large, moved) == data).all()
        assert moved.back().via == "staged"
        assert Migration(queue2, small, via="auto", source_queue=queue).via == "driver"
        assert Migration(queue, large, via="auto", source_queue=queue).via == "driver"
        queue.finish()


@pytest.mark.needs_two_devices
def test_auto_falls_back_to_the_driver_where_there_is_no_memory_to_stage(context, queue, queue2, monkeypatch):
    monkeypatch.setattr(_across, "apart", lambda source_queue, queue: source_queue.device != queue.device)
    data = noise(4 * MIB)
    with MemHandle.create_buffer(context, 4 * MIB) as field:
        written = cml.enqueue_copy(queue, field, data)

        def full(*_: object, **__: object) -> None:
            raise error_for("create_buffer", cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE)

        monkeypatch.setattr(_opencl, "create_buffer", full)
        moved = Migration(queue2, field, via="auto", source_queue=queue, wait_for=written)
        assert moved.via == "driver"
        with pytest.raises(cl.MemoryError):
            Migration(queue2, field, via="staged", source_queue=queue, wait_for=moved)
        monkeypatch.undo()
        assert (content(queue2, field, moved) == data).all()


def test_a_mapped_object_is_refused_before_anything_is_enqueued(context, queue, queue2):
    with MemHandle.create_buffer(context, MIB) as field, Mapping(queue, field, MapFlags.READ) as mapping:
        mapping.wait()
        before = cml.statistics()
        with pytest.raises(MapConflictError):
            Migration(queue2, field, via="staged", source_queue=queue)
        assert cml.statistics() == before


@pytest.mark.nvidia_fault("gated migration")
@pytest.mark.needs_two_devices
def test_a_wait_list_that_fails_leaves_the_source_intact(context, queue, queue2, gate):
    data = noise(MIB)
    away = cl.CommandQueue(context, queue.device)
    with MemHandle.create_buffer(context, MIB) as field:
        written = cml.enqueue_copy(queue, field, data)
        moved = Migration(queue2, field, via="staged", source_queue=away, wait_for=[gate, written])
        gate.set_status(-5)
        with pytest.raises(DependencyError):
            moved.wait()
        assert (content(queue, field) == data).all()


class Nth:
    """Let the `number`-th call of the driver's enqueueing and creating functions fail."""

    NAMES = (
        "create_buffer", "enqueue_map_buffer", "enqueue_copy", "enqueue_migrate_mem_objects", "enqueue_marker",
        "enqueue_read_buffer", "enqueue_write_buffer",
    )  # fmt: skip

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.left, self.failed = number, ""
        for name in self.NAMES:
            monkeypatch.setattr(_opencl, name, self.counted(name, getattr(_opencl, name)))

    def counted(self, name, original):
        def call(*args, **keywords):
            self.left -= 1
            if not self.left:
                self.failed = name
                raise error_for(name, cl.status_code.INVALID_OPERATION)
            return original(*args, **keywords)

        return call


@pytest.mark.needs_two_devices
@pytest.mark.parametrize("early", [False, True], ids=["", "marked"])
@pytest.mark.parametrize("kind", ["buffer", "closed buffer", "image"])
def test_a_refused_step_raises_and_leaves_the_content_intact(
    context, queue, queue2, kind, early, monkeypatch, forgetful
):
    monkeypatch.setattr(_across, "_SMALLEST_CHUNK", 1 << 16)
    if early:
        monkeypatch.setattr(_limits.context_limits(context), "early_migrations", True)
    data = noise(256 * 256 * 4)
    where = {"origin": (0, 0), "region": (256, 256)} if kind == "image" else {}
    refused = []
    for number in range(1, 100):
        if kind == "image":
            handle = MemHandle.create_image(context, (256, 256), RGBA)
        elif kind == "buffer":
            handle = MemHandle.create_buffer(context, data.nbytes)
        else:
            handle = MemHandle.create_buffer(context, data.nbytes, MemFlags.READ_WRITE | MemFlags.HOST_WRITE_ONLY)
        with handle, cml.check_hazards(), MemHandle.create_buffer(context, data.nbytes) as seen:
            written = cml.enqueue_copy(queue, handle, data, **where)
            with monkeypatch.context() as patch:
                nth = Nth(patch, number)
                try:
                    done = Migration(queue2, handle, via="staged", source_queue=queue, wait_for=written)
                except (cl.Error, CallError) as error:
                    done = getattr(error, "event", None)
            queue2.finish()
            into = {"offset": 0, "origin": (0, 0, 0), "region": (256, 256, 1)} if where else {}
            copied = cml.enqueue_copy(queue, seen, handle, wait_for=[written, done], **into)
            assert (content(queue, seen, copied) == data).all()
        if not nth.failed:
            break
        refused.append(nth.failed)
        cml.staging(context).trim()
    assert refused[-1] == "enqueue_copy"  # the last step, after the content was given up
    assert set(Nth.NAMES) == set(refused)


@pytest.mark.nvidia_fault("gated migration")
@pytest.mark.needs_two_devices
def test_staged_waits_for_nobody_and_is_done_when_its_event_is(context, queue, queue2, gate, kernel):
    with MemHandle.create_buffer(context, 4096) as field:
        filled = cml.enqueue_fill(queue, field, np.int32(1), wait_for=gate)
        moved = Migration(queue2, field, via="staged", source_queue=queue, wait_for=filled)
        done = cml.enqueue_kernel(queue2, kernel("inc"), (1024,), None, In(field), wait_for=moved)
        assert done.command_execution_status > 0
        gate.set_status(cl.command_execution_status.COMPLETE)
        assert (content(queue2, field, done).view(np.int32) == 2).all()
