"""Typed flags, built from PyOpenCL's constants.

``mem_flags.READ_WRITE``, ``map_flags.READ`` and ``mem_migration_flags.HOST`` are all the number 1, so a plain
integer cannot tell what was meant. Plain integers are refused here, also when they are combined with a flag.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

import pyopencl as cl

__all__ = ["MapFlags", "MemFlags", "MigrationFlags"]

F = TypeVar("F", bound="_Flags")


class _Flags(enum.Flag):
    """A bit-field that keeps bits it does not know (a driver may report some) and refuses plain integers."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"{value!r} is not a valid {cls.__name__}")
        # enum.Flag of Python 3.10 refuses unknown bits and that of 3.11 has boundaries: this serves both.
        member = object.__new__(cls)
        names = [one.name for one in cls if one.value and one.value & value == one.value]
        member._name_ = "|".join(str(name) for name in names) or None
        member._value_ = value
        return cls._value2member_map_.setdefault(value, member)

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"

    def __str__(self) -> str:
        cls = type(self)
        names = [f"{cls.__name__}.{one.name}" for one in cls if one.value and one.value & self.value == one.value]
        known = 0
        for one in cls:
            known |= one.value
        if self.value & ~known:
            names.append(f"{cls.__name__}({self.value & ~known:#x})")
        return "|".join(names) or f"{cls.__name__}(0)"

    def _combine(self: F, other: object, value: int) -> F:
        cls = type(self)
        if type(other) is not cls:
            raise TypeError(f"{self} cannot be combined with {_advice(other, cls)}")
        return cls(value)

    def __or__(self: F, other: Any) -> F:
        return self._combine(other, self.value | _bits(other))

    def __and__(self: F, other: Any) -> F:
        return self._combine(other, self.value & _bits(other))

    def __xor__(self: F, other: Any) -> F:
        return self._combine(other, self.value ^ _bits(other))

    __ror__ = __or__
    __rand__ = __and__
    __rxor__ = __xor__


def _strict(cls: type[F]) -> type[F]:
    """Give `cls` our operators back: ``EnumType`` puts those of ``enum.Flag`` into every subclass (Python 3.11+)."""
    for name in ("__or__", "__and__", "__xor__", "__ror__", "__rand__", "__rxor__"):
        setattr(cls, name, getattr(_Flags, name))
    return cls


@_strict
class MemFlags(_Flags):
    """Flags of a memory object: ``cl_mem_flags``.

    Attributes
    ----------
    READ_WRITE, READ_ONLY, WRITE_ONLY
        What kernels may do with it; one of the three at most.
    USE_HOST_PTR
        It uses the memory of ``hostbuf``, which is kept alive until the runtime says that the object is gone.
    ALLOC_HOST_PTR
        In memory that the host can reach: pinned, on a GPU.
    COPY_HOST_PTR
        It begins with a copy of ``hostbuf``.
    HOST_READ_ONLY, HOST_WRITE_ONLY, HOST_NO_ACCESS
        What the host may do with it by copies and maps; one of the three at most.
    KERNEL_READ_AND_WRITE
        One kernel may read and write it as an image.

    Notes
    -----
    OpenCL specification: ``clCreateBuffer``, "Memory Flags".
    """

    READ_WRITE = cl.mem_flags.READ_WRITE
    WRITE_ONLY = cl.mem_flags.WRITE_ONLY
    READ_ONLY = cl.mem_flags.READ_ONLY
    USE_HOST_PTR = cl.mem_flags.USE_HOST_PTR
    ALLOC_HOST_PTR = cl.mem_flags.ALLOC_HOST_PTR
    COPY_HOST_PTR = cl.mem_flags.COPY_HOST_PTR
    HOST_WRITE_ONLY = cl.mem_flags.HOST_WRITE_ONLY
    HOST_READ_ONLY = cl.mem_flags.HOST_READ_ONLY
    HOST_NO_ACCESS = cl.mem_flags.HOST_NO_ACCESS
    KERNEL_READ_AND_WRITE = cl.mem_flags.KERNEL_READ_AND_WRITE


@_strict
class MapFlags(_Flags):
    """Flags of a map: ``cl_map_flags``.

    Attributes
    ----------
    READ
        The host reads; alone it gives a read-only array.
    WRITE
        The host writes parts of the region; the rest stays.
    WRITE_INVALIDATE_REGION
        The host writes all of the region; the old content need not travel. Excludes the others.

    Notes
    -----
    OpenCL specification: ``clEnqueueMapBuffer``, "Map Flags".
    """

    READ = cl.map_flags.READ
    WRITE = cl.map_flags.WRITE
    WRITE_INVALIDATE_REGION = cl.map_flags.WRITE_INVALIDATE_REGION


@_strict
class MigrationFlags(_Flags):
    """Flags of a migration: ``cl_mem_migration_flags``.

    Attributes
    ----------
    HOST
        To the host instead of to the device of the queue.
    CONTENT_UNDEFINED
        The content need not travel; it is undefined afterwards.

    Notes
    -----
    OpenCL specification: ``clEnqueueMigrateMemObjects``, "Memory Migration Flags".
    """

    HOST = cl.mem_migration_flags.HOST
    CONTENT_UNDEFINED = cl.mem_migration_flags.CONTENT_UNDEFINED


def require(flags: object, cls: type[F], name: str = "flags") -> F:
    """Return `flags` if it is a member of `cls`; raise ``TypeError`` with the right spelling otherwise."""
    if type(flags) is not cls:
        raise TypeError(f"{name} must be {cls.__name__}, not {_advice(flags, cls)}")
    return flags


def _bits(other: object) -> int:
    return other.value if isinstance(other, _Flags) else 0


def _advice(other: object, cls: type[_Flags]) -> str:
    if isinstance(other, int) and not isinstance(other, bool) and other >= 0:
        return (
            f"the plain integer {other}: the same number means different things in mem_flags, map_flags and "
            f"mem_migration_flags; write {cls(other)}"
        )
    if isinstance(other, enum.Enum):
        return f"{type(other).__name__} ({other}); write a combination of {', '.join(map(str, cls))}"
    return f"{type(other).__name__} {other!r}; write a combination of {', '.join(map(str, cls))}"
