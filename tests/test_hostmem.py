"""Host memory behind ``USE_HOST_PTR``: what is fit, who else uses it, and that it outlives the memory object."""

from __future__ import annotations

import array
import gc
import mmap
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import (
    AlignmentError,
    HostAliasError,
    InOut,
    MemFlags,
    MemHandle,
    ZeroCopyWarning,
    _callbacks,
    _hostmem,
    _opencl,
    aligned_empty,
)

USE = MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR
COPY = MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR


@pytest.fixture
def make_host(context):
    """Make aligned host memory of 4096 ints, which nobody but the test holds."""

    def make() -> np.ndarray:
        made = aligned_empty(4096, np.int32, context)
        made[:] = np.arange(4096)
        return made

    return make


@pytest.fixture
def host(make_host) -> np.ndarray:
    return make_host()


@pytest.fixture
def needed(context) -> int:
    """The alignment in bytes that zero-copy use needs in this context."""
    return max(device.mem_base_addr_align // 8 for device in context.devices)


@pytest.fixture
def released(wait):
    """Wait until a weakly referenced lease is gone."""

    def check(reference, what="the lease ends"):
        gc.collect()
        wait(lambda: cml.statistics() and reference() is None, what)

    return check


def storage(array_: np.ndarray) -> weakref.ref:
    """Return a weak reference to the array that owns the memory of `array_`."""
    while isinstance(array_.base, np.ndarray):
        array_ = array_.base
    return weakref.ref(array_)


# The lease


def test_the_array_is_kept_while_the_handle_lives_and_let_go_after_it(context, make_host, released):
    host = make_host()
    kept = storage(host)
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        del host
        gc.collect()
        assert kept() is not None
    released(kept)


def test_leased_bytes_count_the_buffers_not_copies(context, host, wait):
    before = cml.statistics().leased_bytes
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        assert cml.statistics().leased_bytes - before == host.nbytes
        with MemHandle.create_buffer(context, flags=COPY, hostbuf=host):
            assert cml.statistics().leased_bytes - before == host.nbytes
    wait(lambda: cml.statistics().leased_bytes == before, "the lease is given back")


def test_the_lease_outlives_the_handle_while_a_sub_buffer_lives(context, make_host, released):
    host = make_host()
    kept = storage(host)
    root = MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    child = root.sub_buffer(0, 64)
    root.release()
    del host, root
    gc.collect()
    cml.statistics()
    assert kept() is not None
    child.release()
    del child
    released(kept)


def test_the_lease_outlives_the_handle_while_a_retained_one_lives(context, make_host, released):
    host = make_host()
    kept = storage(host)
    first = MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    second = MemHandle.retain(first.int_ptr)
    first.release()
    del host, first
    gc.collect()
    cml.statistics()
    assert kept() is not None
    second.release()
    released(kept)


def test_the_lease_outlives_the_handle_while_a_detached_object_lives(context, make_host, released):
    host = make_host()
    kept = storage(host)
    mem = MemHandle.create_buffer(context, flags=USE, hostbuf=host).detach()
    del host
    gc.collect()
    cml.statistics()
    assert kept() is not None
    del mem
    released(kept)


def test_the_lease_outlives_the_handle_while_a_command_is_pending(context, queue, kernel, make_host, gate, released):
    host = make_host()
    kept = storage(host)
    handle = MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    done = cml.enqueue_kernel(queue, kernel("inc"), (4096,), None, InOut(handle), wait_for=gate)
    queue.flush()
    handle.release()
    del host, handle
    gc.collect()
    cml.statistics()
    assert kept() is not None
    gate.set_status(cl.command_execution_status.COMPLETE)
    done.wait()
    released(kept)


def test_the_lease_outlives_parent_and_array_while_a_command_on_a_region_is_pending(
    context, queue, kernel, make_host, gate, released
):
    host = make_host()
    kept = storage(host)
    root = MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    child = root.sub_buffer(0, 4096)
    root.release()
    done = cml.enqueue_kernel(queue, kernel("inc"), (1024,), None, InOut(child), wait_for=gate)
    child.release()
    del host, root, child
    gc.collect()
    assert kept() is not None
    gate.set_status(cl.command_execution_status.COMPLETE)
    done.wait()
    released(kept)


def test_a_buffer_over_host_memory_shows_its_content_and_writes_it(context, queue, kernel, host):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host) as handle:
        cml.enqueue_kernel(queue, kernel("inc"), (4096,), None, InOut(handle))
        with cml.Mapping(queue, handle, cml.MapFlags.READ, dtype=np.int32, shape=4096) as mapping:
            assert mapping.array.ctypes.data == host.ctypes.data
            assert (mapping.array == np.arange(1, 4097)).all()
    queue.finish()
    assert host[0] == 1


def test_an_image_leases_its_host_memory(context, released):
    if not any(device.image_support for device in context.devices):
        pytest.skip("no device with images")
    pixels = aligned_empty((16, 16, 4), np.uint8, context)
    kept = storage(pixels)
    rgba = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    image = MemHandle.create_image(context, (16, 16), rgba, USE, hostbuf=pixels)
    del pixels
    gc.collect()
    assert kept() is not None
    image.release()
    released(kept)


def test_a_construction_that_fails_leases_nothing(context, host, monkeypatch):
    from clmemlife import _opencl

    def refuse(*_):
        raise cl.LogicError(cl._cl._ErrorRecord(msg="refused", code=-30, routine="clCreateBuffer"))

    before = cml.statistics().leased_bytes
    monkeypatch.setattr(_opencl, "create_buffer", refuse)
    with pytest.raises(cl.LogicError):
        MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    monkeypatch.undo()
    assert cml.statistics().leased_bytes == before
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass


# Who else uses it


def test_the_check_and_the_claim_are_one_step(context, host, monkeypatch):
    """While one object is being made of it, the memory is taken, whoever asks."""
    from clmemlife import _opencl

    real, refusals = _opencl.create_buffer, []

    def create(*arguments):
        monkeypatch.undo()
        with pytest.raises(HostAliasError, match="'first'") as caught:
            MemHandle.create_buffer(context, flags=USE, hostbuf=host[10:])
        refusals.append(caught.type)
        return real(*arguments)

    monkeypatch.setattr(_opencl, "create_buffer", create)
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host, label="first"):
        assert refusals == [HostAliasError]


def test_of_many_threads_one_gets_the_memory(context, make_host):
    for _ in range(20):
        host, made, refused = make_host(), [], []
        start = threading.Barrier(8)

        def work(host=host, made=made, refused=refused, start=start):
            start.wait()
            try:
                made.append(MemHandle.create_buffer(context, flags=USE, hostbuf=host))
            except HostAliasError as error:
                refused.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(made), len(refused)) == (1, 7)
        made[0].release()


class Watched:
    """What a claim knows of its object."""

    dead = False


def test_claims_are_found_as_by_looking_at_each():
    random, registry, alive = np.random.default_rng(1), _hostmem._Registry(), []
    for _ in range(5000):
        start, size = (int(n) for n in random.integers(1, (20000, 1000 if random.random() < 0.02 else 20)))
        claim, allow = _hostmem._Claim(start, start + size, ""), bool(random.random() < 0.5)
        claim.watch = Watched()
        overlapping = [one for one in alive if one.start < claim.stop and claim.start < one.stop]
        expected = min(overlapping, key=lambda one: one.number, default=None)
        assert registry.enter(claim, allow) is expected
        if expected is None or allow:
            alive.append(claim)
        if len(alive) > 300 or random.random() < 0.2:
            gone = alive.pop(int(random.integers(len(alive))))
            if random.random() < 0.5:
                gone.watch.dead = True
            else:
                registry.drop(gone)
        assert registry.alive() == len(alive)
    assert len(registry._claims) < 2 * len(alive) + 256


def test_two_objects_over_one_array_are_refused_and_the_other_is_named(context, host):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host, label="first") as first:
        with pytest.raises(HostAliasError) as caught:
            MemHandle.create_buffer(context, flags=USE, hostbuf=host, label="second")
        text = str(caught.value)
        assert f"'first' ({host.nbytes} bytes, created at {first.site})" in text
        assert f"'second' ({host.nbytes} bytes, created at " in text
        assert "allow_alias=True" in text


@pytest.mark.parametrize("part", [slice(0, 1024), slice(1024, 2048), slice(3072, 4096), slice(0, 4096)])
def test_an_array_and_a_slice_of_it_are_refused_in_either_order(context, host, part):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host), pytest.raises(HostAliasError):
        MemHandle.create_buffer(context, flags=USE, hostbuf=host[part])
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host[part]), pytest.raises(HostAliasError):
        MemHandle.create_buffer(context, flags=USE, hostbuf=host)


def test_neighbours_in_one_array_are_no_aliases(context, host):
    with (
        MemHandle.create_buffer(context, flags=USE, hostbuf=host[:2048]),
        MemHandle.create_buffer(context, flags=USE, hostbuf=host[2048:]),
    ):
        pass


def test_only_the_bytes_that_the_buffer_uses_count_as_used(context, host):
    with (
        MemHandle.create_buffer(context, 4096, USE, hostbuf=host),
        MemHandle.create_buffer(context, 4096, USE, hostbuf=host[1024:]),
    ):
        pass


def test_allow_alias_insists(context, host):
    with (
        MemHandle.create_buffer(context, flags=USE, hostbuf=host),
        MemHandle.create_buffer(context, flags=USE, hostbuf=host, allow_alias=True) as second,
    ):
        assert second.size == host.nbytes


def test_memory_is_free_again_after_release(context, host, wait):
    for _ in range(3):
        with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
            pass
    wait(lambda: cml.statistics().leased_bytes == 0, "the lease ends")


@contextmanager
def slow_reader(seconds: float) -> Iterator[None]:
    """Let another thread have all notices in hand, not yet passed on, for so long from the end of the block on."""
    streams = list(_callbacks._dispatcher.notices.streams)
    for stream in streams:
        stream._reading.acquire()
    yield
    timer = threading.Timer(seconds, lambda: [stream._reading.release() for stream in streams])
    timer.start()


def test_memory_is_free_again_at_once_though_another_thread_has_the_notice_in_hand(context, host):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass
    before = cml.statistics().leased_bytes
    with slow_reader(0.1), MemHandle.create_buffer(context, flags=USE, hostbuf=host, allow_alias=True):
        pass
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host[:64]):
        assert cml.statistics().leased_bytes - before == host[:64].nbytes


def test_memory_is_free_again_at_once_where_the_driver_tells_late(context, host, monkeypatch):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass
    late = time.monotonic() + 0.1
    read = _opencl.read_pipe
    monkeypatch.setattr(_opencl, "read_pipe", lambda *args: read(*args) if time.monotonic() > late else b"")
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass


def test_memory_is_free_again_at_once_where_nothing_is_left_of_the_wait_when_the_word_comes(context, host, monkeypatch):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass
    monkeypatch.setattr(_hostmem, "_LATE_SECONDS", 0.0)
    catch_up, read, looks = _callbacks.catch_up, _opencl.read_pipe, []
    monkeypatch.setattr(_callbacks, "catch_up", lambda: (looks.append("look"), catch_up()))
    monkeypatch.setattr(_opencl, "read_pipe", lambda *args: read(*args) if len(looks) > 1 else b"")
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass


def test_memory_that_a_queued_command_still_uses_is_refused_with_its_reason(context, queue, gate, host):
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host, label="first") as first:
        event = cml.enqueue_fill(queue, first, np.int32(1), wait_for=gate)
        queue.flush()
    with pytest.raises(HostAliasError, match=r"'first' .* was released but is still in use") as caught:
        MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    assert "still alive" not in str(caught.value)
    gate.set_status(cl.command_execution_status.COMPLETE)
    event.wait()
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass


def test_memory_stays_in_use_while_a_sub_buffer_lives(context, host, wait):
    root = MemHandle.create_buffer(context, flags=USE, hostbuf=host, label="root")
    child = root.sub_buffer(0, 64)
    root.release()
    with pytest.raises(HostAliasError, match="'root'"):
        MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    child.release()
    wait(lambda: cml.statistics().leased_bytes == 0, "the lease ends")
    with MemHandle.create_buffer(context, flags=USE, hostbuf=host):
        pass


def test_an_address_used_again_after_a_free_is_no_alias(context, wait):
    backing = mmap.mmap(-1, 1 << 16)
    seen = set()
    for _ in range(8):
        view = np.frombuffer(backing, np.uint8)
        seen.add(view.ctypes.data)
        with MemHandle.create_buffer(context, flags=USE, hostbuf=view):
            pass
        del view
        wait(lambda: cml.statistics().leased_bytes == 0, "the lease ends")
    assert len(seen) == 1


def test_copied_memory_may_be_used_by_anybody(context, host):
    with (
        MemHandle.create_buffer(context, flags=USE, hostbuf=host),
        MemHandle.create_buffer(context, flags=COPY, hostbuf=host),
        MemHandle.create_buffer(context, flags=COPY, hostbuf=host),
    ):
        pass


# What is fit


def misaligned(nbytes: int, offset: int, context: cl.Context) -> np.ndarray:
    return aligned_empty(nbytes + offset, np.uint8, context)[offset:]


def test_misaligned_memory_warns_with_both_alignments_and_works(context, queue, kernel, needed):
    data = misaligned(4096, 4, context).view(np.int32)
    data[:] = 1
    with pytest.warns(ZeroCopyWarning, match=f"4 bytes past a multiple of {needed}") as caught:
        handle = MemHandle.create_buffer(context, flags=USE, hostbuf=data, label="field")
    assert "aligned_empty" in str(caught[0].message)
    assert f"'field' (4096 bytes, created at {handle.site})" in str(caught[0].message)
    assert f"{caught[0].filename}:{caught[0].lineno}" == handle.site
    with handle:
        cml.enqueue_kernel(queue, kernel("inc"), data.shape, None, InOut(handle))
        result = np.empty_like(data)
        cml.enqueue_copy(queue, result, handle)
    assert (result == 2).all()


def test_misaligned_memory_is_an_error_on_request(context, needed):
    data = misaligned(4096, 4, context).view(np.int32)
    with pytest.raises(AlignmentError, match=f"4 bytes past a multiple of {needed}") as caught:
        MemHandle.create_buffer(context, flags=USE, hostbuf=data, require_zero_copy=True)
    assert isinstance(caught.value, ValueError)


def test_the_warning_as_an_error_leaves_nothing_behind(context):
    data = misaligned(4096, 4, context).view(np.int32)
    with pytest.raises(ZeroCopyWarning):  # warnings are errors here
        MemHandle.create_buffer(context, flags=USE, hostbuf=data)
    assert cml.statistics().leased_bytes == 0
    assert cml.live() == ()


@pytest.mark.parametrize("require_zero_copy", [False, True])
def test_memory_below_element_alignment_is_always_an_error(context, require_zero_copy):
    data = misaligned(4096, 1, context).view(np.int32)
    with pytest.raises(AlignmentError, match="not even aligned for its own elements"):
        MemHandle.create_buffer(context, flags=USE, hostbuf=data, require_zero_copy=require_zero_copy)


def test_copied_memory_needs_no_alignment(context, queue):
    data = misaligned(4096, 1, context).view(np.int32)
    data[:] = 7
    with MemHandle.create_buffer(context, flags=COPY, hostbuf=data, require_zero_copy=True) as handle:
        result = np.empty(1024, np.int32)
        cml.enqueue_copy(queue, result, handle)
    assert (result == 7).all()


def test_read_only_memory_is_refused_for_a_writable_object(context, host):
    host.flags.writeable = False
    with pytest.raises(ValueError, match=r"read-only memory but the object is writable"):
        MemHandle.create_buffer(context, flags=USE, hostbuf=host)
    with pytest.raises(ValueError, match="read-only memory"):
        MemHandle.create_buffer(context, flags=MemFlags.WRITE_ONLY | MemFlags.USE_HOST_PTR, hostbuf=host)
    with MemHandle.create_buffer(context, flags=MemFlags.READ_ONLY | MemFlags.USE_HOST_PTR, hostbuf=host) as handle:
        assert handle.size == host.nbytes
    with MemHandle.create_buffer(context, flags=COPY, hostbuf=host) as handle:
        assert handle.size == host.nbytes


def test_bytes_are_read_only_memory(context):
    with pytest.raises(ValueError, match="read-only memory"):
        MemHandle.create_buffer(context, flags=USE, hostbuf=bytes(4096))
    with MemHandle.create_buffer(context, flags=COPY, hostbuf=bytes(range(64))) as handle:
        assert handle.size == 64


BUFFERS = {
    "bytearray": lambda: bytearray(range(64)),
    "memoryview": lambda: memoryview(bytearray(range(64))),
    "memoryview of ints": lambda: memoryview(bytearray(range(64))).cast("i"),
    "array.array": lambda: array.array("B", range(64)),
    "mmap": lambda: _mapped(bytes(range(64))),
    "F order": lambda: np.asfortranarray(np.arange(64, dtype=np.uint8).reshape(8, 8).T),
    "F order of ints": lambda: np.frombuffer(bytes(range(64)), np.int32).reshape(4, 4).T,
    "datetime64": lambda: np.frombuffer(bytes(range(64)), "datetime64[s]"),
    "timedelta64": lambda: np.frombuffer(bytes(range(64)), "timedelta64[ns]"),
    "structured": lambda: np.frombuffer(bytes(range(64)), [("a", "i4"), ("b", "f8"), ("c", "V4")]),
    "big-endian": lambda: np.frombuffer(bytes(range(64)), ">i4"),
    "complex": lambda: np.frombuffer(bytes(range(64)), np.complex128),
    "matrix": lambda: np.arange(64, dtype=np.uint8).reshape(8, 8).view(np.recarray),
    "masked": lambda: np.ma.array(np.arange(64, dtype=np.uint8), mask=[1, 0] * 32),
    "0-dimensional": lambda: np.frombuffer(bytes(range(64)), "V64").reshape(()),
    "scalar": lambda: np.frombuffer(bytes(range(64)), "V64")[0],
}


def _mapped(data: bytes) -> mmap.mmap:
    made = mmap.mmap(-1, len(data))
    made.write(data)
    return made


@pytest.mark.parametrize("kind", BUFFERS)
def test_any_contiguous_buffer_is_copied_byte_for_byte(context, queue, kind):
    with MemHandle.create_buffer(context, flags=COPY, hostbuf=BUFFERS[kind]()) as handle:
        assert handle.size == 64
        result = np.empty(64, np.uint8)
        cml.enqueue_copy(queue, result, handle)
    assert result.tobytes() == bytes(range(64))


@pytest.mark.filterwarnings("ignore::clmemlife.ZeroCopyWarning")
@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "array.array", "mmap"])
def test_other_buffers_cannot_be_resized_or_closed_while_they_are_leased(context, queue, wait, kind):
    data = BUFFERS[kind]()
    owner = data.obj if kind == "memoryview" else data

    def change():
        owner.close() if kind == "mmap" else owner.append(0)

    def changeable():
        cml.statistics()
        try:
            change()
        except BufferError:
            return False
        return True

    del data
    with MemHandle.create_buffer(
        context, flags=USE, hostbuf=memoryview(owner) if kind == "memoryview" else owner
    ) as one:
        with pytest.raises(BufferError):
            change()
        result = np.empty(64, np.uint8)
        cml.enqueue_copy(queue, result, one)
        assert result.tobytes() == bytes(range(64))
    wait(changeable, "the export ends")


@pytest.mark.parametrize("flags", [USE, COPY])
@pytest.mark.parametrize(
    "hostbuf",
    [
        np.zeros((8, 8))[:, ::2],
        np.zeros((8, 8))[::2],
        np.zeros(8)[::-1],
        np.zeros((2, 3, 4)).transpose(1, 0, 2),
        np.broadcast_to(np.zeros(1), (8,)),
    ],
)
def test_memory_that_is_not_contiguous_is_refused(context, flags, hostbuf):
    with pytest.raises(ValueError, match=r"not contiguous; use numpy\.ascontiguousarray"):
        MemHandle.create_buffer(context, flags=flags, hostbuf=hostbuf)


def test_a_memoryview_that_is_not_contiguous_is_refused(context):
    with pytest.raises(TypeError, match="must be contiguous host memory"):
        MemHandle.create_buffer(context, flags=COPY, hostbuf=memoryview(bytearray(64))[::2])


@pytest.mark.parametrize("hostbuf", [np.array([object()] * 8), np.zeros(8, [("a", "i4"), ("b", "O")])])
def test_python_objects_are_refused(context, hostbuf):
    with pytest.raises(TypeError, match="elements that are Python objects"):
        MemHandle.create_buffer(context, flags=COPY, hostbuf=hostbuf)


@pytest.mark.parametrize("hostbuf", [5, "text", [1, 2], object(), {}])
def test_what_is_no_host_memory_is_refused(context, hostbuf):
    with pytest.raises(TypeError, match=f"contiguous host memory, not {type(hostbuf).__name__}"):
        MemHandle.create_buffer(context, flags=COPY, hostbuf=hostbuf)


@pytest.mark.parametrize("hostbuf", [b"", bytearray(), memoryview(b""), np.empty(0), np.empty((4, 0))])
def test_empty_memory_is_refused(context, hostbuf):
    with pytest.raises(ValueError, match="hostbuf is empty"):
        MemHandle.create_buffer(context, flags=COPY, hostbuf=hostbuf)


# aligned_empty


@pytest.mark.parametrize("shape", [5, (5,), (3, 4), (2, 3, 4), (), (0,), [3, 4], np.int64(5), (np.int64(3), 4)])
def test_aligned_empty_has_shape_dtype_order_and_alignment(context, needed, shape):
    made = aligned_empty(shape, np.float32, context)
    expected = np.empty(shape, np.float32)
    assert made.shape == expected.shape
    assert made.dtype == np.float32
    assert made.flags.c_contiguous
    assert made.flags.writeable
    assert made.size == 0 or made.ctypes.data % max(needed, 4096) == 0


@pytest.mark.parametrize("alignment", [1, 64, 4096, 1 << 16, np.int64(256)])
def test_aligned_empty_takes_an_alignment_in_bytes(alignment):
    for _ in range(4):
        assert aligned_empty(100, np.int32, alignment).ctypes.data % alignment == 0


def test_aligned_empty_makes_memory_that_needs_no_copy(context):
    made = aligned_empty((100, 3), np.float64, context)
    with MemHandle.create_buffer(context, flags=USE, hostbuf=made, require_zero_copy=True) as handle:
        assert handle.info().host_ptr == made.ctypes.data


@pytest.mark.parametrize("alignment", [0, -64, 48, 100])
def test_aligned_empty_refuses_what_is_no_power_of_two(alignment):
    with pytest.raises(ValueError, match=f"power of two, not {alignment}"):
        aligned_empty(8, np.uint8, alignment)


def test_aligned_empty_refuses_python_objects_and_bad_arguments():
    with pytest.raises(ValueError, match="Python objects"):
        aligned_empty(8, object)
    with pytest.raises(TypeError):
        aligned_empty(8, np.uint8, 64.0)
    with pytest.raises(TypeError):
        aligned_empty(8.0)
    with pytest.raises(ValueError, match="negative"):
        aligned_empty(-8)
    with pytest.raises(ValueError, match="negative"):
        aligned_empty((-2, -4))
