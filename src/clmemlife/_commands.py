"""Commands: kernels and fills."""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np
import pyopencl as cl

from . import _journal, _kernel_args, _opencl, _waitlist
from ._access import In, InOut, Out, Use
from ._handle import MemHandle
from ._ledger import find_root
from ._meminfo import image_region
from ._submit import check_queue, marker, submit, target, whole

__all__ = ["enqueue_fill", "enqueue_kernel"]

_kernel_locks = [threading.RLock() for _ in range(16)]
_Declared = (In, Out, InOut)


def enqueue_kernel(
    queue: cl.CommandQueue,
    kernel: cl.Kernel,
    global_size: tuple[int, ...],
    local_size: tuple[int, ...] | None,
    *args: Any,
    wait_for: Any = None,
    global_offset: tuple[int, ...] | None = None,
) -> cl.Event:
    """Set the arguments of a kernel and enqueue it.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
    kernel : pyopencl.Kernel
        May be launched from several threads: setting and enqueueing are one step.
    global_size, local_size, global_offset : tuple of int
        Work-items; `local_size` may be ``None``.
    *args
        As PyOpenCL takes them (NumPy scalars, `LocalMemory`, memory objects, SVM), and handles, plain or as `In`,
        `Out`, `InOut`, which declare the use.
    wait_for
        See `wait_list`.

    Returns
    -------
    pyopencl.Event
        Dropping it is harmless. What the kernel uses is held until it is complete.

    Raises
    ------
    TypeError
        Wrong number of arguments; a plain Python number where the kernel has no argument types.
    MapConflictError, DependencyError, ContextMismatchError, ReleasedError, AlignmentError
        Before anything is enqueued.

    Notes
    -----
    Does not block. OpenCL specification: ``clSetKernelArg``, ``clEnqueueNDRangeKernel``.
    """
    check_queue(queue)
    if not isinstance(kernel, cl.Kernel):
        raise TypeError(f"kernel must be a pyopencl.Kernel, not {type(kernel).__name__}")
    if len(args) != kernel.num_args:
        raise TypeError(f"kernel {kernel.function_name!r} takes {kernel.num_args} arguments, {len(args)} were given")
    waits = _waitlist.prepare(queue, wait_for)
    held: list[Any] = [kernel]
    uses: list[Use] = []
    setters: list[tuple[Any, ...]] = []
    watched = bool(_journal.listeners)
    for index, arg in enumerate(args):
        declared = None
        if isinstance(arg, _Declared):
            declared, arg = arg, arg.mem
        if isinstance(arg, MemHandle):
            mem = arg._share()
            arg._check_queue(queue)
            held.append(mem)
            setters.append((_opencl.set_kernel_arg_mem, index, arg._entry.int_ptr))
            if watched or arg._entry.root.maps:
                uses.append(_use(kernel, index, arg, declared))
        elif isinstance(arg, np.generic):
            data = arg.tobytes()
            setters.append((_opencl.set_kernel_arg_bytes, index, len(data), data))
        elif isinstance(arg, cl.LocalMemory):
            setters.append((_opencl.set_kernel_arg_bytes, index, arg.size, None))
        else:
            held.append(arg)
            setters.append((None, index, arg))
            if isinstance(arg, cl.MemoryObjectHolder):
                root = find_root(arg.int_ptr)
                if watched or (root is not None and root.maps):
                    uses.append(_use(kernel, index, arg, declared))
    name = kernel.function_name if watched or uses else ""
    int_ptr = kernel.int_ptr
    with _kernel_locks[(int_ptr >> 4) & 15]:
        for setter, *values in setters:
            if setter is None:
                _set_other(kernel, args, *values)
            else:
                setter(int_ptr, *values)
        event: cl.Event = submit(
            "enqueue_kernel", queue, uses, waits, held, _opencl.enqueue_nd_range_kernel,
            queue, kernel, global_size, local_size, global_offset, waits, name=name,
        )  # fmt: skip
    return event


def _use(kernel: cl.Kernel, index: int, mem: Any, declared: In | Out | InOut | None) -> Use:
    use = whole(mem, reads=True, writes=True)
    if declared is not None:
        use.reads, use.writes = declared.reads, declared.writes
        use.start += declared.offset
        use.stop = use.start + declared.size
        return use
    mode = _kernel_args.modes(kernel)[index]
    use.reads, use.writes = mode != _kernel_args.WRITE, mode != _kernel_args.READ
    use.assumed = mode == _kernel_args.ASSUMED
    return use


def _set_other(kernel: cl.Kernel, args: tuple[Any, ...], index: int, arg: Any) -> None:
    """Set an argument PyOpenCL's own way; a plain number needs the types that the kernel may have been given."""
    if not isinstance(arg, (bool, int, float, complex)):
        kernel.set_arg(index, arg)
        return
    raw = [one.mem if isinstance(one, _Declared) else one for one in args]
    shared = [one._share() if isinstance(one, MemHandle) else one for one in raw]
    try:
        kernel.set_args(*shared)
    except (cl.Error, TypeError) as error:
        raise TypeError(
            f"argument {index} of kernel {kernel.function_name!r} is the plain number {arg!r}; say how many bytes it "
            f"has, for example numpy.int32({arg!r}), or give the kernel its types with kernel.set_arg_types"
        ) from error


def enqueue_fill(
    queue: cl.CommandQueue,
    dest: Any,
    pattern: Any,
    size: int | None = None,
    *,
    offset: int = 0,
    wait_for: Any = None,
) -> cl.Event:
    """Fill a buffer with a pattern, or a whole image with a colour.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
    dest : MemHandle or PyOpenCL memory object or SVM
    pattern : NumPy scalar or array, or bytes
        1, 2, 4, ... 128 bytes; for an image four channels.
    size, offset : int
        Bytes, multiples of the pattern's size; `size` defaults to the rest of the buffer.
    wait_for
        See `wait_list`.

    Returns
    -------
    pyopencl.Event
        With a size of zero that of a marker.

    Raises
    ------
    TypeError, ValueError
        A pattern or range that the standard does not allow.
    MapConflictError, DependencyError, ContextMismatchError, ReleasedError

    Notes
    -----
    Does not block. OpenCL specification: ``clEnqueueFillBuffer``, ``clEnqueueFillImage``.
    """
    check_queue(queue)
    if isinstance(pattern, (bool, int, float, complex)):
        raise TypeError(
            f"pattern is the plain number {pattern!r}; say how many bytes it has, e.g. numpy.int32({pattern!r})"
        )
    pattern = (
        np.ascontiguousarray(pattern)
        if isinstance(pattern, (np.ndarray, np.generic))
        else np.frombuffer(pattern, np.uint8)
    )
    if not isinstance(dest, (MemHandle, cl.MemoryObjectHolder)):
        waits = _waitlist.prepare(queue, wait_for)
        total = dest.size if size is None else size
        return submit(
            "enqueue_fill", queue, (), waits, (dest, pattern), _opencl.enqueue_svm_memfill,
            queue, dest, pattern, total, waits,
        )  # fmt: skip
    mem, use = target(queue, dest, reads=False, writes=True)
    if mem.type != cl.mem_object_type.BUFFER:
        if offset or size is not None:
            raise ValueError("an image is filled as a whole: leave out size and offset")
        region = image_region(mem)
        waits = _waitlist.prepare(queue, wait_for)
        return submit(
            "enqueue_fill", queue, (use,), waits, (mem, pattern), _opencl.enqueue_fill_image,
            queue, mem, pattern, (0, 0, 0), region, waits,
        )  # fmt: skip
    offset = operator.index(offset)
    size = mem.size - offset if size is None else operator.index(size)
    step = pattern.nbytes
    if step not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"a pattern has 1, 2, 4, ... 128 bytes, not {step}")
    if offset < 0 or size < 0 or offset + size > mem.size:
        raise ValueError(f"bytes [{offset}, {offset + size}) are not within {mem.size} bytes of {dest!r}")
    if offset % step or size % step:
        raise ValueError(f"offset {offset} and size {size} must be multiples of the pattern's {step} bytes")
    if not size:
        return marker(queue, wait_for, "enqueue_fill")
    use.start += offset
    use.stop = use.start + size
    waits = _waitlist.prepare(queue, wait_for)
    return submit(
        "enqueue_fill", queue, (use,), waits, (mem, pattern), _opencl.enqueue_fill_buffer,
        queue, mem, pattern, offset, size, waits,
    )  # fmt: skip
