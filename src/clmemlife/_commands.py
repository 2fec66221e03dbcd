"""Commands: kernels and fills."""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np
import pyopencl as cl

from . import _journal, _kernel_args, _opencl, _waitlist
from ._access import Declared, Use
from ._handle import MemHandle
from ._images import image_region
from ._ledger import any_maps
from ._submit import check_queue, check_usable, marker, submit, target, whole
from .exceptions import CallError

__all__ = ["enqueue_fill", "enqueue_kernel"]

_kernel_locks = [threading.RLock() for _ in range(16)]


def _facts(kernel: cl.Kernel) -> tuple[int, int]:
    """Return the number of arguments of a kernel and which lock it has (by its address), remembered with it."""
    known = kernel._clmemlife_facts = kernel.num_args, (kernel.int_ptr >> 4) & 15
    return known


def renew_locks() -> None:
    """Replace the locks, in a forked child: threads of the parent may have held them."""
    _kernel_locks[:] = [threading.RLock() for _ in _kernel_locks]


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
        Of the context of the kernel and of all memory objects; not held.
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
    CallError, pyopencl.Error
        The driver refuses an argument, for example for its size.
    MapConflictError, DependencyError, ContextMismatchError, ReleasedError, AlignmentError
        Before anything is enqueued.

    Notes
    -----
    Does not block. OpenCL specification: ``clSetKernelArg``, ``clEnqueueNDRangeKernel``.
    """
    check_queue(queue)
    if not isinstance(kernel, cl.Kernel):
        raise TypeError(f"kernel must be a pyopencl.Kernel, not {type(kernel).__name__}")
    known = getattr(kernel, "_clmemlife_facts", None) or _facts(kernel)
    if len(args) != known[0]:
        raise TypeError(f"kernel {kernel.function_name!r} takes {known[0]} arguments, {len(args)} were given")
    waits = None if wait_for is None else _waitlist.prepare(queue, wait_for)
    watched = bool(_journal.listeners)
    held: list[Any] = [kernel]
    uses: list[Use] = []
    with _kernel_locks[known[1]]:
        try:
            for index, arg in enumerate(args):
                declared = None
                if isinstance(arg, Declared):
                    declared, arg = arg, arg.mem
                if isinstance(arg, MemHandle):
                    mem = arg._share()
                    check_usable(arg, queue)
                    if watched or arg._entry.root.maps:
                        uses.append(_use(kernel, index, arg, declared))
                    _opencl.set_kernel_arg(kernel, index, mem)
                    held.append(mem)
                elif isinstance(arg, np.generic):
                    _opencl.set_kernel_arg_buf(kernel, index, arg)
                elif isinstance(arg, cl.LocalMemory):
                    _opencl.set_kernel_arg_bytes(kernel.int_ptr, index, arg.size, None)
                else:
                    if isinstance(arg, cl.MemoryObjectHolder) and (watched or any_maps()):
                        uses.append(_use(kernel, index, arg, declared))
                    _set_other(kernel, args, index, arg)
                    held.append(arg)
        except (CallError, cl.LogicError) as error:
            if error.routine != "clSetKernelArg":
                raise
            detail = f"argument {index} of kernel {kernel.function_name!r} cannot be {arg!r}"
            raise CallError(error.routine, error.code, detail) from None
        event: cl.Event = submit(
            "enqueue_kernel", queue, uses, waits, held, _opencl.enqueue_nd_range_kernel,
            queue, kernel, global_size, local_size, global_offset, waits,
            name=_kernel_args.name_of(kernel) if uses or watched else "",
        )  # fmt: skip
    return event


def _use(kernel: cl.Kernel, index: int, mem: Any, declared: Declared | None) -> Use:
    if declared is not None:
        use = whole(mem, reads=declared.reads, writes=declared.writes)
        use.start += declared.offset
        use.stop = use.start + declared.size
        return use
    use = whole(mem, reads=True, writes=True)
    mode = _kernel_args.modes(kernel)[index]
    use.reads, use.writes = mode != _kernel_args.WRITE, mode != _kernel_args.READ
    use.assumed = mode == _kernel_args.ASSUMED
    return use


def _set_other(kernel: cl.Kernel, args: tuple[Any, ...], index: int, arg: Any) -> None:
    """Set an argument PyOpenCL's own way; a plain number needs the types that the kernel may have been given."""
    if arg is None:  # a null pointer
        _opencl.set_kernel_arg_bytes(kernel.int_ptr, index, _opencl.POINTER_BYTES, None)
        return
    if not isinstance(arg, (bool, int, float, complex)):
        _opencl.set_kernel_arg(kernel, index, arg)
        return
    raw = [one.mem if isinstance(one, Declared) else one for one in args]
    shared = [one._share() if isinstance(one, MemHandle) else one for one in raw]
    try:
        _opencl.set_kernel_args(kernel, *shared)
    except (cl.LogicError, TypeError) as error:
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
        With a size of zero that of a marker. `dest` and the pattern are held until it is complete.

    Raises
    ------
    TypeError, ValueError
        A pattern or range that the standard does not allow.
    MapConflictError, DependencyError, ContextMismatchError, ReleasedError

    Notes
    -----
    Does not block, any thread. OpenCL specification: ``clEnqueueFillBuffer``, ``clEnqueueFillImage``.
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
    if pattern.dtype.hasobject:
        raise TypeError("pattern has elements that are Python objects; they mean nothing to a device")
    if isinstance(dest, cl.SVMPointer):
        return _fill_svm(queue, dest, pattern, size, offset, wait_for)
    if not isinstance(dest, (MemHandle, cl.MemoryObjectHolder)):
        raise TypeError(f"dest must be a MemHandle, a PyOpenCL memory object or SVM, not {type(dest).__name__}")
    mem, use = target(queue, dest, reads=False, writes=True)
    if mem.type != cl.mem_object_type.BUFFER:
        if offset or size is not None:
            raise ValueError("an image is filled as a whole: leave out size and offset")
        region, pattern = image_region(mem), _colour(pattern, mem.format)
        waits = _waitlist.prepare(queue, wait_for)
        return submit(
            "enqueue_fill", queue, (use,), waits, (mem, pattern), _opencl.enqueue_fill_image,
            queue, mem, pattern, (0, 0, 0), region, waits,
        )  # fmt: skip
    offset = operator.index(offset)
    size = mem.size - offset if size is None else operator.index(size)
    _check_range(dest, mem.size, pattern.nbytes, size, offset)
    if not size:
        return marker(queue, wait_for, "enqueue_fill")
    use.start += offset
    use.stop = use.start + size
    waits = _waitlist.prepare(queue, wait_for)
    return submit(
        "enqueue_fill", queue, (use,), waits, (mem, pattern), _opencl.enqueue_fill_buffer,
        queue, mem, pattern, offset, size, waits,
    )  # fmt: skip


def _fill_svm(
    queue: cl.CommandQueue, dest: cl.SVMPointer, pattern: np.ndarray[Any, Any], size: int | None, offset: int,
    wait_for: Any,
) -> cl.Event:  # fmt: skip
    total = operator.index(dest.size)
    size = total if size is None else operator.index(size)
    _check_range(dest, total, pattern.nbytes, size, offset)
    if not size:
        return marker(queue, wait_for, "enqueue_fill")
    if size != total:  # PyOpenCL 2026.1 takes a size and fills everything all the same
        raise ValueError(f"SVM of {total} bytes is filled as a whole, not {size} bytes; pass the part that is meant")
    waits = _waitlist.prepare(queue, wait_for)
    event: cl.Event = submit(
        "enqueue_fill", queue, (), waits, (dest, pattern), _opencl.enqueue_svm_memfill,
        queue, dest, pattern, size, waits,
    )  # fmt: skip
    return event


def _check_range(dest: object, total: int, step: int, size: int, offset: int) -> None:
    if step not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"a pattern has 1, 2, 4, ... 128 bytes, not {step}")
    if offset < 0 or size < 0 or offset + size > total:
        raise ValueError(f"bytes [{offset}, {offset + size}) are not within the {total} bytes of {dest!r}")
    if offset % step or size % step:
        raise ValueError(f"offset {offset} and size {size} must be multiples of the pattern's {step} bytes")


def _colour(pattern: np.ndarray[Any, Any], format: cl.ImageFormat) -> np.ndarray[Any, Any]:
    """Return the four numbers that fill an image, as the driver reads them whatever the image's channels are."""
    types = cl.channel_type
    kind: Any = np.float32
    if format.channel_data_type in (types.SIGNED_INT8, types.SIGNED_INT16, types.SIGNED_INT32):
        kind = np.int32
    elif format.channel_data_type in (types.UNSIGNED_INT8, types.UNSIGNED_INT16, types.UNSIGNED_INT32):
        kind = np.uint32
    if pattern.size != 4 or not np.can_cast(pattern.dtype, kind, "same_kind"):
        raise ValueError(
            f"an image of this format is filled with four numbers as {np.dtype(kind)}, not with {pattern.size} of "
            f"{pattern.dtype}"
        )
    return np.ascontiguousarray(pattern.ravel(), kind)
