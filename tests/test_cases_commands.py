"""Known mistakes with commands, maps and migrations, each in a process of its own: no crash, no hang, no silence.

The names carry the numbers of the collection of public reports that the project is built against. Where only the
opt-in hazard checker can speak (C26, C40, C41, C61), the cure is tested: with the event passed on, results are right
every time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

COMMON = """
warnings.simplefilter("error")
def raises(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    raise SystemExit(f"no {error} came")
def content(queue, handle, wait_for=None):
    out = np.empty(handle.size // 4, np.int32)
    cml.enqueue_copy(queue, out, handle, wait_for=wait_for)
    return out
def map_count(expected):        # some drivers count a little later than they tell
    deadline = time.monotonic() + 10
    while buffer.info().map_count != expected and time.monotonic() < deadline:
        time.sleep(0.002)
    return buffer.info().map_count
N = 1024
buffer = MemHandle.create_buffer(context, N * 4, label="field")
cml.enqueue_fill(queue, buffer, np.int32(-1)).wait()
slow, setval, inc, copy = (cl.Kernel(program, name) for name in ("slow", "setval", "inc", "copy"))
"""
END = """
gc.collect()
buffer.release()
assert cml.live() == (), cml.live()
print("right")
"""


@pytest.fixture
def case(run: Run) -> Callable[[str], None]:
    """Run one case after the common start; it must come to its end within the time limit, with nothing left."""

    def run_case(code: str) -> None:
        assert run(COMMON + code + END, timeout=60.0).split() == ["right"]

    return run_case


Case = Callable[[str], None]


def test_c26_overlapping_sub_buffers_on_two_queues_in_order(case: Case) -> None:
    case("""
with buffer.sub_buffer(0, 2048) as one, buffer.sub_buffer(1024, 2048) as two:
    for _ in range(6):
        first = cml.enqueue_kernel(queue, slow, (512,), None, InOut(one), np.int32(1), np.int32(30000))
        second = cml.enqueue_kernel(queue2, setval, (512,), None, Out(two), np.int32(2), wait_for=first)
        found = content(queue, buffer, wait_for=second)
        assert (found[:256] == 1).all() and (found[256:768] == 2).all()
    with Mapping(queue, one, MapFlags.WRITE) as mapping:
        message = raises(cml.MapConflictError, lambda: cml.enqueue_fill(queue2, two, np.int32(0)))
        assert "[0, 2048) are mapped for writing" in message and "'field'" in message, message
""")


def test_c27_array_and_slice_used_after_unmap(case: Case) -> None:
    case("""
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    with Mapping(queue, buffer, MapFlags.WRITE, shape=(N,), dtype=np.int32) as mapping:
        array = mapping.array
        array[:] = 1
        part = array[10:20]
assert [one.category for one in seen] == [cml.ViewWarning]
raises((TypeError, IndexError, ValueError), lambda: array.__setitem__(0, 100))
raises((TypeError, IndexError, ValueError), lambda: array + 1)
raises(cml.UnmappedError, lambda: mapping.array)
done = cml.enqueue_kernel(queue, inc, (N,), None, InOut(buffer), wait_for=mapping.unmap_event)
assert (content(queue, buffer, done) == 2).all()
""")


def test_c28_maps_without_unmap(case: Case) -> None:
    case("""
seen = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *rest: seen.append(category)
for n in range(5):
    Mapping(queue, buffer, MapFlags.READ, shape=(N,), dtype=np.int32).array
gc.collect()
assert seen == [cml.LeakWarning] * 5, seen
queue.finish()
assert map_count(0) == 0
cml.enqueue_kernel(queue, inc, (N,), None, InOut(buffer))
assert (content(queue, buffer) == 0).all()
""")


def test_c29_kernel_copy_fill_and_migration_on_a_mapped_buffer(case: Case) -> None:
    case("""
with buffer.sub_buffer(0, 1024) as part:
    with Mapping(queue, buffer, MapFlags.WRITE, shape=(N,), dtype=np.int32) as mapping:
        mapping.array[:] = 1
        for mem in (buffer, part, buffer.mem, part.mem):
            raises(cml.MapConflictError, lambda: cml.enqueue_kernel(queue, inc, (256,), None, mem))
            raises(cml.MapConflictError, lambda: cml.enqueue_fill(queue, mem, np.int32(0)))
            raises(cml.MapConflictError, lambda: cml.enqueue_copy(queue, np.empty(4, np.int32), mem))
        raises(cml.MapConflictError, lambda: Migration(queue, part))
        mapping.array[:] = 2
    done = cml.enqueue_kernel(queue, inc, (N,), None, buffer, wait_for=mapping.unmap_event)
    assert (content(queue, buffer, done) == 3).all()
    with MemHandle.create_buffer(context, N * 4) as target, Mapping(queue, buffer, MapFlags.READ) as mapping:
        mapping.wait()
        cml.enqueue_kernel(queue, copy, (N,), None, In(buffer), Out(target)).wait()
        assert (content(queue, target) == 3).all()
""")


def test_c31_a_non_blocking_map_cannot_be_read_too_early(case: Case) -> None:
    case("""
cml.enqueue_kernel(queue, slow, (N,), None, buffer, np.int32(7), np.int32(100000))
with Mapping(queue, buffer, MapFlags.READ, shape=(N,), dtype=np.int32) as mapping:
    assert (mapping.array == 7).all()
gate = cl.UserEvent(context)
warnings.simplefilter("ignore", cml.LeakWarning)
Mapping(queue, buffer, MapFlags.WRITE, wait_for=gate)      # dropped while pending
gc.collect()
gate.set_status(0)
queue.finish()
assert map_count(0) == 0
""")


def test_c32_overlapping_maps_and_equal_pointers(case: Case) -> None:
    case("""
with Mapping(queue, buffer, MapFlags.WRITE, size=512):
    raises(cml.MapConflictError, lambda: Mapping(queue, buffer, MapFlags.WRITE, offset=256, size=512))
queue.finish()      # Intel's map count is one too high after a map that was enqueued behind a pending unmap
one = Mapping(queue, buffer, MapFlags.READ, size=512)
two = Mapping(queue, buffer, MapFlags.READ, size=64)
kept = two.array
one.unmap()
queue.finish()
assert map_count(1) == 1 and kept.shape == (64,)
two.unmap()
queue.finish()
assert map_count(0) == 0 and kept.shape == (0,)
""")


def test_c33_wrong_constants_as_map_flags(case: Case) -> None:
    case("""
wrong = (cl.mem_flags.READ_WRITE, cl.mem_flags.WRITE_ONLY, cl.mem_flags.READ_ONLY, 0, 1 << 20,
         cl.map_flags.WRITE | cl.map_flags.WRITE_INVALIDATE_REGION, MemFlags.READ_WRITE)
for flags in wrong:
    assert "MapFlags" in raises(TypeError, lambda: Mapping(queue, buffer, flags))
for flags in (MapFlags(0), MapFlags(1 << 20), MapFlags.WRITE | MapFlags.WRITE_INVALIDATE_REGION,
              MapFlags.READ | MapFlags.WRITE_INVALIDATE_REGION):
    raises(ValueError, lambda: Mapping(queue, buffer, flags))
raises(TypeError, lambda: MapFlags.READ | 1)
assert map_count(0) == 0
""")


def test_c35_host_access_flags(case: Case) -> None:
    case("""
host = np.zeros(4, np.int32)
for flag, reads, writes in ((MemFlags.HOST_NO_ACCESS, 0, 0), (MemFlags.HOST_READ_ONLY, 1, 0),
                            (MemFlags.HOST_WRITE_ONLY, 0, 1)):
    with MemHandle.create_buffer(context, 16, MemFlags.READ_WRITE | flag) as limited:
        for allowed, call in ((reads, lambda: Mapping(queue, limited, MapFlags.READ).unmap()),
                              (writes, lambda: Mapping(queue, limited, MapFlags.WRITE).unmap()),
                              (reads, lambda: cml.enqueue_copy(queue, host, limited)),
                              (writes, lambda: cml.enqueue_copy(queue, limited, host)),
                              (True, lambda: cml.enqueue_fill(queue, limited, np.int32(0)).wait())):
            if allowed:
                call()
            else:
                assert str(flag) in raises(ValueError, call)
for flags in (MemFlags.HOST_READ_ONLY | MemFlags.HOST_WRITE_ONLY, MemFlags.READ_ONLY | MemFlags.WRITE_ONLY):
    assert "contradict" in raises(ValueError, lambda: MemHandle.create_buffer(context, 16, flags))
""")


def test_c36_the_pitch_of_an_image_map(case: Case) -> None:
    case("""
pixels = np.arange(64 * 32, dtype=np.float32).reshape(32, 64)
format = cl.ImageFormat(cl.channel_order.R, cl.channel_type.FLOAT)
with MemHandle.create_image(context, (64, 32), format, MemFlags.COPY_HOST_PTR, hostbuf=pixels) as image:
    with Mapping(queue, image, MapFlags.READ, origin=(8, 4), region=(16, 8)) as mapping:
        assert (mapping.array == pixels[4:12, 8:24]).all()
""")


def test_c37_an_unmap_that_is_only_enqueued(case: Case) -> None:
    case("""
gate = cl.UserEvent(context)
mapping = Mapping(queue, buffer, MapFlags.WRITE, shape=(N,), dtype=np.int32)
mapping.array[:] = 1
event = mapping.unmap(wait_for=gate)
done = cml.enqueue_kernel(queue2, inc, (N,), None, InOut(buffer), wait_for=mapping.unmap_event)
assert event.command_execution_status > 0 and done.command_execution_status > 0
gate.set_status(0)
assert (content(queue, buffer, done) == 2).all()
assert map_count(0) == 0
""")


def test_c40_an_out_of_order_queue_with_its_wait_list(case: Case) -> None:
    case("""
properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
loose = cl.CommandQueue(context, devices[0], properties)
for _ in range(5):
    filled = cml.enqueue_fill(loose, buffer, np.int32(-1))
    done = cml.enqueue_kernel(loose, slow, (N,), None, buffer, np.int32(7), np.int32(30000), wait_for=filled)
    assert (content(loose, buffer, done) == 7).all()
""")


def test_c41_two_in_order_queues_with_an_event(case: Case) -> None:
    case("""
for n in range(5):
    done = cml.enqueue_kernel(queue, slow, (N,), None, buffer, np.int32(n), np.int32(50000))
    assert (content(queue2, buffer, done) == n).all()
""")


def test_c46_a_dependency_that_fails_while_its_dependent_waits(case: Case) -> None:
    case("""
gate = cl.UserEvent(context)
loose = cl.CommandQueue(context, devices[0])
dependent = cml.enqueue_kernel(loose, setval, (N,), None, buffer, np.int32(7), wait_for=gate)
gate.set_status(-5)
try:
    dependent.wait()
except cl.Error:
    pass
deadline = time.monotonic() + 10
while dependent.command_execution_status > 0 and time.monotonic() < deadline:
    time.sleep(0.002)
if dependent.command_execution_status < 0:      # some drivers call it complete
    caught = None
    try:
        cml.enqueue_fill(queue, buffer, np.int32(0), wait_for=dependent)
    except cml.DependencyError as error:
        caught = error
    assert caught is not None and caught.event == dependent and caught.root_event == gate, caught
    assert "OUT_OF_RESOURCES (-5)" in str(caught)
cml.enqueue_fill(queue, buffer, np.int32(3))
assert (content(queue, buffer) == 3).all()
""")


def test_c46b_a_dependency_that_has_failed_before(case: Case) -> None:
    case("""
failed = cl.UserEvent(context)
failed.set_status(-5)
host = np.zeros(N, np.int32)
for call in (lambda: cml.enqueue_kernel(queue, setval, (N,), None, buffer, np.int32(9), wait_for=failed),
             lambda: cml.enqueue_copy(queue, host, buffer, wait_for=failed),
             lambda: cml.enqueue_copy(queue, buffer, host, is_blocking=False, wait_for=[failed]),
             lambda: cml.enqueue_fill(queue, buffer, np.int32(9), wait_for=[[failed]]),
             lambda: Mapping(queue, buffer, MapFlags.READ, wait_for=failed),
             lambda: Migration(queue, buffer, wait_for=failed),
             lambda: Migration(queue, [], wait_for=failed)):
    assert "OUT_OF_RESOURCES (-5)" in raises(cml.DependencyError, call)
assert (content(queue, buffer) == -1).all()
""")


def test_c52_nothing_grows_with_the_number_of_commands(case: Case) -> None:
    case("""
from clmemlife import _inflight
def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4 if os.path.exists("/proc/self/statm") else 0
def work(count):
    for n in range(count):
        done = cml.enqueue_kernel(queue, inc, (16,), None, buffer, wait_for=None)
        if not n % 20:
            done.wait()
        assert len(_inflight._table) <= 60
    queue.finish()
work(1000)
before = memory()
work(6000)
assert memory() - before < 8000, memory() - before
""")


def test_c60_migrations_of_odd_things(case: Case) -> None:
    case("""
cml.enqueue_fill(queue, buffer, np.int32(5)).wait()
with buffer.sub_buffer(0, 1024) as part:
    for handles in (buffer, [buffer, buffer], [buffer, part], [part], []):
        for flags in (MigrationFlags(0), MigrationFlags.HOST):
            Migration(queue, handles, flags).wait()
            assert (content(queue, buffer) == 5).all()
    for wrong in (1, [1], "field", None, buffer.mem):
        assert "MemHandle" in raises(TypeError, lambda: Migration(queue, wrong))
    assert "MigrationFlags" in raises(TypeError, lambda: Migration(queue, buffer, 1 << 5))
    with Mapping(queue, buffer, MapFlags.WRITE, size=16) as mapping:
        mapping.wait()
        for handles in (buffer, part):
            raises(cml.MapConflictError, lambda: Migration(queue, handles))
    Migration(queue, buffer, MigrationFlags.CONTENT_UNDEFINED, wait_for=mapping.unmap_event).wait()
""")


def test_c61_two_devices_with_an_event_each_way(case: Case) -> None:
    case("""
for n in range(5):
    first = cml.enqueue_kernel(queue, slow, (N,), None, buffer, np.int32(n), np.int32(30000))
    moved = Migration(queue2, buffer, wait_for=first, source_queue=queue)
    second = cml.enqueue_kernel(queue2, inc, (N,), None, buffer, wait_for=moved)
    back = moved.back(wait_for=second)
    assert (content(queue, buffer, back.event) == n + 1).all()
""")
