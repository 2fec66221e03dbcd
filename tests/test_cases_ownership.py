"""The known ways to go wrong with ownership and host memory: each in a process of its own, which must not crash."""

from __future__ import annotations

import pytest

PREPARE = """
N = 1024
ints = np.arange(N, dtype=np.int32)
gate = cl.UserEvent(context)
COMPLETE = cl.command_execution_status.COMPLETE

def kernel(name):
    return cl.Kernel(program, name)

def buffer(**more):
    return MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR, hostbuf=ints, **more)

def read(handle, wait_for=None):
    result = np.empty(N, np.int32)
    cml.enqueue_copy(queue, result, handle, wait_for=wait_for)
    return result

def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("was not refused")

def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)

def quietly(drop):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop()
        gc.collect()
    return [one.category.__name__ for one in caught]
"""


def test_c01_two_owners_for_one_reference_are_refused(run):
    run(
        PREPARE
        + """
a = buffer(label="a")
text = refused(cml.OwnershipError, lambda: MemHandle.adopt(a.int_ptr))
assert "'a' (4096 bytes" in text and a.site in text, text
for wrong in (a, a.mem):
    assert "retain" in refused(TypeError, lambda: MemHandle.adopt(wrong))
b = MemHandle.retain(a.int_ptr)
b.release(); del b; gc.collect()
assert (read(a) == ints).all()
a.release()
"""
    )


def test_c02_release_twice_then_use_after_release(run):
    run(
        PREPARE
        + """
a = buffer(label="a")
a.release(); a.release()
for use in (
    lambda: a.size, lambda: a.mem, lambda: a.int_ptr, lambda: cml.enqueue_fill(queue, a, np.int32(1)),
    lambda: cml.enqueue_kernel(queue, kernel("inc"), (N,), None, a), lambda: read(a), lambda: a.sub_buffer(0, 4),
    lambda: Mapping(queue, a, MapFlags.READ), lambda: Migration(queue, a),
):
    text = refused(cml.ReleasedError, use)
    assert "'a' (4096 bytes" in text and a.site in text and "released at" in text, text
assert quietly(lambda: globals().pop("a")) == []
"""
    )


def test_c04_a_borrowed_object_survives_the_end_of_who_borrowed_it(run):
    run(
        PREPARE
        + """
owner = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=ints)
before = owner.reference_count

def borrow():
    with MemHandle.retain(owner.int_ptr) as borrowed:
        assert owner.reference_count == before + 1
        assert repr(borrowed).endswith("retain>")

borrow(); gc.collect()
assert owner.reference_count == before
result = np.empty_like(ints)
cl.enqueue_copy(queue, result, owner)
assert (result == ints).all()
"""
    )


C05 = """
warnings.simplefilter("ignore", cml.LeakWarning)
out = buffer()
done = cml.enqueue_kernel(
    queue, kernel("copy"), (N,), None, In(MemHandle.create_buffer(
        context, flags=MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR, hostbuf=ints * 2)), Out(out), wait_for=gate)
cml.enqueue_copy(queue, buffer(), np.full(N, 9, np.int32), is_blocking=False, wait_for=gate)
cml.enqueue_fill(queue, buffer().sub_buffer(0, 4096), np.int32(9), wait_for=gate)
late = cml.enqueue_kernel(queue, kernel("inc"), (N,), None, InOut(MemHandle.retain(out)), wait_for=done)
# migrations
queue.flush(); queue2.flush(); gc.collect()
noise = [buffer() for _ in range(20)]
gate.set_status(COMPLETE)
assert (read(out, late) == ints * 2 + 1).all()
queue.finish(); queue2.finish()
"""


def test_c05_an_argument_whose_only_owner_goes_away_before_the_command_runs(run):
    run(PREPARE + C05)


@pytest.mark.nvidia_fault("gated migration")
def test_c05_an_object_whose_only_owner_goes_away_before_its_migration_runs(run):
    run(PREPARE + C05.replace("# migrations", "Migration(queue2, buffer(), wait_for=late)"))


def test_c06_a_buffer_released_while_a_command_is_in_flight(run):
    run(
        PREPARE
        + """
gone = []
handle = buffer()
handle.on_destroy(gone.append)
target = buffer()
k = kernel("copy")
done = cml.enqueue_kernel(queue, k, (N,), None, In(handle), Out(target), wait_for=gate)
queue.flush()
start = time.monotonic()
handle.release(); del handle, k; gc.collect()
assert time.monotonic() - start < 5
assert cml.statistics().pending_bytes == 4096 and not gone
gate.set_status(COMPLETE)
assert (read(target, done) == ints).all()
until(lambda: cml.statistics().pending_bytes == 0 and gone)
"""
    )


def test_c07_with_is_deterministic_and_the_collector_is_a_net_that_names_the_line(run):
    run(
        PREPARE
        + """
import contextlib
gc.disable()
class Holder: pass
with contextlib.ExitStack() as stack:
    for _ in range(8):
        holder = Holder(); holder.itself = holder
        holder.handle = stack.enter_context(MemHandle.create_buffer(context, 1 << 20))
        del holder
    assert cml.statistics().current_bytes == 8 << 20
assert cml.statistics().current_bytes == 0
for _ in range(8):
    holder = Holder(); holder.itself = holder
    holder.handle = MemHandle.create_buffer(context, 1 << 20, label="forgotten")
    site = holder.handle.site
    del holder
assert cml.statistics().current_bytes == 8 << 20
assert {record.site for record in cml.live()} == {site}
assert quietly(lambda: None) == ["LeakWarning"] * 8
assert cml.statistics().current_bytes == 0
"""
    )


def test_c08_a_global_cycle_of_everything_is_left_at_exit(run_process):
    done = run_process(
        PREPARE,
        """
import builtins
class Node: pass
node = Node(); node.itself = node; node.queue, node.context = queue, context
node.handle = buffer()
node.child = node.handle.sub_buffer(0, 1024)
node.mapping = Mapping(queue, node.handle, MapFlags.WRITE, offset=2048, size=1024)
node.view = node.mapping.array[::2]
node.event = cml.enqueue_kernel(queue, kernel("inc"), (16,), None, InOut(node.child))
builtins.keepalive = node
del queue, context
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_c10_finalizers_run_in_another_thread(run):
    run(
        PREPARE
        + """
warnings.simplefilter("ignore", cml.LeakWarning)
stop = threading.Event()
def collect():
    while not stop.is_set():
        gc.collect()
collector = threading.Thread(target=collect); collector.start()
class Holder: pass
try:
    for n in range(150):
        holder = Holder(); holder.itself = holder
        holder.handle = buffer()
        holder.child = holder.handle.sub_buffer(0, 2048)
        holder.mapping = Mapping(queue, holder.child, MapFlags.WRITE)
        holder.mapping.array[:] = 0
        del holder
finally:
    stop.set(); collector.join()
gc.collect()
assert cml.live() == ()
queue.finish()
"""
    )


def test_c11_dropping_an_event_stops_no_thread(run):
    run(
        PREPARE
        + """
handle = buffer()
result = np.zeros(N, np.int32)
ticked = threading.Event()
event = cml.enqueue_copy(queue, result, handle, is_blocking=False, wait_for=gate)
queue.flush()
del event  # would wait for the gate, and hold the interpreter, for ever
gc.collect()
ticker = threading.Thread(target=ticked.set); ticker.start()
assert ticked.wait(10)
gate.set_status(COMPLETE)
queue.finish()
assert (result == ints).all()
handle.release()
"""
    )


def test_c13_host_memory_outlives_array_and_handle_while_a_command_is_pending(run):
    run(
        PREPARE
        + """
import weakref
array = cml.aligned_empty(1 << 22, np.int32, context)  # 16 MiB: pages of its own, unmapped when freed
array[:] = 0
owner = weakref.ref(array.base)
handle = MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR, hostbuf=array)
done = cml.enqueue_kernel(queue, kernel("setval"), (1 << 22,), None, Out(handle), np.int32(7), wait_for=gate)
queue.flush()
handle.release(); del array, handle; gc.collect()
assert owner() is not None and cml.statistics().leased_bytes == 1 << 24
gate.set_status(COMPLETE)
done.wait()
until(lambda: cml.statistics().leased_bytes == 0 and owner() is None)
"""
    )


def test_c14_host_memory_outlives_parent_and_array_while_a_part_is_used(run):
    run(
        PREPARE
        + """
import weakref
array = cml.aligned_empty(1 << 22, np.int32, context)
array[:] = 0
owner = weakref.ref(array.base)
parent = MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR, hostbuf=array)
assert "inherited" in refused(ValueError, lambda: parent.sub_buffer(0, 4096, MemFlags.USE_HOST_PTR))
part = parent.sub_buffer(4096, 4096)
parent.release(); del parent, array; gc.collect()
assert owner() is not None
done = cml.enqueue_kernel(queue, kernel("setval"), (N,), None, Out(part), np.int32(7))
assert (read(part, done) == 7).all()
part.release(); del part
until(lambda: cml.statistics().leased_bytes == 0 and owner() is None)
"""
    )


def test_c16_misaligned_host_memory_is_named(run):
    run(
        PREPARE
        + """
flags = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
needed = max(device.mem_base_addr_align // 8 for device in devices)
memory = cml.aligned_empty(8192, np.uint8, context)
odd, four = memory[1:4097].view(np.int32), memory[4:4100].view(np.int32)
assert "own elements" in refused(cml.AlignmentError, lambda: MemHandle.create_buffer(context, flags=flags, hostbuf=odd))
text = refused(cml.AlignmentError, lambda: MemHandle.create_buffer(
    context, flags=flags, hostbuf=four, require_zero_copy=True))
assert f"4 bytes past a multiple of {needed}" in text and "aligned_empty" in text, text
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    handle = MemHandle.create_buffer(context, flags=flags, hostbuf=four)
assert [one.category for one in caught] == [cml.ZeroCopyWarning]
four[:] = 1
with handle:
    cml.enqueue_kernel(queue, kernel("inc"), (N,), None, InOut(handle))
    with Mapping(queue, handle, MapFlags.READ, dtype=np.int32, shape=N) as mapping:
        assert (mapping.array == 2).all()
    queue.finish()
"""
    )


def test_c20_destructor_callbacks_of_a_parent_wait_for_the_child_and_run_last_first_once(run):
    run(
        PREPARE
        + """
seen = []
parent = buffer(label="parent")
site = parent.site
parent.on_destroy(lambda info: seen.append(("first", info)))
parent.on_destroy(lambda info: seen.append(("second", info)))
child = parent.sub_buffer(0, 1024, label="child")
child.on_destroy(lambda info: seen.append(("child", info)))
parent.release()
cml.statistics()
assert seen == []
child.release(); del child, parent
until(lambda: cml.statistics() and len(seen) == 3)
assert [name for name, _ in seen] == ["child", "second", "first"], seen
assert tuple(seen[2][1]) == ("parent", 4096, site)
queue.finish(); gc.collect()
assert len(seen) == 3
"""
    )


def test_c21_a_misaligned_origin_is_told_the_nearest_valid_ones(run):
    run(
        PREPARE
        + """
step = min(device.mem_base_addr_align // 8 for device in devices)
handle = buffer(label="field")
for origin in (4, step // 2, step + 4):
    text = refused(cml.AlignmentError, lambda: handle.sub_buffer(origin, 4))
    below = origin // step * step
    assert f"origin {origin} " in text and f"multiple of {step} bytes" in text, text
    assert f"{below} and {below + step}" in text and "'field'" in text, text
handle.sub_buffer(step, 4).release()
handle.release()
"""
    )


def test_c23_a_sub_buffer_of_a_sub_buffer_and_other_regions(run):
    run(
        PREPARE
        + """
step = max(device.mem_base_addr_align // 8 for device in devices)
root = MemHandle.create_buffer(context, 8 * step)
child = root.sub_buffer(2 * step, 4 * step)
inner = child.sub_buffer(step, 2 * step)
assert inner.info().offset == 3 * step and inner.parent is root
assert inner.info().associated_memobject == root.int_ptr
for origin, size in ((0, 0), (0, 4 * step + 1), (4 * step, 1), (-step, step)):
    assert "not a region of" in refused(ValueError, lambda: child.sub_buffer(origin, size))
refused(TypeError, lambda: child.sub_buffer(slice(0, 4), 4))
root.release()
again = inner.sub_buffer(step, step)
assert again.info().offset == 4 * step
for one in (again, inner, child):
    one.release()
import pyopencl.tools
pool = pyopencl.tools.MemoryPool(pyopencl.tools.ImmediateAllocator(queue))
pooled = pool.allocate(4 * step)
with MemHandle.retain(pooled) as shared, shared.sub_buffer(step, step) as part:
    assert part.size == step
pooled.release(); pool.stop_holding()
"""
    )


def test_c24_zero_sizes_and_the_allocation_limit(run):
    run(
        PREPARE
        + """
copy = MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR
limit = max(device.max_mem_alloc_size for device in devices)
assert "at least 1 byte, not 0" in refused(ValueError, lambda: MemHandle.create_buffer(context, 0))
assert "at least 1 byte, not -4" in refused(ValueError, lambda: MemHandle.create_buffer(context, -4))
assert "empty" in refused(ValueError, lambda: MemHandle.create_buffer(context, flags=copy, hostbuf=np.empty(0)))
assert str(limit) in refused(ValueError, lambda: MemHandle.create_buffer(context, limit + 1))
refused(TypeError, lambda: MemHandle.create_buffer(context, 16.0))
with MemHandle.create_buffer(context, np.int64(16)) as handle:
    empty = np.empty(0, np.int32)
    events = [
        cml.enqueue_fill(queue, handle, np.int32(0), 0),
        cml.enqueue_copy(queue, empty, handle),
        cml.enqueue_copy(queue, handle, empty),
        cml.enqueue_copy(queue, handle, handle, byte_count=0),
    ]
    cl.wait_for_events(events)
    gated = cml.enqueue_fill(queue, handle, np.int32(0), 0, wait_for=gate)
    queue.flush()
    assert gated.command_execution_status > 0, "the chain is carried on"
    gate.set_status(COMPLETE)
    gated.wait()
"""
    )


def test_c25_a_parent_released_before_its_child(run):
    run(
        PREPARE
        + """
gone = []
parent = buffer()
parent.on_destroy(gone.append)
child = parent.sub_buffer(0, 4096)
parent.release(); gc.collect()
cml.enqueue_kernel(queue, kernel("setval"), (N,), None, Out(child), np.int32(7))
assert (read(child) == 7).all()
assert not gone
child.release(); del child, parent
until(lambda: cml.statistics() and gone)
assert cml.live() == () and cml.statistics().current_bytes == 0
"""
    )


def test_c56_a_dropped_copy_event_does_not_deadlock_with_the_thread_that_opens_the_gate(run):
    run(
        PREPARE
        + """
handle = buffer()
result = np.zeros(N, np.int32)
dropped = threading.Event()
def open_gate():
    dropped.wait(20)
    gate.set_status(COMPLETE)
opener = threading.Thread(target=open_gate); opener.start()
cml.enqueue_copy(queue, result, handle, is_blocking=False, wait_for=gate)
dropped.set()
opener.join(20)
queue.finish()
assert (result == ints).all()
handle.release()
"""
    )


def test_c59_pickling_and_copying_are_refused_with_advice(run):
    run(
        PREPARE
        + """
import copy, pickle
handle = buffer(label="field")
for make in (pickle.dumps, copy.copy, copy.deepcopy, lambda one: pickle.dumps({"deep": [one]})):
    text = refused(TypeError, lambda: make(handle))
    assert "'field'" in text and "in the worker" in text, text
assert (read(handle) == ints).all()
handle.release()
"""
    )
