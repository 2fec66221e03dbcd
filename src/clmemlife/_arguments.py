"""What the driver would be asked for, checked first: flags, sizes, numbers, addresses."""

from __future__ import annotations

import functools
import operator
from typing import Any

from ._limits import ContextLimits
from .flags import MemFlags, require

HOST_PTR_FLAGS = MemFlags.USE_HOST_PTR | MemFlags.ALLOC_HOST_PTR | MemFlags.COPY_HOST_PTR
ACCESS_FLAGS = MemFlags.READ_WRITE | MemFlags.READ_ONLY | MemFlags.WRITE_ONLY
HOST_ACCESS_FLAGS = MemFlags.HOST_READ_ONLY | MemFlags.HOST_WRITE_ONLY | MemFlags.HOST_NO_ACCESS


_sound: set[int] = set()


def check_flags(flags: MemFlags) -> MemFlags:
    """Return `flags` if a new memory object can have them."""
    if type(flags) is MemFlags and flags._value_ in _sound:  # the hash of a flag costs more than all the rest
        return flags
    require(flags, MemFlags)
    for group in (ACCESS_FLAGS, HOST_ACCESS_FLAGS):
        chosen = flags & group
        if chosen.value & (chosen.value - 1):
            raise ValueError(f"{chosen} contradict each other: give one")
    if flags & MemFlags.USE_HOST_PTR and flags & (MemFlags.ALLOC_HOST_PTR | MemFlags.COPY_HOST_PTR):
        raise ValueError(f"{flags & HOST_PTR_FLAGS}: USE_HOST_PTR excludes the other two")
    _sound.add(flags.value)
    return flags


def check_narrowing(mine: MemFlags, wanted: MemFlags) -> None:
    _, access = check_flags(wanted), wanted & ACCESS_FLAGS
    if access and mine & (MemFlags.READ_ONLY | MemFlags.WRITE_ONLY) and access != mine & ACCESS_FLAGS:
        raise ValueError(f"a sub-buffer of a {mine & ACCESS_FLAGS} buffer cannot be {access}")
    host = wanted & HOST_ACCESS_FLAGS
    if host and host != MemFlags.HOST_NO_ACCESS and mine & HOST_ACCESS_FLAGS and host != mine & HOST_ACCESS_FLAGS:
        raise ValueError(f"a sub-buffer of a {mine & HOST_ACCESS_FLAGS} buffer cannot be {host}")


@functools.cache
def check_host_access(flags: MemFlags, what: str, *, reads: bool, writes: bool) -> None:
    """Refuse what the ``HOST_*`` flags of an object forbid to the host."""
    for forbidden, applies in (
        (MemFlags.HOST_NO_ACCESS, True), (MemFlags.HOST_WRITE_ONLY, reads), (MemFlags.HOST_READ_ONLY, writes),
    ):  # fmt: skip
        if applies and flags & forbidden:
            raise ValueError(f"the object was created with {forbidden}, which forbids {what}")


def whole_number(value: object, name: str) -> int:
    """Return `value` as an ``int``; refuse what is none, ``bool`` included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__} {value!r}")
    return operator.index(value)


def check_bool(value: object, name: str) -> None:
    """Raise ``TypeError`` for what is neither ``True`` nor ``False``."""
    if value is not True and value is not False:
        raise TypeError(f"{name} must be True or False, not {type(value).__name__} {value!r}")


def whole_numbers(values: Any, name: str) -> tuple[int, ...]:
    """Return a sequence of numbers as a tuple of ``int``; refuse what has no order or is no number."""
    if isinstance(values, (str, bytes)) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
        raise TypeError(f"{name} must be a tuple of int, not {type(values).__name__} {values!r}")
    try:
        return tuple([operator.index(one) for one in values])
    except TypeError:
        raise TypeError(f"{name} must be a tuple of int, not {values!r}") from None


def buffer_size(size: object, host_bytes: int | None, limits: ContextLimits) -> int:
    """Return the size in bytes of a new buffer over `host_bytes` of host memory, checked."""
    if type(size) is int and 0 < size <= limits.max_mem_alloc_size and host_bytes is None:
        return size
    if size is None:
        if host_bytes is None:
            raise ValueError("create_buffer needs a size in bytes, or a hostbuf that has one")
        size = host_bytes
    nbytes = whole_number(size, "size (bytes)")
    if nbytes <= 0:
        raise ValueError(f"the size of a buffer must be at least 1 byte, not {nbytes}")
    if host_bytes is not None and host_bytes < nbytes:
        raise ValueError(f"hostbuf has {host_bytes} bytes, fewer than the buffer's size of {nbytes}")
    if nbytes > limits.max_mem_alloc_size:
        raise ValueError(
            f"a buffer of {nbytes} bytes is beyond the largest allocation of {limits.max_mem_alloc_size} bytes "
            f"(CL_DEVICE_MAX_MEM_ALLOC_SIZE of {limits.largest_device})"
        )
    return nbytes


def check_order(size: Any, flags: Any) -> None:
    """Refuse size and flags in the order in which PyOpenCL takes them."""
    if type(flags) is MemFlags and not isinstance(size, MemFlags):
        return
    order = "size (bytes) comes before flags"
    if isinstance(size, MemFlags):
        number = "size" if isinstance(flags, MemFlags) else flags
        raise TypeError(f"{order}: create_buffer(context, {number}, {size})")
    if hasattr(flags, "__index__") and hasattr(size, "__index__") and 0 <= size < flags:
        raise TypeError(
            f"flags must be MemFlags, not the plain integer {flags}, and {order}: create_buffer(context, {flags}, "
            f"{MemFlags(int(size))}), or is create_buffer(context, {size}, {MemFlags(int(flags))}) meant?"
        )


def address_of(value: object, caller: str) -> int:
    """Return `value` as the address of a ``cl_mem`` that `caller` was given."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{caller} takes a PyOpenCL memory object or the address of a cl_mem, not {value!r}")
    address = operator.index(value)
    if not 0 < address < 1 << 64:
        raise ValueError(f"{address} is not the address of a cl_mem")
    return address
