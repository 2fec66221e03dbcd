"""`enqueue_kernel`: any kind of argument, and one kernel in many threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyopencl as cl

from . import _journal, _kernel_args, _kernel_types, _opencl, _waitlist
from ._access import Declared, Use
from ._arguments import whole_numbers
from ._handle import MemHandle
from ._ledger import any_maps
from ._site import plural
from ._submit import check_queue, check_usable, submit, whole
from .exceptions import CallError

__all__ = ["enqueue_kernel"]

_kernel_locks = [threading.RLock() for _ in range(16)]


def _facts(kernel: cl.Kernel) -> tuple[tuple[frozenset[Any] | None, ...], int]:
    """Return what each argument of a kernel accepts and which lock it has (by its address), remembered with it."""
    accepts = tuple([one.accepts for one in _kernel_args.parameters(kernel)])
    known = kernel._clmemlife_facts = accepts, (kernel.int_ptr >> 4) & 15
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
        Wrong number of arguments; a plain Python number where the kernel has no argument types; as far as the program
        tells the declared types, an argument of another kind or size; a size that is no tuple of int.
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
    accepts = known[0]
    if len(args) != len(accepts):
        raise TypeError(
            f"{_kernel_args.text_of(kernel)} takes {plural(len(accepts), 'argument')}, {len(args)} were given"
        )
    if type(global_size) is not tuple:
        global_size = whole_numbers(global_size, "global_size")
    if local_size is not None and type(local_size) is not tuple:
        local_size = whole_numbers(local_size, "local_size")
    if global_offset is not None:
        global_offset = whole_numbers(global_offset, "global_offset")
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
                accepted = accepts[index]
                if isinstance(arg, MemHandle):
                    if accepted is not None and arg._type not in accepted:
                        _check(kernel, index, arg)
                    mem = arg._share()
                    check_usable(arg, queue)
                    if watched or arg._entry.root.maps:
                        uses.append(_use(kernel, index, arg, declared))
                    _opencl.set_kernel_arg(kernel, index, mem)
                    held.append(mem)
                elif isinstance(arg, np.generic):
                    if accepted is not None and type(arg) not in accepted:
                        _check(kernel, index, arg)
                    _opencl.set_kernel_arg_buf(kernel, index, arg)
                elif isinstance(arg, cl.LocalMemory):
                    if accepted is not None and _kernel_types.LOCAL not in accepted:
                        _check(kernel, index, arg)
                    _opencl.set_kernel_arg_bytes(kernel.int_ptr, index, arg.size, None)
                else:
                    if accepted is not None:
                        _check(kernel, index, arg)
                    if isinstance(arg, cl.MemoryObjectHolder) and (watched or any_maps()):
                        uses.append(_use(kernel, index, arg, declared))
                    _set_other(kernel, args, index, arg)
                    held.append(arg)
        except (CallError, cl.LogicError) as error:
            detail = f"argument {index} of kernel {kernel.function_name!r} cannot be {arg!r}"
            if error.routine == "Kernel.set_arg":  # PyOpenCL knows no way to pass it, and did not ask the driver
                raise TypeError(detail) from None
            if error.routine != "clSetKernelArg":
                raise
            raise CallError(error.routine, error.code, detail) from None
        try:
            event: cl.Event = submit(
                "enqueue_kernel", queue, uses, waits, held, _opencl.enqueue_nd_range_kernel,
                queue, kernel, global_size, local_size, global_offset, waits,
                name=_kernel_args.name_of(kernel) if uses or watched else "",
            )  # fmt: skip
        except (RuntimeError, TypeError, cl.LogicError):  # what PyOpenCL cannot cast, or the driver does not take
            _check_sizes(queue, global_size=global_size, local_size=local_size, global_offset=global_offset)
            raise
    return event


def _check(kernel: cl.Kernel, index: int, arg: Any) -> None:
    _kernel_types.check(_kernel_args.parameters(kernel)[index], index, _kernel_args.name_of(kernel), arg)


def _check_sizes(queue: cl.CommandQueue, **sizes: Any) -> None:
    dims, limit = len(sizes["global_size"]), queue.device.max_work_item_dimensions
    if not 1 <= dims <= limit:
        raise ValueError(f"global_size must have 1 to {limit} numbers, not {sizes['global_size']}") from None
    for name, size in sizes.items():
        if size is None:
            continue
        if any(one < 0 for one in whole_numbers(size, name)):
            raise ValueError(f"{name} {size} has a negative number") from None
        if len(size) != dims:
            raise ValueError(f"{name} {size} must have as many numbers as global_size, {dims}") from None


def _use(kernel: cl.Kernel, index: int, mem: Any, declared: Declared | None) -> Use:
    if declared is not None:
        use = whole(mem, reads=declared.reads, writes=declared.writes)
        use.start += declared.offset
        use.stop = use.start + declared.size
        return use
    use = whole(mem, reads=True, writes=True)
    mode = _kernel_args.parameters(kernel)[index].mode
    use.reads, use.writes = mode != _kernel_types.WRITE, mode != _kernel_types.READ
    use.assumed = mode == _kernel_types.ASSUMED
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
