"""Every public operation, with every driver call it makes failing in turn: the right error, and nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import (
    CallError,
    CleanupWarning,
    In,
    InOut,
    LeakWarning,
    MapFlags,
    Mapping,
    MemFlags,
    MemHandle,
    Migration,
    MigrationFlags,
    Out,
    _journal,
    _ledger,
    _opencl,
    _reference,
)

sys.path.insert(0, str(Path(__file__).parent))

from fake_driver import ORIGINAL, FakeDriver, Plan, attempt

STATUS = cl.status_code
OUT_OF_MEMORY = (STATUS.MEM_OBJECT_ALLOCATION_FAILURE, STATUS.OUT_OF_RESOURCES, STATUS.OUT_OF_HOST_MEMORY)
RGBA = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
RW = MemFlags.READ_WRITE
SIZE = 4096
KERNELS = """
__kernel void many(__global int *x, __global const int *y, int n, __local int *scratch) {
  scratch[get_local_id(0)] = n; x[get_global_id(0)] = y[get_global_id(0)] + scratch[get_local_id(0)];
}
__kernel void paint(__write_only image2d_t image) {
  write_imageui(image, (int2)(get_global_id(0), get_global_id(1)), (uint4)(1, 2, 3, 4));
}
"""


class BodyError(Exception):
    """What the body of a ``with`` raises."""


class World:
    """What operations work with."""

    def __init__(self, program: cl.Program, queue: cl.CommandQueue, queue2: cl.CommandQueue, driver: FakeDriver):
        context = queue.context
        self.context, self.queue, self.queue2, self.driver = context, queue, queue2, driver
        self.step = max(SIZE, *(device.mem_base_addr_align // 8 for device in context.devices))
        self.many = cl.Kernel(program, "many")
        self.typed = cl.Kernel(program, "many")
        self.typed.set_arg_types([None, None, np.int32, None])
        self.paint = cl.Kernel(program, "paint")
        self._gate: cl.UserEvent | None = None
        self._opened: list[Any] = []

    def buffer(self, size: int = SIZE, **options: Any) -> MemHandle:
        return MemHandle.create_buffer(self.context, size, label="subject", **options)

    def image(self, *shape: int, **options: Any) -> MemHandle:
        return MemHandle.create_image(self.context, shape or (16, 8), RGBA, label="subject", **options)

    def foreign(self) -> cl.Buffer:
        """Return an object of somebody else."""
        mem = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, SIZE)
        self.driver.guard(mem)
        return mem

    @contextmanager
    def pending(self) -> Iterator[cl.Event]:
        """Give an event of the other queue that is pending within the block."""
        self._gate = cl.UserEvent(self.context)
        try:
            yield cl.enqueue_marker(self.queue2, [self._gate])
        finally:
            self.open_gate()
            self.finish()

    def open_gate(self) -> None:
        """Let go on what waits for a `pending` event."""
        if self._gate is not None:
            self._gate.set_status(cl.command_execution_status.COMPLETE)
            self._gate = None

    def flush(self) -> None:
        self.queue.flush()
        self.queue2.flush()

    def finish(self) -> None:
        self.queue.finish()
        self.queue2.finish()

    def mapping(self, mem: MemHandle) -> Mapping:
        """Map; should the map be given up, `mend` undoes what was kept on purpose."""
        made = Mapping(self.queue, mem, MapFlags.WRITE)
        self._opened.append(made._open)
        return made

    def mend(self) -> int:
        """End maps that the library has given up, in the driver and in the books; return how many."""
        given_up = [one for one in self._opened if one.entry in _ledger.open_maps()]
        self._opened.clear()
        for one in given_up:
            assert one.ended.startswith("given up")
            ORIGINAL["enqueue_unmap_mem_object"](one.memory_map, self.queue).wait()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(one.memory_map))  # it was made to last for ever
            one.memory_map = None
            _ledger.remove(one.entry)
        return len(given_up)

    @contextmanager
    def open_mapping(self, mem: MemHandle, flags: MapFlags = MapFlags.WRITE) -> Iterator[Mapping]:
        mapping = Mapping(self.queue, mem, flags)
        try:
            yield mapping
        finally:
            mapping.unmap().wait()


Act = Callable[[], Any]
OPERATIONS: dict[str, Operation] = {}


class Operation:
    """Prepare what is needed; give the act, which the sweep runs with failing calls, and then without.

    Attributes
    ----------
    covers : tuple of str
        Public names that it exercises.
    once : bool
        A second act is not possible on the same state, even after a failure.
    warns : tuple of type
        Warnings that it emits in any case.
    images : bool
        It needs a device with images.
    several : bool
        It enqueues several commands, of which the first are under way when a later one fails.
    marks : pytest mark
        What its tests are marked with.
    """

    def __init__(self, prepare: Callable[[World], Iterator[Act]], covers: tuple[str, ...], **options: Any) -> None:
        self.prepare = contextmanager(prepare)
        self.covers = covers
        self.once = options.get("once", False)
        self.warns = options.get("warns", ())
        self.images = options.get("images", False)
        self.several = options.get("several", False)
        self.marks = options.get("marks", ())


def operation(*covers: str, **options: Any) -> Callable[[Callable[[World], Iterator[Act]]], None]:
    def register(prepare: Callable[[World], Iterator[Act]]) -> None:
        OPERATIONS[prepare.__name__] = Operation(prepare, covers, **options)

    return register


# -- handles


@operation("MemHandle.create_buffer")
def create_buffer_of_a_size(world):
    yield world.buffer


@operation("MemHandle.create_buffer")
def create_buffer_in_host_memory_of_the_runtime(world):
    yield lambda: world.buffer(flags=RW | MemFlags.ALLOC_HOST_PTR)


@operation("MemHandle.create_buffer")
def create_buffer_with_a_copy(world):
    data = np.arange(SIZE, dtype=np.uint8)
    yield lambda: world.buffer(flags=RW | MemFlags.COPY_HOST_PTR, hostbuf=data)


@operation("MemHandle.create_buffer", "aligned_empty")
def create_buffer_over_host_memory(world):
    yield lambda: world.buffer(
        flags=RW | MemFlags.USE_HOST_PTR, hostbuf=cml.aligned_empty(SIZE, np.uint8, world.context)
    )


@operation("MemHandle.create_image", images=True)
def create_image_of_a_shape(world):
    yield world.image


@operation("MemHandle.create_image", images=True)
def create_image_with_a_copy(world):
    data = np.zeros((8, 16, 4), np.uint8)
    yield lambda: world.image(flags=RW | MemFlags.COPY_HOST_PTR, hostbuf=data)


@operation("MemHandle.create_image", images=True)
def create_image_over_host_memory(world):
    yield lambda: world.image(
        flags=RW | MemFlags.USE_HOST_PTR, hostbuf=cml.aligned_empty((8, 16, 4), np.uint8, world.context)
    )


@operation("MemHandle.create_image", images=True)
def create_image_over_a_buffer(world):
    with world.buffer() as buffer:
        yield lambda: world.image(16, buffer=buffer)


@operation("MemHandle.retain")
def retain_a_handle(world):
    with world.buffer() as buffer:
        yield lambda: MemHandle.retain(buffer)


@operation("MemHandle.retain")
def retain_a_pyopencl_object(world):
    mem = world.foreign()
    yield lambda: MemHandle.retain(mem)


@operation("MemHandle.retain")
def retain_an_address(world):
    mem = world.foreign()
    yield lambda: MemHandle.retain(mem.int_ptr, label="subject")


@operation("MemHandle.retain")
def retain_a_sub_buffer(world):
    with world.buffer(2 * world.step) as buffer, buffer.sub_buffer(world.step, SIZE) as part:
        yield lambda: MemHandle.retain(part)


@operation("MemHandle.adopt")
def adopt(world):
    mem = world.foreign()
    ORIGINAL["retain_mem_object"](mem.int_ptr)
    yield lambda: MemHandle.adopt(mem.int_ptr, label="subject")


@operation("MemHandle.sub_buffer")
def sub_buffer(world):
    with world.buffer(2 * world.step) as buffer:
        yield lambda: buffer.sub_buffer(world.step, SIZE)


@operation("MemHandle.sub_buffer")
def sub_buffer_of_a_sub_buffer(world):
    with world.buffer(3 * world.step) as buffer, buffer.sub_buffer(world.step, 2 * world.step) as part:
        yield lambda: part.sub_buffer(world.step, SIZE)


@operation("MemHandle.sub_buffer")
def sub_buffer_of_a_sub_buffer_whose_root_was_released(world):
    with world.buffer(3 * world.step) as buffer:
        part = buffer.sub_buffer(world.step, 2 * world.step)
    with part:
        yield lambda: part.sub_buffer(world.step, SIZE)


@operation("MemHandle.detach", once=True)
def detach(world):
    with world.buffer() as buffer:
        yield buffer.detach


@operation("MemHandle.release")
def release(world):
    with world.buffer() as buffer:
        yield buffer.release


@operation("MemHandle.release")
def release_of_a_sub_buffer(world):
    with world.buffer(2 * world.step) as buffer, buffer.sub_buffer(world.step, SIZE) as part:
        yield part.release


@operation("MemHandle.release")
def release_of_host_memory(world):
    data = cml.aligned_empty(SIZE, np.uint8, world.context)
    with world.buffer(flags=RW | MemFlags.USE_HOST_PTR, hostbuf=data) as buffer:
        yield buffer.release


@operation("MemHandle.create_buffer", "MemHandle.release")
def with_block_of_a_handle(world):
    def act():
        with world.buffer() as buffer:
            assert buffer.size == SIZE

    yield act


@operation("MemHandle.create_buffer", "MemHandle.release", once=True)
def with_block_of_a_handle_whose_body_raises(world):
    def act():
        with world.buffer():
            raise BodyError

    yield act


@operation("MemHandle.create_buffer", warns=(LeakWarning,))
def collection_of_a_handle_that_nobody_released(world):
    def act():
        handle = world.buffer()
        del handle
        gc.collect()

    yield act


@operation("MemHandle.on_destroy")
def on_destroy(world):
    with world.buffer() as buffer:
        yield lambda: buffer.on_destroy(lambda info: None)


@operation("MemHandle.info")
def info(world):
    with world.buffer() as buffer:
        yield buffer.info


@operation("MemHandle.mem")
def mem(world):
    with world.buffer() as buffer:
        yield lambda: buffer.mem


# -- commands


@operation("enqueue_kernel", "InOut", "In", "Out")
def enqueue_kernel_with_each_kind_of_argument(world):
    with world.buffer() as x, world.buffer() as y:
        size = (SIZE // 4,)
        scratch = cl.LocalMemory(64 * 4)
        yield lambda: [
            cml.enqueue_kernel(world.queue, world.many, size, (64,), InOut(x), In(y), np.int32(1), scratch),
            cml.enqueue_kernel(world.queue, world.many, size, (64,), Out(x), y.mem, np.int32(1), scratch),
            cml.enqueue_kernel(world.queue, world.typed, size, (64,), x, y, 1, scratch),
        ]


@operation("enqueue_kernel")
def enqueue_kernel_over_a_sub_buffer_and_a_foreign_object(world):
    foreign = world.foreign()
    with world.buffer(2 * world.step) as root, root.sub_buffer(world.step, SIZE) as part:
        yield lambda: cml.enqueue_kernel(
            world.queue, world.many, (64,), (64,), part, foreign, np.int32(1), cl.LocalMemory(64 * 4)
        )


@operation("enqueue_kernel", images=True)
def enqueue_kernel_over_an_image(world):
    with world.image() as image:
        yield lambda: cml.enqueue_kernel(world.queue, world.paint, (16, 8), None, Out(image))


@operation("enqueue_kernel", "wait_list")
def enqueue_kernel_that_waits_for_another_queue(world):
    with world.buffer() as x, world.buffer() as y, world.pending() as event:
        yield lambda: cml.enqueue_kernel(
            world.queue, world.many, (64,), (64,), x, y, np.int32(1), cl.LocalMemory(64 * 4), wait_for=[event]
        )


def copies(blocking):
    @operation("enqueue_copy")
    def to_a_buffer(world):
        data = np.arange(SIZE, dtype=np.uint8)
        with world.buffer() as buffer:
            yield lambda: cml.enqueue_copy(world.queue, buffer, data, is_blocking=blocking)

    @operation("enqueue_copy")
    def from_a_buffer(world):
        data = np.empty(SIZE, np.uint8)
        with world.buffer() as buffer:
            yield lambda: cml.enqueue_copy(world.queue, data, buffer, is_blocking=blocking)

    @operation("enqueue_copy")
    def of_a_rectangle(world):
        data = np.empty((8, 8), np.uint8)
        where = {
            "buffer_origin": (0, 0),
            "host_origin": (0, 0),
            "region": (4, 4),
            "buffer_pitches": (64,),
            "host_pitches": (8,),
        }
        with world.buffer() as buffer:
            yield lambda: cml.enqueue_copy(world.queue, data, buffer, is_blocking=blocking, **where)

    @operation("enqueue_copy", images=True)
    def to_an_image(world):
        data = np.zeros((8, 16, 4), np.uint8)
        with world.image() as image:
            yield lambda: cml.enqueue_copy(
                world.queue, image, data, is_blocking=blocking, origin=(0, 0), region=(16, 8)
            )

    @operation("enqueue_copy", images=True)
    def from_an_image(world):
        data = np.zeros((8, 16, 4), np.uint8)
        with world.image() as image:
            yield lambda: cml.enqueue_copy(
                world.queue, data, image, is_blocking=blocking, origin=(0, 0), region=(16, 8)
            )

    for name in ("to_a_buffer", "from_a_buffer", "of_a_rectangle", "to_an_image", "from_an_image"):
        OPERATIONS[f"{'blocking' if blocking else 'pending'}_copy_{name}"] = OPERATIONS.pop(name)


copies(blocking=True)
copies(blocking=False)


@operation("enqueue_copy")
def pending_copy_that_waits_for_another_queue(world):
    data = np.empty(SIZE, np.uint8)
    with world.buffer() as buffer, world.pending() as event:
        yield lambda: cml.enqueue_copy(world.queue, data, buffer, is_blocking=False, wait_for=event)


@operation("enqueue_copy", "Mapping.map_event")
def pending_copy_to_the_array_of_a_mapping(world):
    with world.buffer() as buffer, world.buffer() as source, world.open_mapping(buffer) as mapping:
        array = mapping.array
        yield lambda: cml.enqueue_copy(world.queue, array, source, is_blocking=False)


@operation("enqueue_copy")
def copy_between_buffers(world):
    with world.buffer() as dest, world.buffer() as src:
        yield lambda: cml.enqueue_copy(world.queue, dest, src)


@operation("enqueue_copy")
def copy_of_a_rectangle_between_buffers(world):
    where = {"src_origin": (0, 0), "dst_origin": (0, 0), "region": (4, 4), "src_pitches": (64,), "dst_pitches": (64,)}
    with world.buffer() as dest, world.buffer() as src:
        yield lambda: cml.enqueue_copy(world.queue, dest, src, **where)


@operation("enqueue_copy")
def copy_that_waits_for_another_queue(world):
    with world.buffer() as dest, world.buffer() as src, world.pending() as event:
        yield lambda: cml.enqueue_copy(world.queue, dest, src, wait_for=event)


@operation("enqueue_copy", images=True)
def copy_between_images(world):
    with world.image() as dest, world.image() as src:
        yield lambda: cml.enqueue_copy(world.queue, dest, src, src_origin=(0, 0), dest_origin=(0, 0), region=(16, 8))


@operation("enqueue_copy", images=True)
def copy_between_an_image_and_a_buffer(world):
    with world.image() as image, world.buffer() as buffer:
        yield lambda: [
            cml.enqueue_copy(world.queue, image, buffer, offset=0, origin=(0, 0), region=(16, 8)),
            cml.enqueue_copy(world.queue, buffer, image, offset=0, origin=(0, 0), region=(16, 8)),
        ]


@operation("enqueue_copy")
def copy_of_nothing(world):
    with world.buffer() as buffer:
        yield lambda: cml.enqueue_copy(world.queue, buffer, np.empty(0, np.uint8))


@operation("enqueue_fill")
def fill_of_a_buffer(world):
    with world.buffer() as buffer:
        yield lambda: cml.enqueue_fill(world.queue, buffer, np.int32(7))


@operation("enqueue_fill")
def fill_of_nothing(world):
    with world.buffer() as buffer:
        yield lambda: cml.enqueue_fill(world.queue, buffer, np.int32(7), 0)


@operation("enqueue_fill", images=True)
def fill_of_an_image(world):
    with world.image() as image:
        yield lambda: cml.enqueue_fill(world.queue, image, np.array([1, 2, 3, 4], np.uint32))


@operation("enqueue_fill")
def fill_of_shared_virtual_memory(world):
    if not all(device.svm_capabilities for device in world.context.devices):
        pytest.skip("a device without shared virtual memory")
    memory = cl.SVM(cl.csvm_empty(world.context, SIZE, np.uint8))
    yield lambda: cml.enqueue_fill(world.queue, memory, np.uint8(7))


# -- mappings


@operation("Mapping")
def map_of_a_buffer(world):
    with world.buffer() as buffer:
        yield lambda: Mapping(world.queue, buffer, MapFlags.READ | MapFlags.WRITE)


@operation("Mapping")
def map_of_a_sub_buffer_that_blocks(world):
    with world.buffer(2 * world.step) as root, root.sub_buffer(world.step, SIZE) as part:
        yield lambda: Mapping(world.queue, part, MapFlags.READ, is_blocking=True)


@operation("Mapping", images=True)
def map_of_an_image(world):
    with world.image() as image:
        yield lambda: Mapping(world.queue, image, MapFlags.WRITE)


@operation("Mapping")
def map_that_waits_for_another_queue(world):
    with world.buffer() as buffer, world.pending() as event:
        yield lambda: Mapping(world.queue, buffer, MapFlags.WRITE_INVALIDATE_REGION, wait_for=event)


@operation("Mapping.array", "Mapping.wait", "Mapping.copy")
def array_of_a_mapping(world):
    with world.buffer() as buffer, world.open_mapping(buffer) as mapping:
        yield lambda: (mapping.wait(), mapping.array.sum(), mapping.copy())


@operation("Mapping.unmap", "Mapping.unmap_event")
def unmap(world):
    with world.buffer() as buffer, world.open_mapping(buffer) as mapping:
        mapping.array[:] = 1
        yield mapping.unmap


@operation("Mapping.unmap", images=True)
def unmap_of_an_image(world):
    with world.image() as image, world.open_mapping(image) as mapping:
        mapping.array[:] = 1
        yield mapping.unmap


@operation("Mapping.unmap")
def unmap_on_another_queue(world):
    with world.buffer() as buffer, world.open_mapping(buffer) as mapping, world.pending() as event:
        yield lambda: mapping.unmap(queue=world.queue, wait_for=event)


@operation("Mapping.unmap")
def unmap_of_a_released_handle(world):
    buffer = world.buffer()
    with world.open_mapping(buffer) as mapping:
        buffer.release()
        yield mapping.unmap


@operation("Mapping.unmap")
def with_block_of_a_mapping(world):
    with world.buffer() as buffer:

        def act():
            with world.mapping(buffer) as mapping:
                mapping.array[:] = 1

        yield act


@operation("Mapping.unmap", once=True)
def with_block_of_a_mapping_whose_body_raises(world):
    with world.buffer() as buffer:

        def act():
            with world.mapping(buffer) as mapping:
                mapping.array[:] = 1
                raise BodyError

        yield act


@operation("Mapping", warns=(LeakWarning,))
def collection_of_a_mapping_that_nobody_ended(world):
    with world.buffer() as buffer:

        def act():
            mapping = world.mapping(buffer)
            mapping.array[:] = 1
            del mapping
            gc.collect()

        yield act


@operation("Mapping.unmap", images=True)
def with_block_of_a_mapping_of_an_image(world):
    with world.image() as image:

        def act():
            with world.mapping(image) as mapping:
                mapping.array.sum()

        yield act


# -- migrations


@operation("Migration", "Migration.wait", "Migration.event")
def migration_of_one(world):
    with world.buffer() as buffer:
        yield lambda: Migration(world.queue, buffer)


@operation("Migration")
def migration_of_several_to_the_host(world):
    with world.buffer(2 * world.step) as root, root.sub_buffer(world.step, SIZE) as part, world.buffer() as other:
        yield lambda: Migration(world.queue, [root, part, other], MigrationFlags.HOST)


@operation("Migration")
def migration_of_nothing(world):
    yield lambda: Migration(world.queue, [])


@operation("Migration", marks=pytest.mark.nvidia_fault("gated migration"))
def migration_that_waits_for_another_queue(world):
    with world.buffer() as buffer, world.pending() as event:
        yield lambda: Migration(world.queue, buffer, wait_for=event)


@operation("Migration.back")
def migration_back(world):
    with world.buffer() as buffer:
        there = Migration(world.queue, buffer, source_queue=world.queue2)
        there.wait()
        yield there.back


# -- through pinned host memory


def device_apart(world):
    if world.queue.device == world.queue2.device:
        pytest.skip("one device only")


@operation("enqueue_copy_across", "staging")
def copy_across_in_chunks(world):
    with world.buffer(5 * SIZE) as dest, world.buffer(5 * SIZE) as src, cml.staging(world.context):
        yield lambda: cml.enqueue_copy_across(world.queue2, world.queue, dest, src, chunk_bytes=SIZE)


@operation("enqueue_copy_across")
def copy_across_of_nothing(world):
    with world.buffer() as dest, world.buffer() as src, cml.staging(world.context):
        yield lambda: cml.enqueue_copy_across(world.queue2, world.queue, dest, src, chunk_bytes=SIZE, byte_count=0)


@operation("enqueue_copy_across", several=True)
def copy_across_that_waits_for_another_queue(world):
    with world.buffer() as dest, world.buffer() as src, cml.staging(world.context), world.pending() as event:
        yield lambda: cml.enqueue_copy_across(
            world.queue, world.queue2, dest, src, chunk_bytes=SIZE // 2, wait_for=event
        )


@operation("Migration")
def staged_migration(world):
    device_apart(world)
    with world.buffer() as buffer, world.buffer() as other, cml.staging(world.context):
        yield lambda: Migration(world.queue, [buffer, other], via="staged", source_queue=world.queue2)


@operation("Migration", images=True)
def staged_migration_of_an_image(world):
    device_apart(world)
    with world.image() as image, cml.staging(world.context):
        yield lambda: Migration(world.queue, image, via="staged", source_queue=world.queue2)


@operation("stream_chunks", several=True)
def stream_of_chunks(world):
    chunks = [np.full(SIZE, number, np.uint8) for number in range(3)]

    def launch(slot, wait_for):
        return cml.enqueue_copy(world.queue, slot.output, slot.input, wait_for=wait_for)

    def act():
        with cml.stream_chunks(chunks, launch, queues=[world.queue, world.queue], depth=2) as results:
            assert [int(one[0]) for one in results] == [0, 1, 2]

    with cml.staging(world.context):
        yield act


# -- the sweep


class Journal:
    """Listen, and remember which commands have not been told to an end."""

    def __init__(self) -> None:
        self.open: list[_journal.Command] = []

    def before(self, command: _journal.Command) -> None:
        self.open.append(command)

    def after(self, command: _journal.Command) -> None:
        assert command.event is not None
        self.open.remove(command)

    def abandoned(self, command: _journal.Command) -> None:
        self.open.remove(command)

    def host(self, record: _journal.HostRecord) -> None:
        pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch)


@pytest.fixture(scope="module")
def kernels(context) -> cl.Program:
    return cl.Program(context, KERNELS).build()


@pytest.fixture
def world(kernels, queue, queue2, driver) -> World:
    return World(kernels, queue, queue2, driver)


@pytest.fixture
def journal() -> Iterator[Journal]:
    listener = Journal()
    _journal.subscribe(listener)
    yield listener
    _journal.unsubscribe(listener)
    assert not listener.open


def finish(result: Any) -> None:
    """Bring what an operation returned to its end."""
    if isinstance(result, (list, tuple)):
        for one in result:
            finish(one)
    elif isinstance(result, MemHandle):
        result.release()
    elif isinstance(result, Mapping):
        result.unmap()


def names_release(text: str, status: int) -> None:
    assert "clReleaseMemObject" in text
    assert f"{STATUS.to_string(status)} ({status})" in text
    assert any(label in text for label in ("'subject", "'staged migration'", "'stream input'", "'stream output'"))


def names_unmap(text: str, status: int) -> None:
    assert "could not be unmapped and stays open" in text
    assert STATUS.to_string(status) in text
    assert "'subject" in text


def absorbed(plan: Plan, status: int, problems: list[str], given_up: int) -> None:
    """Fail unless an operation whose call failed may have gone well, and has said what must be said."""
    if plan.name == "release_mem_object":
        assert sum(text.count("clReleaseMemObject failed") for text in problems) == len(plan.refused)
        for text in problems:
            names_release(text, status)
    elif plan.name == "enqueue_unmap_mem_object" and not given_up:  # the end of a block tries once more
        assert status in OUT_OF_MEMORY
        assert (len(plan.errors), problems) == (1, [])
    elif plan.name == "enqueue_unmap_mem_object":
        assert (given_up, len(problems)) == (1, 1)
        names_unmap(problems[0], status)
    elif plan.name in ("create_buffer", "create_image"):
        assert status in OUT_OF_MEMORY
        assert len(plan.errors) == 1
        assert not problems
    else:
        # A reader that cannot be told when an object of others is gone takes it for another one each time.
        unseen = ("wrap_event", "set_destructor_callback") if _journal.listeners else ("wrap_event",)
        assert plan.name in unseen, f"nothing was raised though {plan.name} failed"
        assert not problems


def rightly_raised(error: BaseException, plan: Plan, status: int, problems: list[str], given_up: int) -> None:
    """Fail unless `error` is what the driver said, or what the documentation makes of it."""
    assert plan.name, f"it raises by itself: {error!r}"
    assert plan.name != "wrap_event", "the command is enqueued, but its event is lost"
    refused = sum(text.count("clReleaseMemObject failed") for text in problems)
    assert (refused, len(problems) - bool(refused)) == (len(plan.refused[1:]), given_up)
    for text in problems:
        names_unmap(text, status) if given_up else names_release(text, status)
    if plan.name in ("create_buffer", "create_image") and status in OUT_OF_MEMORY:
        assert type(error) is type(plan.errors[0])
        assert len(plan.errors) == 2
        assert error.__cause__ is plan.errors[1]
        assert "out of memory for" in str(error)
        assert error.code == status
        return
    named = isinstance(error, CallError) and plan.name in ("set_kernel_arg", "set_kernel_arg_buf")
    if plan.name == "set_kernel_arg_bytes" or named:  # the argument and its value are added to what the driver said
        assert isinstance(error, CallError)
        assert not named or isinstance(plan.errors[0], cl.LogicError)
        assert (error.routine, error.code) == ("clSetKernelArg", status)
        assert "argument " in str(error)
        return
    if plan.name == "set_kernel_arg_buf":
        assert not isinstance(error, cl.LogicError)
    if plan.name == "set_kernel_args" and isinstance(error, TypeError):  # a plain number that PyOpenCL cannot place
        assert isinstance(plan.errors[0], cl.LogicError)
        assert error.__cause__ is plan.errors[0]
        return
    assert any(error is one for one in plan.errors), (plan.name, repr(error), str(error), plan.errors)


def sweep(name: str, world: World, status: int, *, stays: bool = False) -> set[str]:
    """Fail each call of one operation in turn; return the entry points that were failed."""
    chosen, driver = OPERATIONS[name], world.driver
    failed = set()
    for k in itertools.count(1):
        start = driver.guards()
        at_start = driver.settled()
        with chosen.prepare(world) as act:
            before, mark = driver.settled(), driver.guards()
            with driver.failing(k, status, stays=stays) as plan, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result, error = attempt(act)
            unexpected = [one for one in caught if not issubclass(one.category, (CleanupWarning, *chosen.warns))]
            assert not unexpected, [str(one.message) for one in unexpected]
            problems = [str(one.message) for one in caught if issubclass(one.category, CleanupWarning)]
            given_up = world.mend()
            if error is None or isinstance(error, BodyError):
                if plan.name:
                    absorbed(plan, status, problems, given_up)
                driver.repay(plan.refused)
                finish(result)
            else:
                rightly_raised(error, plan, status, problems, given_up)
                driver.repay(plan.refused[1:])
                if chosen.several:
                    world.open_gate()
                world.flush()
                cml.staging(world.context).trim()
                driver.let_go(mark)
                driver.expect(before)
                with warnings.catch_warnings():
                    for category in chosen.warns:
                        warnings.simplefilter("ignore", category)
                    finish(None if chosen.once else act())
            del result, error, act, caught, unexpected
        world.finish()
        driver.let_go(start)
        driver.expect(at_start)
        if not plan.name:
            assert k > 1 or not plan.calls
            return failed
        failed.add(plan.name)
    raise AssertionError("unreachable")


def named(name: str) -> Any:
    return pytest.param(name, marks=OPERATIONS[name].marks)


def available(name: str, context: cl.Context) -> None:
    if OPERATIONS[name].images and not any(device.image_support for device in context.devices):
        pytest.skip("no device with images")


@pytest.mark.unordered("a refused unmap leaves the object mapped for ever")
@pytest.mark.parametrize("name", [named(name) for name in OPERATIONS])
def test_a_failing_call_leaves_everything_as_it_was(name, world):
    available(name, world.context)
    sweep(name, world, STATUS.MEM_OBJECT_ALLOCATION_FAILURE)
    sweep(name, world, STATUS.INVALID_MEM_OBJECT)


@pytest.mark.unordered("a refused copy leaves nothing defined")
@pytest.mark.parametrize("name", [named(name) for name in OPERATIONS])
def test_a_call_that_goes_on_failing_leaves_everything_as_it_was(name, world):
    available(name, world.context)
    sweep(name, world, STATUS.OUT_OF_RESOURCES, stays=True)
    sweep(name, world, STATUS.OUT_OF_HOST_MEMORY, stays=True)


COMMANDS = [named(name) for name, one in OPERATIONS.items() if any("." not in covered for covered in one.covers)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_failing_call_leaves_no_command_open_on_the_journal(name, world, journal):
    available(name, world.context)
    sweep(name, world, STATUS.OUT_OF_RESOURCES)
    assert not journal.open


# -- the sweep covers everything

PASSIVE = {
    "MemHandle": {"context", "flags", "int_ptr", "label", "parent", "released", "site", "size", "type"},
    "Mapping": {"flags", "state"},
    "Migration": {"device", "handles", "via"},
}
"""Members that make no call through the seam which could fail."""


def test_every_public_operation_is_swept():
    operations = {name for name in cml.__all__ if name.startswith("enqueue_")}
    operations |= {"Mapping", "Migration", "stream_chunks", "wait_list"}
    for name, passive in PASSIVE.items():
        members = {member for member in dir(getattr(cml, name)) if not member.startswith("_")}
        operations |= {f"{name}.{member}" for member in members - passive}
    assert operations - {covered for one in OPERATIONS.values() for covered in one.covers} == set()


@pytest.mark.parametrize(("name", "passive"), PASSIVE.items(), ids=list(PASSIVE))
def test_passive_members_make_no_call(name, passive, world):
    with world.buffer() as buffer, Mapping(world.queue, buffer, MapFlags.READ) as mapping:
        subject = {"MemHandle": buffer, "Mapping": mapping, "Migration": Migration(world.queue, [])}[name]
        with world.driver.failing(1, STATUS.OUT_OF_RESOURCES) as plan:
            for member in passive:
                getattr(subject, member)
        assert not plan.calls


def test_every_entry_point_is_reached_by_the_sweep(world):
    images = any(device.image_support for device in world.context.devices)
    reached = set()
    for chosen in OPERATIONS.values():
        if chosen.images and not images:
            continue
        try:
            with (
                chosen.prepare(world) as act,
                world.driver.failing(0, 0) as plan,
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore", LeakWarning)
                result, _ = attempt(act)
                finish(result)
                del result, act
        except pytest.skip.Exception:
            continue
        reached.update(plan.calls)
        world.finish()
        world.driver.let_go()
    missing = set(_opencl.ENTRY_POINTS) - reached - {"finish"}  # only where memory is short, see below
    if not images:
        missing -= {"create_image", "enqueue_map_image", "enqueue_fill_image"}
    if not all(device.svm_capabilities for device in world.context.devices):
        missing -= {"enqueue_svm_memfill"}
    assert not missing


# -- a planted fault makes it fail


def test_a_release_left_out_makes_the_sweep_fail(world, monkeypatch):
    world.driver.patience_seconds = 0.2
    monkeypatch.setattr(_reference, "_release", lambda int_ptr, entry: None)
    with pytest.raises(AssertionError, match=r"\+1 references"):
        sweep("create_buffer_of_a_size", world, STATUS.INVALID_MEM_OBJECT)


def test_a_release_too_many_makes_the_sweep_fail(world, monkeypatch):
    world.driver.patience_seconds = 0.2
    once = _reference._release

    def twice(int_ptr, entry):
        once(int_ptr, entry)
        return once(int_ptr, entry)

    monkeypatch.setattr(_reference, "_release", twice)
    with pytest.raises(AssertionError, match="-1 references"):
        sweep("create_buffer_of_a_size", world, STATUS.INVALID_MEM_OBJECT)


def test_a_reference_that_only_a_failing_call_leaves_makes_the_sweep_fail(world, monkeypatch):
    world.driver.patience_seconds = 0.2
    honest = _opencl.get_sub_region

    def forgetful(root, *rest):
        ORIGINAL["retain_mem_object"](root.int_ptr)
        child = honest(root, *rest)
        ORIGINAL["release_mem_object"](root.int_ptr)
        return child

    monkeypatch.setattr(_opencl, "get_sub_region", forgetful)
    with pytest.raises(AssertionError, match="references: "):
        sweep("sub_buffer", world, STATUS.INVALID_MEM_OBJECT)


def test_a_map_left_in_the_ledger_makes_the_sweep_fail(world, monkeypatch):
    world.driver.patience_seconds = 0.2
    honest = _ledger.remove
    left = []
    monkeypatch.setattr(
        _ledger, "remove", lambda entry: left.append(entry) if isinstance(entry, _ledger.MapEntry) else honest(entry)
    )
    try:
        with pytest.raises(AssertionError, match="maps: "):
            sweep("map_of_a_buffer", world, STATUS.INVALID_MEM_OBJECT)
    finally:
        for entry in left:
            _ledger._strike(entry, alive=False)  # `remove` is for those whose object still lives


def test_a_handle_left_in_the_ledger_makes_the_sweep_fail(world, monkeypatch):
    world.driver.patience_seconds = 0.2
    left = []
    monkeypatch.setattr(_ledger, "remove", left.append)
    try:
        with pytest.raises(AssertionError, match="handles: "):
            sweep("release", world, STATUS.INVALID_MEM_OBJECT)
    finally:
        for entry in left:
            _ledger._strike(entry, alive=False)  # `remove` is for those whose object still lives


def test_a_swallowed_error_makes_the_sweep_fail(world, monkeypatch):
    failing = _opencl.enqueue_migrate_mem_objects

    def swallowing(queue, mems, flags, wait_for):
        try:
            return failing(queue, mems, flags, wait_for)
        except cl.Error:
            return cl.enqueue_marker(queue, wait_for)

    monkeypatch.setattr(_opencl, "enqueue_migrate_mem_objects", swallowing)
    with pytest.raises(AssertionError, match="nothing was raised though enqueue_migrate_mem_objects failed"):
        sweep("migration_of_one", world, STATUS.INVALID_MEM_OBJECT)


# -- out of memory


@pytest.mark.parametrize("status", OUT_OF_MEMORY, ids=STATUS.to_string)
def test_out_of_memory_collects_once_and_tries_once_more(status, world):
    class Cycle:
        def __init__(self, handle: MemHandle) -> None:
            self.handle, self.me = handle, self

    gc.disable()
    try:
        Cycle(world.buffer())
        assert cml.statistics().current_count == 1
        with (
            world.driver.failing(1, status) as plan,
            pytest.warns(LeakWarning, match="collected without release"),
            world.buffer() as buffer,
        ):
            assert cml.statistics().current_count == 1
            assert plan.calls.count("create_buffer") == 2
            assert buffer.size == SIZE
    finally:
        gc.enable()
    world.driver.let_go()


@pytest.mark.parametrize("status", OUT_OF_MEMORY, ids=STATUS.to_string)
def test_out_of_memory_twice_says_what_is_alive_and_where_the_limit_is(status, world):
    device = max(world.context.devices, key=lambda one: one.max_mem_alloc_size)
    with (
        MemHandle.create_buffer(world.context, 12288, label="pressure"),
        world.driver.failing(1, status, stays=True) as plan,
        pytest.raises(cl.Error) as caught,
    ):
        world.buffer(size=8192)
    assert plan.calls == ["create_buffer", "create_buffer"]
    assert type(caught.value) is type(plan.errors[0])
    assert caught.value.code == status
    text = str(caught.value)
    assert "out of memory for 8192 bytes" in text
    assert device.name.strip() in text
    assert f"{device.max_mem_alloc_size} bytes" in text
    assert "alive here: 1 handle, 12288 bytes: 'pressure' (12288 bytes, created at " in text
    del caught, plan
    world.driver.let_go()


def test_out_of_memory_lets_go_of_idle_pinned_memory_first(world):
    pool = cml.staging(world.context)
    pool._give_back(pool._lend(1 << 20))
    assert pool.idle_bytes >= 1 << 20
    with world.driver.failing(1, OUT_OF_MEMORY[0]) as plan, world.buffer():
        assert "finish" in plan.calls  # of the queue that unmaps it
        assert pool.idle_bytes == 0
        assert cml.statistics().staging_bytes == 0
    world.driver.let_go()


def test_other_failures_of_a_creation_are_not_tried_again(world):
    with world.driver.failing(1, STATUS.INVALID_VALUE) as plan, pytest.raises(cl.LogicError) as caught:
        world.buffer()
    assert plan.calls == ["create_buffer"]
    assert caught.value is plan.errors[0]


@pytest.mark.parametrize("status", OUT_OF_MEMORY, ids=STATUS.to_string)
@pytest.mark.parametrize("error", [None, KeyError("body")], ids=["left", "raised"])
def test_the_end_of_a_block_that_cannot_unmap_for_want_of_memory_tries_once_more(status, error, world):
    with world.buffer() as buffer:
        expected = contextlib.nullcontext() if error is None else pytest.raises(KeyError, match="body")
        with expected, Mapping(world.queue, buffer, MapFlags.WRITE) as mapping:
            world.flush()
            world.finish()
            failing = world.driver.failing(1, status)
            plan = failing.__enter__()
            if error is not None:
                raise error
        failing.__exit__(None, None, None)
        assert plan.name == "enqueue_unmap_mem_object"
        assert plan.calls.count("enqueue_unmap_mem_object") == 2
        mapping.unmap_event.wait()
        assert buffer.info().map_count == 0
        del mapping, plan
    world.driver.let_go()


def test_a_retain_that_fails_is_not_hidden_by_a_release_that_fails_too(context, monkeypatch):
    retained, released = [], []

    def retain(int_ptr, real=_opencl.retain_mem_object):
        retained.append(int_ptr)
        if len(retained) == 2:  # that of the root
            raise CallError("clRetainMemObject", -5)
        real(int_ptr)

    def release(int_ptr):
        released.append(int_ptr)
        raise CallError("clReleaseMemObject", -38)

    with MemHandle.create_buffer(context, 1 << 16, label="root") as root:
        with monkeypatch.context() as patch:
            real = _opencl.release_mem_object
            patch.setattr(_opencl, "retain_mem_object", retain)
            patch.setattr(_opencl, "release_mem_object", release)
            with (
                pytest.warns(CleanupWarning, match="clReleaseMemObject.*'part'"),
                pytest.raises(CallError, match="clRetainMemObject"),
            ):
                root.sub_buffer(0, 64, label="part")
        assert released == retained[:1]
        real(retained[0])


# -- where nothing can be raised


def calls_before_a_release() -> list[str]:
    """What comes before the last release of an object: a reader that listens goes on to watch that."""
    return ["set_destructor_callback"] if _journal.listeners else []


def test_a_refused_release_is_a_warning_that_names_call_status_and_object(world):
    handle = MemHandle.create_buffer(world.context, SIZE, label="field")
    before = calls_before_a_release()
    with (
        world.driver.failing(len(before) + 1, STATUS.INVALID_MEM_OBJECT) as plan,
        pytest.warns(CleanupWarning, match=r"clReleaseMemObject failed: INVALID_MEM_OBJECT \(-38\) for 'field' \(4096"),
    ):
        handle.release()
    assert handle.released
    handle.release()
    assert plan.calls == [*before, "release_mem_object"]
    world.driver.repay(plan.refused)
    world.driver.let_go()


def test_a_refused_release_does_not_hide_the_error_of_a_body(world):
    handle = MemHandle.create_buffer(world.context, SIZE)
    before = calls_before_a_release()
    with (
        pytest.warns(CleanupWarning, match="clReleaseMemObject"),
        pytest.raises(BodyError),
        world.driver.failing(len(before) + 1, STATUS.OUT_OF_RESOURCES) as plan,
        handle,
    ):
        raise BodyError
    assert plan.calls == [*before, "release_mem_object"]
    world.driver.repay(plan.refused)
    world.driver.let_go()


def test_a_refused_release_does_not_hide_the_error_of_a_body_when_warnings_are_errors(world, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    handle = MemHandle.create_buffer(world.context, SIZE)
    before = calls_before_a_release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failing = world.driver.failing(len(before) + 1, STATUS.OUT_OF_RESOURCES)
        with pytest.raises(BodyError), failing as plan, handle:
            raise BodyError
    assert plan.calls == [*before, "release_mem_object"]
    assert [type(one.exc_value) for one in reported] == [CleanupWarning]
    assert isinstance(reported[0], types.SimpleNamespace)
    world.driver.repay(plan.refused)
    world.driver.let_go()


REFUSED_UNMAP = """
import contextlib
import ctypes
from clmemlife import _opencl
unmap = _opencl._library.clEnqueueUnmapMemObject
unmap.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint] + [ctypes.c_void_p] * 2
def spoil(mapping, handle):  # the driver has ended the map already, and refuses to do it again
    address = mapping.array.__array_interface__["data"][0]
    assert unmap(queue.int_ptr, handle.int_ptr, address, 0, None, None) == 0
    queue.finish()
warnings.simplefilter("always")
handle = MemHandle.create_buffer(context, 4096, label="field")
"""


def test_process_an_unmap_that_the_driver_refuses_is_raised_and_never_aborts(run):
    out = run(
        REFUSED_UNMAP
        + """
        try:
            with warnings.catch_warnings(record=True) as caught, Mapping(queue, handle, MapFlags.WRITE) as m:
                spoil(m, handle)
        except cl.Error as error:
            print("raised", error.code)
        print([str(one.message) for one in caught])
        del m
        gc.collect()
        handle.release()
        print("end")
        """.replace("\n        ", "\n")
    )
    assert "raised -30" in out
    assert "could not be unmapped and stays open" in out
    assert out.endswith("end\n")


def test_process_a_refused_unmap_does_not_hide_the_error_of_the_body(run):
    out = run(
        REFUSED_UNMAP
        + """
        try:
            with warnings.catch_warnings(record=True) as caught, Mapping(queue, handle, MapFlags.WRITE) as m:
                spoil(m, handle)
                raise KeyError("body")
        except KeyError as error:
            print("raised", error)
        print([str(one.message) for one in caught])
        del m
        gc.collect()
        print("end")
        """.replace("\n        ", "\n")
    )
    assert "raised 'body'" in out
    assert "could not be unmapped and stays open" in out
    assert out.endswith("end\n")


@pytest.mark.parametrize("end", ["del m; gc.collect()", "pass", "sys.exit()"], ids=["collected", "left", "exit"])
def test_process_a_map_whose_unmap_is_refused_when_nobody_is_there_never_aborts(run, end):
    out = run(
        REFUSED_UNMAP
        + f"""
        m = Mapping(queue, handle, MapFlags.WRITE)
        spoil(m, handle)
        print("end", flush=True)
        {end}
        """.replace("\n        ", "\n")
    )
    assert out == "end\n"
