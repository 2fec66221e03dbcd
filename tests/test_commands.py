"""Kernels and fills: every kind of argument, many threads, short-lived owners, and what is held in flight."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.cltypes
import pytest

import clmemlife as cml
from clmemlife import In, InOut, MapFlags, Mapping, MemFlags, MemHandle, Out, _inflight, _kernel_args
from clmemlife._kernel_types import ASSUMED, Parameter
from clmemlife.exceptions import CallError, DependencyError, LeakWarning, MapConflictError, ReleasedError

N = 256
SCALARS = {
    np.int8: "char", np.uint8: "uchar", np.int16: "short", np.uint16: "ushort", np.int32: "int", np.uint32: "uint",
    np.int64: "long", np.uint64: "ulong", np.float32: "float",
}  # fmt: skip

MakeKernel = Callable[[str], cl.Kernel]


def build(context: cl.Context, source: str, name: str = "f") -> cl.Kernel:
    return cl.Kernel(cl.Program(context, source).build(), name)


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, N * 4, label="field") as handle:
        yield handle


def read(queue: cl.CommandQueue, mem: Any, dtype: Any = np.int32, wait_for: Any = None) -> np.ndarray:
    out = np.empty(mem.size // np.dtype(dtype).itemsize, dtype)
    cml.enqueue_copy(queue, out, mem, wait_for=wait_for)
    return out


# -- scalars and vectors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda one: one.__name__)
def test_a_numpy_scalar_arrives_with_its_own_size(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle, scalar: type
) -> None:
    kernel = build(context, f"__kernel void f(__global {SCALARS[scalar]} *x, {SCALARS[scalar]} v) {{ x[0] = v; }}")
    value = scalar(1.5) if scalar is np.float32 else scalar(np.iinfo(scalar).max - 1)
    cml.enqueue_kernel(queue, kernel, (1,), None, field, value)
    assert read(queue, field, scalar)[0] == value


def test_a_double_arrives(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    if not queue.device.double_fp_config:
        pytest.skip("the device has no double precision")
    kernel = build(context, "__kernel void f(__global double *x, double v) { x[0] = v; }")
    cml.enqueue_kernel(queue, kernel, (1,), None, field, np.float64(1 / 3))
    assert read(queue, field, np.float64)[0] == 1 / 3


def test_a_half_arrives_as_its_two_bytes(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    if "cl_khr_fp16" not in queue.device.extensions:
        pytest.skip("the device takes no half arguments")
    source = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n__kernel void f(__global half *x, half v) { x[0] = v; }"
    cml.enqueue_kernel(queue, build(context, source), (1,), None, field, np.float16(1.5))
    assert read(queue, field, np.float16)[0] == 1.5


def test_a_struct_scalar_arrives_with_its_padding(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle
) -> None:
    source = """
typedef struct { char a; int b; short c; } config;
__kernel void f(__global int *x, config v) { x[0] = v.a; x[1] = v.b; x[2] = v.c; x[3] = sizeof(config); }
"""
    dtype = np.dtype([("a", np.int8), ("b", np.int32), ("c", np.int16)], align=True)
    value = np.array([(-3, 1 << 20, 77)], dtype)[0]
    cml.enqueue_kernel(queue, build(context, source), (1,), None, field, value)
    assert read(queue, field)[:4].tolist() == [-3, 1 << 20, 77, dtype.itemsize]


@pytest.mark.parametrize("name", ["char2", "short4", "int2", "int3", "int4", "float8", "uint16"])
def test_a_vector_arrives_in_every_component(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle, name: str
) -> None:
    count = int("".join(c for c in name if c.isdigit()))
    base = name.rstrip("0123456789")
    digits = "0123456789abcdef"
    stores = "".join(f"x[{n}] = (int) v.s{digits[n]};" for n in range(count))
    kernel = build(context, f"__kernel void f(__global int *x, {name} v) {{ {stores} }}")
    value = getattr(cl.cltypes, f"make_{name}")(*range(1, count + 1))
    cml.enqueue_kernel(queue, kernel, (1,), None, field, value)
    assert read(queue, field)[:count].tolist() == list(range(1, count + 1)), base


def test_a_zero_dimensional_array_is_a_scalar(queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle) -> None:
    cml.enqueue_kernel(queue, kernel("setval"), (N,), None, field, np.array(5, np.int32))
    assert (read(queue, field) == 5).all()


def test_a_plain_number_needs_a_type(queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle) -> None:
    with pytest.raises(TypeError, match=r"argument 1 of kernel 'setval' is the plain number 5.*numpy\.int32\(5\)"):
        cml.enqueue_kernel(queue, kernel("setval"), (N,), None, field, 5)


@pytest.mark.parametrize("wrap", [lambda one: one, InOut, lambda one: one.mem])
def test_a_plain_number_is_taken_where_the_kernel_knows_its_types(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle, wrap: Callable[[MemHandle], Any]
) -> None:
    typed = kernel("setval")
    typed.set_arg_types([None, np.int32])
    cml.enqueue_kernel(queue, typed, (N,), None, wrap(field), 7)
    assert (read(queue, field) == 7).all()


def test_a_scalar_of_the_wrong_size_is_refused_with_its_place(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_kernel_args, "parameters", lambda _: (Parameter(ASSUMED),) * 2)  # so that the driver is asked
    with pytest.raises(CallError, match=r"INVALID_ARG_SIZE.*argument 1 of kernel 'setval' cannot be .*5"):
        cml.enqueue_kernel(queue, kernel("setval"), (N,), None, field, np.int64(5))


@pytest.mark.parametrize("wrong", ["text", object(), [1, 2]])
def test_what_no_kernel_can_take_is_refused(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle, wrong: object
) -> None:
    with pytest.raises((cl.Error, TypeError)):
        cml.enqueue_kernel(queue, kernel("setval"), (N,), None, field, wrong)


@pytest.mark.parametrize("args", [(), (np.int32(1),), (np.int32(1), np.int32(1), np.int32(1))])
def test_a_wrong_number_of_arguments_is_refused_with_both_numbers(
    queue: cl.CommandQueue, kernel: MakeKernel, args: tuple[Any, ...]
) -> None:
    with pytest.raises(
        TypeError, match=rf"'setval' \(global int \*x, int v\) takes 2 arguments, {len(args)} were given"
    ):
        cml.enqueue_kernel(queue, kernel("setval"), (N,), None, *args)


def test_something_else_than_a_kernel_or_queue_is_refused(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    with pytest.raises(TypeError, match=r"kernel must be a pyopencl\.Kernel, not MemHandle"):
        cml.enqueue_kernel(queue, field, (N,), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"queue must be a pyopencl\.CommandQueue, not MemHandle"):
        cml.enqueue_kernel(field, kernel("inc"), (N,), None, field)  # type: ignore[arg-type]


# -- memory of all kinds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [lambda h: h, lambda h: h.mem, In, Out, InOut, lambda h: InOut(h.mem), lambda h: Out(h, 0, 16), lambda h: In(h, 8)],
    ids=["handle", "raw", "In", "Out", "InOut", "InOut of raw", "Out with range", "In with offset"],
)
def test_every_way_to_pass_a_buffer_passes_the_whole_buffer(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle, wrap: Callable[[MemHandle], Any]
) -> None:
    cml.enqueue_kernel(queue, kernel("setval"), (N,), None, wrap(field), np.int32(3))
    assert (read(queue, field) == 3).all()


@pytest.mark.parametrize("declare", [In, Out, InOut])
def test_a_declaration_that_is_called_wrongly_is_named(field: MemHandle, declare: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match=rf"^{declare.__name__}\.__init__\(\) got an unexpected keyword argument 'start'"
    ):
        declare(field, start=0)
    with pytest.raises(ValueError, match=f"^{declare.__name__}: bytes"):
        declare(field, offset=-1)


def test_a_sub_buffer_starts_at_its_origin(queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle) -> None:
    cml.enqueue_fill(queue, field, np.int32(0))
    with field.sub_buffer(512, 128) as part:
        cml.enqueue_kernel(queue, kernel("setval"), (32,), None, part, np.int32(9))
        assert (read(queue, part) == 9).all()
    assert np.flatnonzero(read(queue, field)).tolist() == list(range(128, 160))


def test_local_memory_is_passed_by_its_size(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    source = """
__kernel void f(__global int *x, __local int *t) {
  int i = get_local_id(0);
  t[i] = i; barrier(CLK_LOCAL_MEM_FENCE); x[get_global_id(0)] = t[get_local_size(0) - 1 - i];
}
"""
    cml.enqueue_kernel(queue, build(context, source), (N,), (16,), field, cl.LocalMemory(16 * 4))
    assert read(queue, field).tolist() == list(range(15, -1, -1)) * (N // 16)


def test_none_is_a_null_pointer(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    source = "__kernel void f(__global int *x, __global int *y) { x[get_global_id(0)] = y ? y[0] : -1; }"
    cml.enqueue_kernel(queue, build(context, source), (N,), None, field, None)
    assert (read(queue, field) == -1).all()


def test_images_and_samplers_are_taken(context: cl.Context, queue: cl.CommandQueue, field: MemHandle) -> None:
    source = """
__kernel void f(__read_only image2d_t image, sampler_t s, __global float *x) {
  x[get_global_id(0)] = read_imagef(image, s, (int2)(get_global_id(0), 1)).x;
}
"""
    sampler = cl.Sampler(context, False, cl.addressing_mode.CLAMP, cl.filter_mode.NEAREST)
    pixels = np.arange(32, dtype=np.float32).reshape(2, 16)
    format = cl.ImageFormat(cl.channel_order.R, cl.channel_type.FLOAT)
    with MemHandle.create_image(context, (16, 2), format, hostbuf=pixels, flags=MemFlags.COPY_HOST_PTR) as image:
        for passed in (image, In(image), image.mem):
            cml.enqueue_fill(queue, field, np.float32(0))
            cml.enqueue_kernel(queue, build(context, source), (16,), None, passed, sampler, field)
            assert (read(queue, field, np.float32)[:16] == pixels[1]).all()


@pytest.mark.nvidia_fault("svm argument", run=True)
def test_svm_is_taken(context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel) -> None:
    if not queue.device.svm_capabilities:
        pytest.skip("the device has no shared virtual memory")
    memory = cl.SVM(cl.svm_empty(context, cl.svm_mem_flags.READ_WRITE, N, np.int32))
    cml.enqueue_kernel(queue, kernel("setval"), (N,), None, memory, np.int32(6))
    out = np.empty(N, np.int32)
    cml.enqueue_copy(queue, out, memory)
    assert (out == 6).all()


@pytest.mark.parametrize(
    ("global_size", "local_size", "offset"),
    [
        ((64,), None, None),
        ((64,), (16,), None),
        ((64,), (16,), (32,)),
        ((8, 8), (4, 2), (1, 2)),
        ((4, 4, 4), None, None),
    ],
)
def test_results_are_those_of_pyopencls_own_launch(
    context: cl.Context, queue: cl.CommandQueue, global_size: tuple[int, ...], local_size: tuple[int, ...] | None,
    offset: tuple[int, ...] | None,
) -> None:  # fmt: skip
    source = """
__kernel void f(__global int *x, int v, float a, __local int *t) {
  size_t i = get_global_id(0) + 16 * get_global_id(1) + 128 * get_global_id(2);
  t[0] = 1;
  x[i] = v + (int) (a * get_local_id(0)) + 1000 * get_group_id(0) + 7 * t[0];
}
"""
    kernel = build(context, source)
    args = (np.int32(11), np.float32(2.5), cl.LocalMemory(64))
    zeros = np.zeros(1024, np.int32)
    theirs = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=zeros)
    kernel(queue, global_size, local_size, theirs, *args, global_offset=offset)
    with MemHandle.create_buffer(context, hostbuf=zeros, flags=MemFlags.COPY_HOST_PTR) as ours:
        cml.enqueue_kernel(queue, kernel, global_size, local_size, ours, *args, global_offset=offset)
        if local_size is None:  # the driver may choose other groups each time, so only the touched places compare
            assert ((read(queue, ours) != 0) == (read(queue, theirs) != 0)).all()
        else:
            assert (read(queue, ours) == read(queue, theirs)).all()
            assert read(queue, ours).any()


def test_a_bad_global_size_is_an_error_and_leaves_the_kernel_usable(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    inc = kernel("inc")
    cml.enqueue_fill(queue, field, np.int32(0))
    with pytest.raises((TypeError, cl.Error)):
        cml.enqueue_kernel(queue, inc, 4, None, field)  # type: ignore[arg-type]
    with pytest.raises(cl.Error):
        cml.enqueue_kernel(queue, inc, (N,), (3,), field)
    assert not read(queue, field).any()
    cml.enqueue_kernel(queue, inc, (N,), None, field)
    assert (read(queue, field) == 1).all()


# -- declared uses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declare", [In, Out, InOut])
def test_a_declared_range_must_lie_inside(field: MemHandle, declare: Any) -> None:
    for offset, size in ((-1, None), (0, N * 4 + 1), (N * 4, 1), (8, -1)):
        with pytest.raises(ValueError, match=f"{declare.__name__}: bytes .* are not within the object's {N * 4} bytes"):
            declare(field, offset, size)
    with pytest.raises(TypeError, match=f"{declare.__name__} takes a MemHandle or a PyOpenCL memory object, not list"):
        declare([1])
    assert declare(field, 16).size == N * 4 - 16
    assert repr(declare(field, 16, 8)).startswith(f"{declare.__name__}(<MemHandle 'field'")


def test_a_released_handle_is_refused_before_anything_is_enqueued(
    context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel
) -> None:
    handle = MemHandle.create_buffer(context, 64, label="gone")
    declared = InOut(handle)
    handle.release()
    for passed in (handle, declared):
        with pytest.raises(ReleasedError, match=r"'gone' \(64 bytes, created at .*released at .*test_commands"):
            cml.enqueue_kernel(queue, kernel("inc"), (16,), None, passed)
    with pytest.raises(ReleasedError):
        InOut(handle)
    with pytest.raises(ReleasedError):
        cml.enqueue_fill(queue, handle, np.int32(0))


def test_a_failed_event_is_refused_before_anything_is_enqueued(
    context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    failed = cl.UserEvent(context)
    failed.set_status(-5)
    cml.enqueue_fill(queue, field, np.int32(0))
    for command in (
        lambda: cml.enqueue_kernel(queue, kernel("inc"), (N,), None, field, wait_for=failed),
        lambda: cml.enqueue_fill(queue, field, np.int32(1), wait_for=[failed]),
        lambda: cml.enqueue_fill(queue, field, np.int32(1), 0, wait_for=failed),
    ):
        with pytest.raises(DependencyError, match="OUT_OF_RESOURCES") as caught:
            command()
        assert (caught.value.event, caught.value.status) == (failed, -5)
    assert not read(queue, field).any()


def test_wait_for_orders_kernels_on_two_queues(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    slow = cml.enqueue_kernel(queue, kernel("slow"), (N,), None, field, np.int32(1), np.int32(20000))
    done = cml.enqueue_kernel(queue2, kernel("inc"), (N,), None, field, wait_for=slow)
    assert (read(queue, field, wait_for=done) == 2).all()


# -- several threads, one kernel -------------------------------------------------------------------------------------


def test_threads_that_launch_one_kernel_never_mix_up_their_arguments(
    context: cl.Context, devices: list[cl.Device], kernel: MakeKernel
) -> None:
    shared = kernel("setval")
    wrong: list[str] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        own_queue = cl.CommandQueue(context, devices[0])
        with MemHandle.create_buffer(context, 64) as mine:
            start.wait()
            for round_ in range(150):
                value = np.int32(number * 1000 + round_)
                done = cml.enqueue_kernel(own_queue, shared, (16,), None, mine, value)
                if not (read(own_queue, mine, wait_for=done) == value).all():
                    wrong.append(f"thread {number}, round {round_}")
        own_queue.finish()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_plain_numbers_do_not_mix_up_between_threads_either(
    context: cl.Context, devices: list[cl.Device], kernel: MakeKernel
) -> None:
    shared = kernel("setval")
    shared.set_arg_types([None, np.int32])
    wrong: list[int] = []

    def work(number: int) -> None:
        own_queue = cl.CommandQueue(context, devices[0])
        with MemHandle.create_buffer(context, 64) as mine:
            for _ in range(60):
                done = cml.enqueue_kernel(own_queue, shared, (16,), None, mine, number)
                if not (read(own_queue, mine, wait_for=done) == number).all():
                    wrong.append(number)
        own_queue.finish()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- owners that go away ---------------------------------------------------------------------------------------------


def test_arguments_whose_only_owner_goes_away_live_until_the_command_is_complete(
    context: cl.Context, queue: cl.CommandQueue, program: cl.Program, field: MemHandle, gate: cl.UserEvent
) -> None:
    data = np.arange(N, dtype=np.int32)
    done = cml.enqueue_kernel(
        queue,
        cl.Kernel(program, "copy"),
        (N,),
        None,
        In(cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=data)),
        field,
        wait_for=gate,
    )
    gc.collect()
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert (read(queue, field, wait_for=done) == data).all()


def test_a_handle_that_is_collected_while_its_command_waits_is_released_late(
    context: cl.Context, queue: cl.CommandQueue, program: cl.Program, field: MemHandle, gate: cl.UserEvent
) -> None:
    data = np.arange(N, dtype=np.int32)
    with pytest.warns(LeakWarning, match="collected without release"):
        done = cml.enqueue_kernel(
            queue, cl.Kernel(program, "copy"), (N,), None,
            MemHandle.create_buffer(context, hostbuf=data, flags=MemFlags.COPY_HOST_PTR), field, wait_for=gate,
        )  # fmt: skip
        gc.collect()
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert (read(queue, field, wait_for=done) == data).all()


def test_a_handle_released_in_flight_still_serves_its_command(
    context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle, gate: cl.UserEvent
) -> None:
    source = MemHandle.create_buffer(context, hostbuf=np.full(N, 8, np.int32), flags=MemFlags.COPY_HOST_PTR)
    done = cml.enqueue_kernel(queue, kernel("copy"), (N,), None, source, field, wait_for=gate)
    source.release()
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert (read(queue, field, wait_for=done) == 8).all()


def test_a_host_array_of_a_pending_copy_lives_until_the_copy_is_complete(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent, wait: Callable[..., None]
) -> None:
    array = np.full(N, 4, np.int32)
    alive = weakref.ref(array)
    done = cml.enqueue_copy(queue, field, array, is_blocking=False, wait_for=gate)
    del array
    gc.collect()
    assert alive() is not None
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert (read(queue, field, wait_for=done) == 4).all()
    del done
    wait(lambda: not _inflight.entries() and alive() is None, "the array is let go")


def test_a_pattern_of_a_pending_fill_is_held(queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent) -> None:
    pattern = np.arange(4, dtype=np.int32)
    done = cml.enqueue_fill(queue, field, pattern, wait_for=gate)
    pattern = np.full(4, -1, np.int32)
    gc.collect()
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert read(queue, field, wait_for=done).tolist() == [0, 1, 2, 3] * (N // 4)


# -- the in-flight table ---------------------------------------------------------------------------------------------


def test_the_table_holds_a_command_until_it_is_complete(
    context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel, gate: cl.UserEvent, wait: Callable[..., None]
) -> None:
    with MemHandle.create_buffer(context, 64) as handle, MemHandle.retain(handle) as witness:
        before = witness.info().reference_count
        cml.enqueue_kernel(queue, kernel("inc"), (16,), None, handle, wait_for=gate)
        assert len(_inflight.entries()) == 1
        assert witness.info().reference_count > before
        gate.set_status(cl.command_execution_status.COMPLETE)
        wait(lambda: not _inflight.entries(), "the command is complete")
        wait(lambda: witness.info().reference_count == before, "its reference is given back")


def test_the_table_is_pruned_by_other_commands_alone(
    context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    for _ in range(20):
        cml.enqueue_kernel(queue, kernel("inc"), (N,), None, field)
    queue.finish()
    for _ in range(30):
        cml.enqueue_fill(queue, field, np.int32(0))
        queue.finish()
    assert len(_inflight._table) <= 2


def test_the_table_stays_within_twice_of_what_is_in_flight(
    queue: cl.CommandQueue, queue2: cl.CommandQueue, field: MemHandle, context: cl.Context, gate: cl.UserEvent
) -> None:
    with MemHandle.create_buffer(context, 64) as other:
        gated = cml.enqueue_fill(queue2, other, np.int32(1), wait_for=gate)
        in_flight_at_most = 33
        largest = 0
        for number in range(10_000):
            done = cml.enqueue_fill(queue, field, np.int32(number))
            if number % (in_flight_at_most - 1) == 0:
                done.wait()
            largest = max(largest, len(_inflight._table))
        assert largest <= 2 * in_flight_at_most
        assert gated.command_execution_status > 0
        gate.set_status(cl.command_execution_status.COMPLETE)


def test_a_dropped_event_of_a_gated_read_does_not_block(run: Callable[..., str]) -> None:
    out = run(
        """
        buffer = MemHandle.create_buffer(context, 4096)
        cml.enqueue_fill(queue, buffer, np.int32(7)).wait()
        gate = cl.UserEvent(context)
        out = np.zeros(1024, np.int32)
        start = time.monotonic()
        cml.enqueue_copy(queue, out, buffer, is_blocking=False, wait_for=gate)      # C56: the result is ignored
        event = cml.enqueue_copy(queue, out, buffer, is_blocking=False)             # C11: the event is dropped
        del event
        gc.collect()
        assert time.monotonic() - start < 5, "dropping blocked"
        threading.Timer(0.1, lambda: gate.set_status(0)).start()
        queue.finish()
        assert (out == 7).all()
        buffer.release()
        print("fine")
        """,
        timeout=30.0,
    )
    assert out.split() == ["fine"]


def test_a_ticking_thread_goes_on_while_an_event_of_a_pending_copy_is_dropped(run: Callable[..., str]) -> None:
    out = run(
        """
        buffer = MemHandle.create_buffer(context, 4096)
        gate = cl.UserEvent(context)
        ticks = []
        stop = threading.Event()
        def tick():
            while not stop.wait(0.001):
                ticks.append(1)
        ticker = threading.Thread(target=tick); ticker.start()
        out = np.zeros(1024, np.int32)
        for _ in range(50):
            cml.enqueue_copy(queue, out, buffer, is_blocking=False, wait_for=gate)
        del out
        gc.collect()
        seen = len(ticks)
        deadline = time.monotonic() + 10
        while len(ticks) < seen + 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(ticks) >= seen + 20
        gate.set_status(0)
        queue.finish()
        stop.set(); ticker.join(); buffer.release()
        print("fine")
        """,
        timeout=30.0,
    )
    assert out.split() == ["fine"]


# -- commands and maps -----------------------------------------------------------------------------------------------


def test_a_raw_object_on_mapped_memory_is_found_like_a_handle(
    queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    raw_part = field.mem[0:128]
    with Mapping(queue, field, MapFlags.WRITE, shape=(N,), dtype=np.int32) as mapping:
        mapping.wait()
        for passed in (field, field.mem, raw_part, In(raw_part), InOut(field, 0, 4)):
            with pytest.raises(MapConflictError, match=r"'field'.*mapped for writing since .*test_commands"):
                cml.enqueue_kernel(queue, kernel("inc"), (16,), None, passed)
        for target in (field, field.mem, raw_part):
            with pytest.raises(MapConflictError, match="enqueue_fill"):
                cml.enqueue_fill(queue, target, np.int32(0))


def test_an_assumed_access_does_not_conflict_with_a_read_map_but_a_declared_one_does(
    context: cl.Context, queue: cl.CommandQueue, field: MemHandle
) -> None:
    source = "__kernel void f(__global int *x, __global int *y) { y[get_global_id(0)] = x[get_global_id(0)]; }"
    kernel = build(context, source)
    with MemHandle.create_buffer(context, N * 4) as other, Mapping(queue, field, MapFlags.READ) as mapping:
        mapping.wait()
        cml.enqueue_kernel(queue, kernel, (N,), None, field, other).wait()
        cml.enqueue_kernel(queue, kernel, (N,), None, In(field), other).wait()
        with pytest.raises(MapConflictError, match="reads and writes bytes"):
            cml.enqueue_kernel(queue, kernel, (N,), None, InOut(field), other)


def test_declared_bytes_beside_the_map_do_not_conflict(
    context: cl.Context, queue: cl.CommandQueue, kernel: MakeKernel, field: MemHandle
) -> None:
    with Mapping(queue, field, MapFlags.WRITE, offset=512, size=256) as mapping:
        mapping.wait()
        cml.enqueue_kernel(queue, kernel("setval"), (128,), None, Out(field, 0, 512), np.int32(1)).wait()
        cml.enqueue_kernel(queue, kernel("setval"), (1,), None, Out(field, 600, 0), np.int32(1)).wait()
        with pytest.raises(MapConflictError, match=r"bytes \[508, 516\)"):
            cml.enqueue_kernel(queue, kernel("setval"), (1,), None, Out(field, 508, 8), np.int32(1))


# -- fills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16, 32, 64, 128])
def test_a_pattern_of_every_size_fills_its_range(queue: cl.CommandQueue, field: MemHandle, itemsize: int) -> None:
    cml.enqueue_fill(queue, field, np.uint8(0))
    pattern = np.arange(1, itemsize + 1, dtype=np.uint8)
    cml.enqueue_fill(queue, field, pattern, 256, offset=128)
    expected = np.zeros(N * 4, np.uint8)
    expected[128:384] = np.tile(pattern, 256 // itemsize)
    assert (read(queue, field, np.uint8) == expected).all()


@pytest.mark.parametrize("pattern", [b"\1\2", bytearray(b"\1\2"), memoryview(b"\1\2"), np.array([[1, 2]], np.uint8)])
def test_a_pattern_may_be_any_bytes(queue: cl.CommandQueue, field: MemHandle, pattern: Any) -> None:
    cml.enqueue_fill(queue, field, pattern)
    assert read(queue, field, np.uint8).tolist() == [1, 2] * (N * 2)


def test_a_fill_goes_to_raw_objects_and_parts_too(context: cl.Context, queue: cl.CommandQueue, alignment: int) -> None:
    with MemHandle.create_buffer(context, alignment + 256) as whole:
        cml.enqueue_fill(queue, whole.mem, np.int32(1))
        with whole.sub_buffer(alignment, 128) as part:
            cml.enqueue_fill(queue, part, np.int32(2), 64, offset=64)
        expected = np.ones(whole.size // 4, np.int32)
        expected[alignment // 4 + 16 : alignment // 4 + 32] = 2
        assert (read(queue, whole) == expected).all()


@pytest.mark.parametrize(
    ("pattern", "size", "offset", "message"),
    [
        (np.zeros(3, np.uint8), None, 0, "not 3"),
        (np.zeros(0, np.uint8), None, 0, "not 0"),
        (np.zeros(256, np.uint8), None, 0, "not 256"),
        (np.int32(0), 6, 0, "multiples of the pattern's 4 bytes"),
        (np.int32(0), 8, 2, "multiples of the pattern's 4 bytes"),
        (np.int32(0), N * 4 + 4, 0, "not within"),
        (np.int32(0), 8, N * 4 - 4, "not within"),
        (np.int32(0), -4, 0, "not within"),
        (np.int32(0), 4, -4, "not within"),
    ],
)
def test_a_fill_that_the_standard_forbids_is_refused_before_the_driver(
    queue: cl.CommandQueue, field: MemHandle, monkeypatch: pytest.MonkeyPatch, pattern: Any, size: int | None,
    offset: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(cml._opencl, "enqueue_fill_buffer", lambda *_: pytest.fail("the driver was asked"))
    with pytest.raises(ValueError, match=message):
        cml.enqueue_fill(queue, field, pattern, size, offset=offset)


@pytest.mark.parametrize("number", [0, 1.5, True, 2j])
def test_a_plain_number_is_no_pattern(queue: cl.CommandQueue, field: MemHandle, number: Any) -> None:
    with pytest.raises(TypeError, match=r"pattern is the plain number .*numpy\.int32"):
        cml.enqueue_fill(queue, field, number)


def test_only_device_memory_is_filled(queue: cl.CommandQueue) -> None:
    with pytest.raises(TypeError, match="dest must be a MemHandle, a PyOpenCL memory object or SVM, not ndarray"):
        cml.enqueue_fill(queue, np.zeros(4, np.int32), np.int32(0))


def test_a_fill_of_nothing_is_a_marker_that_carries_the_chain(
    context: cl.Context, out_of_order_queue: cl.CommandQueue, field: MemHandle, gate: cl.UserEvent,
    marker_types: tuple[int, ...],
) -> None:  # fmt: skip
    event = cml.enqueue_fill(out_of_order_queue, field, np.int32(0), 0, wait_for=gate)
    assert event.command_type in marker_types
    assert event.command_execution_status > 0
    gate.set_status(cl.command_execution_status.COMPLETE)
    event.wait()
    assert event.command_execution_status == 0


def test_svm_is_filled_as_a_whole_or_not_at_all(
    context: cl.Context, queue: cl.CommandQueue, marker_types: tuple[int, ...]
) -> None:
    if not queue.device.svm_capabilities:
        pytest.skip("the device has no shared virtual memory")
    memory = cl.SVM(cl.svm_empty(context, cl.svm_mem_flags.READ_WRITE, 16, np.int32))
    out = np.empty(16, np.int32)
    cml.enqueue_fill(queue, memory, np.int32(3), 64).wait()
    cml.enqueue_fill(queue, cl.SVM(memory.mem[4:8]), np.int32(4)).wait()
    cml.enqueue_copy(queue, out, memory)
    assert out.tolist() == [3] * 4 + [4] * 4 + [3] * 8
    assert cml.enqueue_fill(queue, memory, np.int32(5), 0).command_type in marker_types
    for size, offset in ((16, 0), (48, 16)):
        with pytest.raises(ValueError, match="is filled as a whole"):
            cml.enqueue_fill(queue, memory, np.int32(5), size, offset=offset)
    for size, offset in ((68, 0), (None, 16), (-4, 0)):
        with pytest.raises(ValueError, match="not within the 64 bytes"):
            cml.enqueue_fill(queue, memory, np.int32(5), size, offset=offset)


@pytest.mark.parametrize(
    ("channel_type", "dtype", "pattern"),
    [
        ("UNSIGNED_INT8", np.uint8, np.array([1, 2, 3, 4], np.uint8)),
        ("UNSIGNED_INT16", np.uint16, np.array([1, 2, 3, 60000], np.uint32)),
        ("SIGNED_INT32", np.int32, np.array([-1, 2, 3, 1 << 20], np.int64)),
        ("FLOAT", np.float32, np.array([0.5, 1, -2, 3], np.float64)),
        ("FLOAT", np.float32, np.array([1, 2, 3, 4], np.int32)),
    ],
)
def test_an_image_is_filled_with_a_colour(
    context: cl.Context, queue: cl.CommandQueue, channel_type: str, dtype: Any, pattern: np.ndarray
) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, getattr(cl.channel_type, channel_type))
    with MemHandle.create_image(context, (7, 5), format) as image:
        cml.enqueue_fill(queue, image, pattern)
        out = np.empty((5, 7, 4), dtype)
        cml.enqueue_copy(queue, out, image, origin=(0, 0), region=(7, 5))
        assert (out == pattern).all()


def test_a_colour_that_the_driver_would_read_beyond_is_refused(context: cl.Context, queue: cl.CommandQueue) -> None:
    format = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    with MemHandle.create_image(context, (8, 8), format) as image:
        for wrong in (np.zeros(3, np.uint32), np.uint32(1), np.zeros(4, np.float32), np.zeros(5, np.uint32)):
            with pytest.raises(ValueError, match="four numbers as uint32"):
                cml.enqueue_fill(queue, image, wrong)
        with pytest.raises(ValueError, match="an image is filled as a whole"):
            cml.enqueue_fill(queue, image, np.zeros(4, np.uint32), 16)
        with pytest.raises(ValueError, match="an image is filled as a whole"):
            cml.enqueue_fill(queue, image, np.zeros(4, np.uint32), offset=4)


def test_a_fill_with_python_objects_is_refused(queue, field):
    with pytest.raises(TypeError, match="Python objects"):
        cml.enqueue_fill(queue, field, np.array([None], object))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((), None), "global_size must have 1 to"),
        (((1,) * 99, None), "global_size must have 1 to"),
        (((4,), (1, 1)), "local_size .* must have as many numbers as global_size"),
        (((4,), None, (0, 0)), "global_offset .* must have as many numbers as global_size"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_named(context, queue, kernel, sizes, message):
    with MemHandle.create_buffer(context, 64) as handle, pytest.raises(ValueError, match=message):
        global_size, local_size, *offset = sizes
        cml.enqueue_kernel(
            queue,
            kernel("setval"),
            global_size,
            local_size,
            InOut(handle),
            np.int32(1),
            global_offset=(offset or [None])[0],
        )


@pytest.mark.parametrize("wrong", ["x", object(), [], ...])
def test_what_no_kernel_argument_can_be_is_a_type_error(context, queue, kernel, wrong):
    with (
        MemHandle.create_buffer(context, 64) as handle,
        pytest.raises(TypeError, match="argument 1 of kernel 'setval'"),
    ):
        cml.enqueue_kernel(queue, kernel("setval"), (4,), None, InOut(handle), wrong)
