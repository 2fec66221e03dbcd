"""`MemHandle`: each way to come by a reference, its end, its members, and every refusal."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import re
import weakref

import numpy as np
import pyopencl as cl
import pyopencl.tools
import pytest

import clmemlife as cml
from clmemlife import (
    AlignmentError,
    ContextMismatchError,
    InOut,
    LeakWarning,
    MemFlags,
    MemHandle,
    OwnershipError,
    ReleasedError,
)

RW = MemFlags.READ_WRITE
RGBA = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)


def here() -> str:
    """Return ``file:line`` of the caller."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def raw_references(int_ptr: int) -> int:
    """Return ``CL_MEM_REFERENCE_COUNT``, without the one that asking takes."""
    mem = cl.MemoryObject.from_int_ptr(int_ptr, True)
    return mem.reference_count - 1


@pytest.fixture
def images(context):
    if not any(device.image_support for device in context.devices):
        pytest.skip("no device with images")


@pytest.fixture
def step(context) -> int:
    """An origin that every device of the context takes."""
    return max(device.mem_base_addr_align // 8 for device in context.devices)


# The ownership table, by differences of CL_MEM_REFERENCE_COUNT


def test_create_buffer_owns_the_creation_reference_and_nothing_else(context):
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    with MemHandle.create_buffer(context, 64) as handle:
        assert raw_references(handle.int_ptr) == raw_references(raw.int_ptr)
        assert handle.info().reference_count == raw_references(raw.int_ptr)


def test_create_image_owns_the_creation_reference_and_nothing_else(context, images):
    raw = cl.create_image(context, cl.mem_flags.READ_WRITE, RGBA, (8, 4))
    with MemHandle.create_image(context, (8, 4), RGBA) as handle:
        assert raw_references(handle.int_ptr) == raw_references(raw.int_ptr)


def test_release_gives_back_one_reference(context):
    handle = MemHandle.create_buffer(context, 64)
    witness = handle.mem
    before = witness.reference_count
    handle.release()
    assert witness.reference_count == before - 1


def test_leaving_the_with_block_gives_back_one_reference(context):
    with MemHandle.create_buffer(context, 64) as handle:
        witness = handle.mem
        before = witness.reference_count
    assert witness.reference_count == before - 1
    assert handle.released


def test_leaving_by_an_exception_gives_back_one_reference_and_lets_it_through(context):
    with pytest.raises(KeyError, match="of the body"), MemHandle.create_buffer(context, 64) as handle:
        witness = handle.mem
        before = witness.reference_count
        raise KeyError("of the body")
    assert witness.reference_count == before - 1


def test_collection_gives_back_one_reference_and_then_warns_at_the_creation_line(context):
    handle = MemHandle.create_buffer(context, 64, label="field")
    site = handle.site
    witness = handle.mem
    before = witness.reference_count
    with pytest.warns(LeakWarning, match=re.escape(f"'field' (64 bytes, created at {site})")) as caught:
        del handle
        gc.collect()
    assert witness.reference_count == before - 1
    assert f"{caught[0].filename}:{caught[0].lineno}" == site


@pytest.mark.parametrize("form", ["PyOpenCL object", "handle", "int_ptr"])
def test_retain_adds_one_reference_now_and_gives_it_back_at_release(context, form):
    with MemHandle.create_buffer(context, 64) as owner:
        witness = owner.mem
        before = witness.reference_count
        shared = MemHandle.retain({"PyOpenCL object": witness, "handle": owner, "int_ptr": owner.int_ptr}[form])
        assert witness.reference_count == before + 1
        assert shared.int_ptr == owner.int_ptr
        shared.release()
        assert witness.reference_count == before


def test_retain_outlives_the_owner(context, queue, kernel, ints):
    owner = MemHandle.create_buffer(context, flags=RW | MemFlags.COPY_HOST_PTR, hostbuf=ints)
    with MemHandle.retain(owner) as shared:
        owner.release()
        cml.enqueue_kernel(queue, kernel("inc"), ints.shape, None, InOut(shared))
        result = np.empty_like(ints)
        cml.enqueue_copy(queue, result, shared)
    assert (result == ints + 1).all()


def test_adopt_takes_over_the_existing_reference(context):
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    foreign = MemHandle.retain(raw).detach()  # the second reference, which nobody else will release
    before = raw.reference_count
    address = foreign.int_ptr
    _leave_reference(foreign)
    assert raw.reference_count == before
    handle = MemHandle.adopt(address, label="foreign")
    assert raw.reference_count == before
    handle.release()
    assert raw.reference_count == before - 1


def _leave_reference(mem) -> None:
    """Have the reference of `mem` outlive it, as foreign code would leave one."""
    from clmemlife import _opencl

    _opencl.retain_mem_object(mem.int_ptr)
    mem.release()


def test_sub_buffer_owns_the_creation_reference_of_the_child(context, step):
    with MemHandle.create_buffer(context, 2 * step) as root:
        raw_root = cl.Buffer(context, cl.mem_flags.READ_WRITE, 2 * step)
        raw = raw_root.get_sub_region(step, step)
        with root.sub_buffer(step, step) as child:
            assert raw_references(child.int_ptr) == raw_references(raw.int_ptr)
            witness = child.mem
            before = witness.reference_count
        assert witness.reference_count == before - 1


def test_sub_buffer_holds_its_root_for_as_long_as_it_lives(context, step):
    with MemHandle.create_buffer(context, 2 * step) as root:
        witness = root.mem
        before = witness.reference_count
        child = root.sub_buffer(step, step)
        with_child = witness.reference_count
        child.release()
        assert with_child > before
        assert witness.reference_count == before


def test_detach_gives_the_reference_to_a_pyopencl_object(context):
    handle = MemHandle.create_buffer(context, 64)
    witness = handle.mem
    before = witness.reference_count
    mem = handle.detach()
    assert isinstance(mem, cl.MemoryObjectHolder)
    assert witness.reference_count == before
    mem.release()
    assert witness.reference_count == before - 1


def test_detach_disarms_the_finalizer(context):
    handle = MemHandle.create_buffer(context, 64)
    mem = handle.detach()
    before = mem.reference_count
    handle.release()
    del handle
    gc.collect()
    assert mem.reference_count == before


def test_release_twice_is_a_no_op(context):
    handle = MemHandle.create_buffer(context, 64)
    witness = handle.mem
    handle.release()
    before = witness.reference_count
    handle.release()
    with pytest.raises(ReleasedError):
        handle.__enter__()
    del handle
    gc.collect()
    assert witness.reference_count == before


# Members


def test_members_of_a_buffer(context):
    line = here()
    with MemHandle.create_buffer(context, 64, MemFlags.READ_ONLY | MemFlags.HOST_WRITE_ONLY, label="field") as handle:
        assert handle.size == 64
        assert handle.flags == MemFlags.READ_ONLY | MemFlags.HOST_WRITE_ONLY
        assert handle.type == cl.mem_object_type.BUFFER
        assert handle.context == context
        assert handle.label == "field"
        assert handle.site.rpartition(":")[0] == line.rpartition(":")[0]
        assert int(handle.site.rpartition(":")[2]) == int(line.rpartition(":")[2]) + 1
        assert handle.parent is None
        assert handle.released is False
        assert handle.mem.int_ptr == handle.int_ptr
        assert isinstance(handle.mem, cl.Buffer)


def test_members_of_an_image(context, images):
    with MemHandle.create_image(context, (8, 4), RGBA, MemFlags.READ_ONLY, label="picture") as handle:
        assert handle.type == cl.mem_object_type.IMAGE2D
        assert handle.size >= 8 * 4 * 4
        assert handle.flags == MemFlags.READ_ONLY
        assert isinstance(handle.mem, cl.Image)
        assert (handle.mem.width, handle.mem.height) == (8, 4)
        assert "'picture'" in repr(handle)


def test_members_of_a_sub_buffer(context, step):
    with (
        MemHandle.create_buffer(context, 4 * step, MemFlags.READ_ONLY, label="field") as root,
        root.sub_buffer(step, 2 * step) as child,
    ):
        assert child.parent is root
        assert child.size == 2 * step
        assert child.label == f"field[{step}:{3 * step}]"
        assert child.info().offset == step
        assert child.info().associated_memobject == root.int_ptr
        assert child.flags & MemFlags.READ_ONLY
        assert child.int_ptr != root.int_ptr


def test_a_retained_handle_inherits_label_and_parent_but_has_its_own_site(context, step):
    with (
        MemHandle.create_buffer(context, 2 * step, label="field") as root,
        root.sub_buffer(0, step, label="part") as child,
        MemHandle.retain(child) as shared,
        MemHandle.retain(child, label="other") as renamed,
    ):
        assert (shared.label, shared.parent, shared.size) == ("part", root, step)
        assert renamed.label == "other"
        assert len({child.site, shared.site, renamed.site}) == 3


def test_info_answers_every_query_under_its_lower_case_name(context, queue):
    host = cml.aligned_empty(4096, np.uint8, context)
    with MemHandle.create_buffer(context, flags=RW | MemFlags.USE_HOST_PTR, hostbuf=host) as handle:
        info = handle.info()
        assert info.type == cl.mem_object_type.BUFFER
        assert info.flags == handle.flags == RW | MemFlags.USE_HOST_PTR
        assert info.size == 4096
        assert info.host_ptr == host.ctypes.data
        assert info.map_count == 0
        assert info.context == context
        assert info.associated_memobject is None
        assert info.offset == 0
        assert info.uses_svm_pointer in (False, None)
        with cml.Mapping(queue, handle, cml.MapFlags.READ) as mapping:
            assert mapping.array.size == 4096
            assert handle.info().map_count == 1


def test_the_reference_count_of_info_leaves_out_what_asking_takes(context):
    with MemHandle.create_buffer(context, 64) as handle:
        before = handle.info().reference_count
        with MemHandle.retain(handle):
            assert handle.info().reference_count == before + 1
        assert handle.info().reference_count == before


def test_info_is_a_frozen_record(context):
    with MemHandle.create_buffer(context, 64) as handle:
        info = handle.info()
    assert info.size == 64
    with pytest.raises(AttributeError):
        info.size = 65


def test_mem_has_a_reference_of_its_own_and_stays_safe_after_release(context, queue, ints):
    handle = MemHandle.create_buffer(context, flags=RW | MemFlags.COPY_HOST_PTR, hostbuf=ints)
    kept = handle.mem
    handle.release()
    result = np.empty_like(ints)
    cl.enqueue_copy(queue, result, kept)
    assert (result == ints).all()


def test_repr_tells_how_the_reference_was_come_by(context, step):
    with MemHandle.create_buffer(context, 2 * step, label="field") as handle, MemHandle.retain(handle) as shared:
        assert repr(handle) == f"<MemHandle 'field' ({2 * step} bytes, created at {handle.site}), create_buffer>"
        assert repr(shared).endswith(", retain>")
        with handle.sub_buffer(0, step) as child:
            assert repr(child).endswith(", sub_buffer>")
    with MemHandle.create_buffer(context, 8) as nameless:
        assert "unlabelled buffer (8 bytes" in repr(nameless)


def test_handles_can_be_weakly_referenced_and_hashed(context):
    with MemHandle.create_buffer(context, 64) as handle, MemHandle.retain(handle) as shared:
        assert weakref.ref(handle)() is handle
        assert len({handle, shared}) == 2
        assert handle != shared
        table = weakref.WeakKeyDictionary({handle: "value"})
        assert table[handle] == "value"


# After release

USES = {
    "mem": lambda h, q: h.mem,
    "int_ptr": lambda h, q: h.int_ptr,
    "size": lambda h, q: h.size,
    "flags": lambda h, q: h.flags,
    "type": lambda h, q: h.type,
    "context": lambda h, q: h.context,
    "parent": lambda h, q: h.parent,
    "info": lambda h, q: h.info(),
    "detach": lambda h, q: h.detach(),
    "with": lambda h, q: h.__enter__(),
    "sub_buffer": lambda h, q: h.sub_buffer(0, 4),
    "retain": lambda h, q: MemHandle.retain(h),
    "on_destroy": lambda h, q: h.on_destroy(print),
    "create_image over it": lambda h, q: MemHandle.create_image(q.context, (1,), RGBA, buffer=h),
    "In": lambda h, q: cml.In(h),
    "enqueue_fill": lambda h, q: cml.enqueue_fill(q, h, np.int32(0)),
    "enqueue_copy": lambda h, q: cml.enqueue_copy(q, np.zeros(16, np.int32), h),
    "Mapping": lambda h, q: cml.Mapping(q, h, cml.MapFlags.READ),
    "Migration": lambda h, q: cml.Migration(q, h),
}


@pytest.mark.parametrize("end", ["released", "detached"])
@pytest.mark.parametrize("use", USES)
def test_use_after_the_end_names_the_object_and_both_sites_before_any_opencl_call(
    context, queue, monkeypatch, use, end
):
    from clmemlife import _opencl

    if use == "create_image over it" and not context.devices[0].image_support:
        pytest.skip("no device with images")
    handle = MemHandle.create_buffer(context, 64, label="field")
    kept = handle.release() if end == "released" else handle.detach()
    line = here()
    for name in _opencl.ENTRY_POINTS:
        monkeypatch.setattr(_opencl, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    with pytest.raises(ReleasedError) as caught:
        USES[use](handle, queue)
    monkeypatch.undo()
    text = str(caught.value)
    assert f"'field' (64 bytes, created at {handle.site})" in text
    end_site = f"{line.rpartition(':')[0]}:{int(line.rpartition(':')[2]) - 1}"
    assert f"was {end} at {end_site}" in text
    del kept


def test_a_released_handle_is_refused_as_kernel_argument(context, queue, kernel):
    handle = MemHandle.create_buffer(context, 64, label="field")
    handle.release()
    with pytest.raises(ReleasedError, match="'field'"):
        cml.enqueue_kernel(queue, kernel("inc"), (16,), None, handle)


def test_after_release_label_site_released_repr_and_release_still_answer(context):
    handle = MemHandle.create_buffer(context, 64, label="field")
    site = handle.site
    handle.release()
    line = here()
    assert handle.label == "field"
    assert handle.site == site
    assert handle.released is True
    assert handle.release() is None
    release_site = f"{line.rpartition(':')[0]}:{int(line.rpartition(':')[2]) - 1}"
    assert repr(handle) == f"<MemHandle 'field' (64 bytes, created at {site}), released at {release_site}>"


# Adoption


def test_adopting_what_a_live_handle_owns_is_refused_and_names_the_owner(context):
    with MemHandle.create_buffer(context, 64, label="field") as owner:
        witness = owner.mem
        before = witness.reference_count
        with pytest.raises(OwnershipError) as caught:
            MemHandle.adopt(owner.int_ptr)
        assert f"'field' (64 bytes, created at {owner.site})" in str(caught.value)
        assert "MemHandle.retain" in str(caught.value)
        assert witness.reference_count == before


def test_adopting_the_same_raw_handle_twice_is_refused(context):
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    address = raw.int_ptr
    mem = MemHandle.retain(raw).detach()
    _leave_reference(mem)
    with MemHandle.adopt(address, label="foreign"):
        before = raw.reference_count
        with pytest.raises(OwnershipError, match="'foreign'"):
            MemHandle.adopt(address)
        assert raw.reference_count == before


def test_adopting_an_object_that_releases_itself_is_refused(context):
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    with pytest.raises(TypeError, match=r"a Buffer releases itself: use MemHandle\.retain"):
        MemHandle.adopt(raw)
    with (
        MemHandle.create_buffer(context, 64) as handle,
        pytest.raises(TypeError, match=r"a MemHandle releases itself: use MemHandle\.retain"),
    ):
        MemHandle.adopt(handle)


@pytest.mark.parametrize("take", [MemHandle.adopt, MemHandle.retain])
@pytest.mark.parametrize("wrong", [None, True, "0x10", 1.5, b"x", [], cl.mem_flags])
def test_what_is_no_memory_object_is_refused(take, wrong):
    with pytest.raises(TypeError, match="takes a PyOpenCL memory object or the address of a cl_mem"):
        take(wrong)


@pytest.mark.parametrize("take", [MemHandle.adopt, MemHandle.retain])
@pytest.mark.parametrize("wrong", [0, -1])
def test_what_is_no_address_is_refused(take, wrong):
    with pytest.raises(ValueError, match=f"{wrong} is not the address of a cl_mem"):
        take(wrong)


def test_a_handle_is_never_made_by_its_class():
    with pytest.raises(TypeError, match="create_buffer, create_image, retain or adopt"):
        MemHandle()


def test_one_object_with_two_handles_counts_once(context):
    before = cml.statistics()
    with MemHandle.create_buffer(context, 64) as handle, MemHandle.retain(handle):
        now = cml.statistics()
        assert now.current_bytes - before.current_bytes == 64
        assert now.current_count - before.current_count == 2


def test_what_another_library_pooled_can_be_retained_and_sliced(context, queue, step):
    pool = pyopencl.tools.MemoryPool(pyopencl.tools.ImmediateAllocator(queue))
    pooled = pool.allocate(4 * step)
    with MemHandle.retain(pooled) as handle, handle.sub_buffer(step, step) as child:
        cml.enqueue_fill(queue, child, np.int32(7)).wait()
        result = np.zeros(step // 4, np.int32)
        cl.enqueue_copy(queue, result, pooled, src_offset=step)
    assert (result == 7).all()
    pooled.release()
    pool.stop_holding()


# Arguments of create_buffer


def test_swapped_size_and_flags_are_a_type_error_that_says_so(context):
    with pytest.raises(TypeError, match=r"size .* comes before flags"):
        MemHandle.create_buffer(context, MemFlags.READ_WRITE, 64)
    for size in (4096, np.int64(4096)):
        with pytest.raises(TypeError, match=r"before flags: create_buffer\(context, 4096, MemFlags.READ_ONLY\), or"):
            MemHandle.create_buffer(context, cl.mem_flags.READ_ONLY, size)
    with pytest.raises(TypeError, match=r"create_buffer\(context, size, MemFlags.READ_ONLY\)"):
        MemHandle.create_buffer(context, MemFlags.READ_ONLY)
    with pytest.raises(TypeError, match=r"plain integer 4: .*write MemFlags.READ_ONLY"):
        MemHandle.create_buffer(context, 4096, cl.mem_flags.READ_ONLY)


@pytest.mark.parametrize("size", [0, -1, np.int64(0)])
def test_a_size_below_one_byte_is_refused(context, size):
    with pytest.raises(ValueError, match=f"at least 1 byte, not {size}"):
        MemHandle.create_buffer(context, size)


@pytest.mark.parametrize("size", [64.0, "64", True, [64], cml.MapFlags.READ, np.float32(64)])
def test_a_size_that_is_no_integer_is_refused(context, size):
    with pytest.raises(TypeError, match="size"):
        MemHandle.create_buffer(context, size)


def test_a_size_is_needed_without_host_memory(context):
    with pytest.raises(ValueError, match="needs a size in bytes, or a hostbuf"):
        MemHandle.create_buffer(context)


def test_numpy_integers_are_sizes(context):
    with MemHandle.create_buffer(context, np.int64(64)) as handle:
        assert handle.size == 64


def test_a_size_over_the_limit_quotes_the_limit_and_the_device(context):
    largest = max(context.devices, key=lambda device: device.max_mem_alloc_size)
    with pytest.raises(
        ValueError, match=re.escape(f"CL_DEVICE_MAX_MEM_ALLOC_SIZE of {largest.name.strip()}")
    ) as caught:
        MemHandle.create_buffer(context, largest.max_mem_alloc_size + 1)
    assert f"of {largest.max_mem_alloc_size} bytes" in str(caught.value)


@pytest.mark.parametrize("flags", [1, 0, True, None, "READ_WRITE", cl.mem_flags.READ_ONLY, cml.MapFlags.READ])
def test_flags_of_another_type_are_refused(context, flags):
    with pytest.raises(TypeError, match="flags must be MemFlags"):
        MemHandle.create_buffer(context, 64, flags)


@pytest.mark.parametrize(
    "flags",
    [
        MemFlags.READ_ONLY | MemFlags.WRITE_ONLY,
        MemFlags.READ_WRITE | MemFlags.READ_ONLY,
        MemFlags.HOST_READ_ONLY | MemFlags.HOST_WRITE_ONLY,
        MemFlags.HOST_NO_ACCESS | MemFlags.HOST_READ_ONLY,
    ],
)
def test_flags_that_contradict_each_other_are_refused(context, flags):
    with pytest.raises(ValueError, match="contradict each other"):
        MemHandle.create_buffer(context, 64, flags)


@pytest.mark.parametrize("other", [MemFlags.ALLOC_HOST_PTR, MemFlags.COPY_HOST_PTR])
def test_use_host_ptr_excludes_the_other_host_flags(context, ints, other):
    with pytest.raises(ValueError, match="USE_HOST_PTR excludes the other two"):
        MemHandle.create_buffer(context, flags=MemFlags.USE_HOST_PTR | other, hostbuf=ints)


def test_host_memory_without_a_flag_to_use_it_is_refused(context, ints):
    with pytest.raises(ValueError, match=r"add MemFlags\.USE_HOST_PTR or MemFlags\.COPY_HOST_PTR"):
        MemHandle.create_buffer(context, 64, hostbuf=ints)


@pytest.mark.parametrize("flag", [MemFlags.USE_HOST_PTR, MemFlags.COPY_HOST_PTR])
def test_a_host_flag_without_host_memory_is_refused(context, flag):
    with pytest.raises(ValueError, match=f"{flag.name} needs a hostbuf"):
        MemHandle.create_buffer(context, 64, RW | flag)


def test_a_size_beyond_the_host_memory_is_refused(context, ints):
    with pytest.raises(ValueError, match="hostbuf has 4096 bytes, fewer than the buffer's size of 4097"):
        MemHandle.create_buffer(context, 4097, RW | MemFlags.COPY_HOST_PTR, hostbuf=ints)


def test_the_size_defaults_to_that_of_the_host_memory_and_may_be_less(context, queue, ints):
    with MemHandle.create_buffer(context, flags=RW | MemFlags.COPY_HOST_PTR, hostbuf=ints) as handle:
        assert handle.size == ints.nbytes
    with MemHandle.create_buffer(context, 64, RW | MemFlags.COPY_HOST_PTR, hostbuf=ints) as handle:
        assert handle.size == 64


@pytest.mark.parametrize("wrong", [None, "context", 0])
def test_a_context_of_another_type_is_refused(wrong):
    with pytest.raises(TypeError, match=r"context must be a pyopencl\.Context"):
        MemHandle.create_buffer(wrong, 64)


def test_a_queue_is_no_context(queue):
    with pytest.raises(TypeError, match=r"context must be .* not CommandQueue"):
        MemHandle.create_buffer(queue, 64)


def test_a_failed_construction_leaves_nothing_behind(context, monkeypatch):
    from clmemlife import CallError, _opencl

    def fail(_):
        raise CallError("clRetainMemObject", -6)

    monkeypatch.setattr(_opencl, "retain_mem_object", fail)
    before = cml.statistics()
    with pytest.raises(CallError, match=r"clRetainMemObject failed: OUT_OF_HOST_MEMORY \(-6\)"):
        MemHandle.create_buffer(context, 64)
    monkeypatch.undo()
    assert cml.live() == ()
    assert cml.statistics() == before


def test_out_of_memory_collects_once_retries_once_and_then_says_what_is_alive(context, monkeypatch):
    from clmemlife import _opencl

    calls = []

    def refuse(*arguments):
        calls.append(arguments)
        raise cl.MemoryError(cl._cl._ErrorRecord(msg="no memory", code=-4, routine="clCreateBuffer"))

    with MemHandle.create_buffer(context, 64, label="hog") as hog:
        monkeypatch.setattr(_opencl, "create_buffer", refuse)
        with pytest.raises(cl.MemoryError) as caught:
            MemHandle.create_buffer(context, 128)
        monkeypatch.undo()
        text = str(caught.value)
        assert len(calls) == 2
        assert "128 bytes" in text
        assert f"'hog' (64 bytes, created at {hog.site})" in text
        assert context.devices[0].name.strip() in text or context.devices[-1].name.strip() in text
        assert caught.value.code == -4


def test_out_of_memory_is_mended_by_collecting_a_cycle(context, monkeypatch):
    from clmemlife import _opencl

    real, calls = _opencl.create_buffer, []

    def refuse_first(*arguments):
        calls.append(len(cml.live()))
        if len(calls) == 1:
            raise cl.MemoryError(cl._cl._ErrorRecord(msg="no memory", code=-4, routine="clCreateBuffer"))
        return real(*arguments)

    class Holder:
        pass

    gc.collect()
    gc.disable()
    try:
        holder = Holder()
        holder.itself, holder.handle = holder, MemHandle.create_buffer(context, 64)
        del holder
        monkeypatch.setattr(_opencl, "create_buffer", refuse_first)
        with pytest.warns(LeakWarning), MemHandle.create_buffer(context, 128) as handle:
            assert handle.size == 128
    finally:
        gc.enable()
    assert calls == [1, 0]


# Arguments of create_image


def test_an_image_has_its_type_by_shape(context, images):
    kinds = cl.mem_object_type
    for shape, is_array, kind in [
        ((8,), False, kinds.IMAGE1D),
        ((8, 4), False, kinds.IMAGE2D),
        ((8, 4, 2), False, kinds.IMAGE3D),
        ((8, 3), True, kinds.IMAGE1D_ARRAY),
        ((8, 4, 3), True, kinds.IMAGE2D_ARRAY),
    ]:
        try:
            listed = cl.get_supported_image_formats(context, cl.mem_flags.READ_WRITE, kind)
        except cl.Error:
            listed = []
        if RGBA not in listed:
            continue
        with MemHandle.create_image(context, shape, RGBA, is_array=is_array) as image:
            assert image.type == kind
            assert image.size >= 4 * shape[0]


def test_an_image_over_a_buffer_holds_the_buffer(context, images):
    listed = cl.get_supported_image_formats(context, cl.mem_flags.READ_WRITE, cl.mem_object_type.IMAGE1D_BUFFER)
    if RGBA not in listed:
        pytest.skip("no such image format over a buffer")
    with MemHandle.create_buffer(context, 4096, label="field") as buffer:
        witness = buffer.mem
        before = witness.reference_count
        with MemHandle.create_image(context, (1024,), RGBA, buffer=buffer) as image:
            assert image.type == cl.mem_object_type.IMAGE1D_BUFFER
            assert image.info().associated_memobject == buffer.int_ptr
            assert witness.reference_count > before
        assert witness.reference_count == before


@pytest.mark.parametrize(
    ("shape", "is_array", "message"),
    [((), False, "no image"), ((1, 2, 3, 4), False, "no image"), ((8,), True, "no image"), ((0,), False, "one pixel")],
)
def test_a_shape_that_is_no_images_is_refused(context, images, shape, is_array, message):
    with pytest.raises(ValueError, match=message):
        MemHandle.create_image(context, shape, RGBA, is_array=is_array)


@pytest.mark.parametrize("shape", [(8.0,), ("8",), (None, 4)])
def test_a_shape_of_other_things_than_integers_is_refused(context, shape):
    with pytest.raises(TypeError):
        MemHandle.create_image(context, shape, RGBA)


def test_an_image_refuses_what_a_buffer_refuses(context, images):
    pixels = np.zeros((4, 8, 4), np.uint8)
    with pytest.raises(TypeError, match="flags must be MemFlags"):
        MemHandle.create_image(context, (8, 4), RGBA, 1)
    with pytest.raises(TypeError, match="context must be"):
        MemHandle.create_image(None, (8, 4), RGBA)
    with pytest.raises(TypeError, match=r"format must be a pyopencl\.ImageFormat, not str"):
        MemHandle.create_image(context, (8, 4), "RGBA")
    with pytest.raises(ValueError, match=r"add MemFlags.USE_HOST_PTR"):
        MemHandle.create_image(context, (8, 4), RGBA, hostbuf=pixels)
    with pytest.raises(ValueError, match="needs a hostbuf"):
        MemHandle.create_image(context, (8, 4), RGBA, RW | MemFlags.COPY_HOST_PTR)
    with pytest.raises(ValueError, match="hostbuf has 128 bytes, fewer than the 160"):
        MemHandle.create_image(context, (8, 5), RGBA, RW | MemFlags.COPY_HOST_PTR, hostbuf=pixels)
    with pytest.raises(ValueError, match="pitches describe hostbuf"):
        MemHandle.create_image(context, (8, 4), RGBA, pitches=(32,))
    with pytest.raises(ValueError, match="smaller than a row of 32"):
        MemHandle.create_image(context, (8, 4), RGBA, RW | MemFlags.COPY_HOST_PTR, hostbuf=pixels, pitches=(16,))
    strange = cl.ImageFormat(cl.channel_order.RGB, cl.channel_type.UNSIGNED_INT8)
    with pytest.raises(ValueError, match="not among the formats"):
        MemHandle.create_image(context, (8, 4), strange)


def test_an_image_has_no_sub_buffers(context, images):
    with (
        MemHandle.create_image(context, (8, 4), RGBA, label="picture") as image,
        pytest.raises(TypeError, match=r"only buffers have sub-buffers, .*'picture'"),
    ):
        image.sub_buffer(0, 8)


# Sub-buffers


def test_nested_sub_buffers_are_re_based_on_the_root(context, queue, step):
    with (
        MemHandle.create_buffer(context, 8 * step, label="field") as root,
        root.sub_buffer(2 * step, 4 * step) as child,
        child.sub_buffer(step, step) as grandchild,
    ):
        assert grandchild.info().offset == 3 * step
        assert grandchild.info().associated_memobject == root.int_ptr
        assert grandchild.parent is root
        cml.enqueue_fill(queue, root, np.int32(0))
        cml.enqueue_fill(queue, grandchild, np.int32(7))
        result = np.empty(8 * step // 4, np.int32)
        cml.enqueue_copy(queue, result, root)
    assert (np.flatnonzero(result == 7) == np.arange(3 * step // 4, step)).all()


def test_nesting_works_after_the_root_was_released(context, queue, step):
    root = MemHandle.create_buffer(context, 8 * step, label="field")
    cml.enqueue_fill(queue, root, np.int32(0))
    with root.sub_buffer(2 * step, 4 * step) as child:
        root.release()
        with child.sub_buffer(step, step) as grandchild:
            assert grandchild.info().offset == 3 * step
            cml.enqueue_fill(queue, grandchild, np.int32(7)).wait()
            result = np.empty(step, np.int32)
            cml.enqueue_copy(queue, result, child)
    assert (np.flatnonzero(result == 7) == np.arange(step // 4, step // 2)).all()


def test_parent_released_first_leaves_exactly_nothing_after_the_last_child(context, step, wait):
    gone = []
    root = MemHandle.create_buffer(context, 2 * step)
    root.on_destroy(gone.append)
    first, second = root.sub_buffer(0, step), root.sub_buffer(step, step)
    root.release()
    first.release()
    cml.statistics()
    assert gone == []
    second.release()
    del root, first, second
    wait(lambda: bool(gone), "the root is destroyed")


def test_the_whole_can_be_a_sub_buffer(context, step):
    with MemHandle.create_buffer(context, step) as root, root.sub_buffer(0, step) as child:
        assert child.size == root.size
        with child.sub_buffer(0, step) as grandchild:
            assert grandchild.parent is root


@pytest.mark.parametrize(("origin", "size"), [(0, 0), (0, -1), (-1, 1), (0, 4097), (4096, 1), (1 << 62, 1)])
def test_a_region_that_is_empty_or_leaves_the_buffer_is_refused(context, origin, size):
    with MemHandle.create_buffer(context, 4096, label="field") as root:
        with pytest.raises(
            ValueError, match=re.escape(f"bytes [{origin}, {origin + size}) are not a region")
        ) as caught:
            root.sub_buffer(origin, size)
        assert f"'field' (4096 bytes, created at {root.site})" in str(caught.value)


@pytest.mark.parametrize(("origin", "size"), [(0.0, 64), (0, 64.0), (None, 64), (0, None), ("0", 64), (True, 64)])
def test_a_region_of_other_things_than_integers_is_refused(context, origin, size):
    with MemHandle.create_buffer(context, 4096) as root, pytest.raises(TypeError):
        root.sub_buffer(origin, size)


@pytest.mark.parametrize("flags", [1, True, None, cml.MapFlags.READ])
def test_a_sub_buffer_refuses_flags_of_another_type(context, flags):
    with MemHandle.create_buffer(context, 4096) as root, pytest.raises(TypeError, match="flags must be MemFlags"):
        root.sub_buffer(0, 64, flags)


@pytest.mark.parametrize("flag", [MemFlags.USE_HOST_PTR, MemFlags.ALLOC_HOST_PTR, MemFlags.COPY_HOST_PTR])
def test_host_pointer_flags_are_inherited_not_given(context, flag):
    with MemHandle.create_buffer(context, 4096) as root, pytest.raises(ValueError, match=f"{flag.name} is inherited"):
        root.sub_buffer(0, 64, flag)


def test_a_sub_buffer_can_be_narrowed_but_not_widened(context):
    with MemHandle.create_buffer(context, 4096) as root, root.sub_buffer(0, 64, MemFlags.READ_ONLY) as child:
        assert child.flags & MemFlags.READ_ONLY
    with (
        MemHandle.create_buffer(context, 4096, MemFlags.READ_ONLY | MemFlags.HOST_READ_ONLY) as root,
        pytest.raises(ValueError, match=r"READ_ONLY buffer cannot be MemFlags.WRITE_ONLY"),
    ):
        root.sub_buffer(0, 64, MemFlags.WRITE_ONLY)
    with (
        MemHandle.create_buffer(context, 4096, MemFlags.HOST_READ_ONLY) as root,
        pytest.raises(ValueError, match=r"HOST_READ_ONLY buffer cannot be MemFlags.HOST_WRITE_ONLY"),
    ):
        root.sub_buffer(0, 64, MemFlags.HOST_WRITE_ONLY)


def test_a_misaligned_origin_names_the_object_the_alignment_and_the_nearest_valid_origins(context, step):
    least = min(device.mem_base_addr_align // 8 for device in context.devices)
    with MemHandle.create_buffer(context, 8 * step, label="field") as root:
        with pytest.raises(AlignmentError) as caught:
            root.sub_buffer(least + 4, 4)
        text = str(caught.value)
        assert f"origin {least + 4} of a sub-buffer of 'field' ({8 * step} bytes, created at {root.site})" in text
        assert f"multiple of {least} bytes" in text
        assert f"nearest valid: {least} and {2 * least}" in text
        assert isinstance(caught.value, ValueError)


def test_the_nearest_origins_of_a_nested_sub_buffer_are_relative_to_it(context, step):
    with MemHandle.create_buffer(context, 8 * step) as root, root.sub_buffer(2 * step, 4 * step) as child:
        least = min(device.mem_base_addr_align // 8 for device in context.devices)
        with pytest.raises(AlignmentError, match=f"nearest valid: 0 and {least}$"):
            child.sub_buffer(4, 4)
        with child.sub_buffer(0, 4), child.sub_buffer(least, 4):
            pass


def test_an_origin_beyond_the_buffer_is_not_advised(context):
    with MemHandle.create_buffer(context, 8) as root, pytest.raises(AlignmentError, match=r"nearest valid: 0$"):
        root.sub_buffer(4, 4)


def test_an_origin_that_only_some_devices_take_is_refused_where_it_is_used(context, queue, monkeypatch):
    from clmemlife import _limits

    limits = _limits.context_limits(context)
    actual = limits.alignments[queue.device.int_ptr]
    strict = dict.fromkeys(limits.alignments, actual) | {queue.device.int_ptr: 2 * actual, -1: actual}
    monkeypatch.setattr(limits, "alignments", strict)
    monkeypatch.setattr(_limits, "context_limits", lambda context: limits)  # also of another object for the context
    with (
        MemHandle.create_buffer(context, 4 * actual, label="field") as root,
        root.sub_buffer(actual, actual, label="part") as child,
    ):
        with pytest.raises(AlignmentError) as caught:
            cml.enqueue_fill(queue, child, np.int32(0))
        assert f"'part' ({actual} bytes, created at {child.site}) starts at byte {actual}" in str(caught.value)
        assert f"multiple of {2 * actual}" in str(caught.value)
        cml.enqueue_fill(queue, root, np.int32(0)).wait()


def test_a_queue_of_another_context_is_refused_and_the_object_named(context, devices, queue):
    other = cl.Context(devices)
    with MemHandle.create_buffer(other, 64, label="field") as handle:
        with pytest.raises(ContextMismatchError) as caught:
            cml.enqueue_fill(queue, handle, np.int32(0))
        assert f"'field' (64 bytes, created at {handle.site})" in str(caught.value)


# Copies


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy, lambda h: pickle.dumps(h, protocol=0)])
def test_a_handle_is_neither_pickled_nor_copied_and_the_message_has_advice(context, make):
    with MemHandle.create_buffer(context, 64, label="field") as handle:
        witness = handle.mem
        before = witness.reference_count
        with pytest.raises(TypeError, match=r"'field' .* create a new buffer in the worker") as caught:
            make(handle)
        assert "MemHandle.retain" in str(caught.value)
        assert handle.site in str(caught.value)
        assert witness.reference_count == before


def test_a_released_handle_is_not_pickled_either(context):
    handle = MemHandle.create_buffer(context, 64)
    handle.release()
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        pickle.dumps([handle])


# Releases that fail


def test_a_release_that_fails_is_a_cleanup_warning_with_call_status_and_object(context, monkeypatch):
    from clmemlife import CallError, CleanupWarning, _opencl

    handle = MemHandle.create_buffer(context, 64, label="field")
    address = handle.int_ptr
    real = _opencl.release_mem_object

    def fail(int_ptr):
        raise CallError("clReleaseMemObject", -38)

    monkeypatch.setattr(_opencl, "release_mem_object", fail)
    with pytest.warns(CleanupWarning, match=r"clReleaseMemObject failed: INVALID_MEM_OBJECT \(-38\)") as caught:
        handle.release()
    monkeypatch.undo()
    assert f"'field' (64 bytes, created at {handle.site})" in str(caught[0].message)
    assert handle.released
    real(address)


def test_a_release_that_fails_does_not_mask_the_exception_of_the_body(context, monkeypatch, recwarn):
    from clmemlife import CallError, _opencl

    real = _opencl.release_mem_object
    handle = MemHandle.create_buffer(context, 64, label="field")
    address = handle.int_ptr

    def fail(int_ptr):
        raise CallError("clReleaseMemObject", -38)

    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    import warnings

    with warnings.catch_warnings(), pytest.raises(KeyError, match="of the body"), handle:
        warnings.simplefilter("error")
        monkeypatch.setattr(_opencl, "release_mem_object", fail)
        raise KeyError("of the body")
    monkeypatch.undo()
    real(address)
    assert "clReleaseMemObject" in str(unraisable[0].exc_value)


@pytest.mark.parametrize("make", [MemHandle.retain, MemHandle.adopt])
def test_a_number_that_is_no_address_is_refused(make):
    for number in (0, -1, 1 << 64):
        with pytest.raises(ValueError, match="is not the address of a cl_mem"):
            make(number)
