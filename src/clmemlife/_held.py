"""What a handle holds, and what may be asked of it."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import pyopencl as cl

from . import _inflight, _ledger, _opencl
from ._meminfo import MemInfo, query
from ._site import describe
from .exceptions import ForkedProcessError, ReleasedError
from .flags import MemFlags


class Held:
    """The state of a `MemHandle`, and the questions that it answers.

    Commands do not borrow the handle's reference: each gets a PyOpenCL object with one of its own (`_share`), so that
    a release in another thread cannot pull the memory away.
    """

    __slots__ = (
        "__weakref__", "_context", "_entry", "_finalizer", "_flags", "_gone", "_lock", "_misaligned",
        "_parent", "_type",
    )  # fmt: skip

    _context: cl.Context
    _entry: _ledger.Entry
    _finalizer: weakref.finalize[Any, Any]
    _flags: MemFlags
    _gone: tuple[str, str] | None
    _lock: Any
    _misaligned: frozenset[int]
    _parent: Held | None
    _type: int

    @property
    def mem(self) -> cl.MemoryObject:
        """A PyOpenCL object for other libraries, with a reference of its own.

        A name kept past `release` stays safe to use; it keeps the memory, and leak reports say so. Does not block.
        OpenCL specification: ``clRetainMemObject``.
        """
        return self._share()

    @property
    def int_ptr(self) -> int:
        """Address of the ``cl_mem``."""
        int_ptr = self._entry.held
        if int_ptr is None:
            raise self._gone_error()
        return int_ptr

    @property
    def size(self) -> int:
        """Size in bytes (``CL_MEM_SIZE``)."""
        return self._alive().size

    @property
    def flags(self) -> MemFlags:
        """Flags (``CL_MEM_FLAGS``); bits that this library does not know are kept."""
        self._alive()
        return self._flags

    @property
    def type(self) -> int:
        """Kind of object (``CL_MEM_TYPE``), a value of `pyopencl.mem_object_type`."""
        self._alive()
        return self._type

    @property
    def context(self) -> cl.Context:
        """The context it belongs to."""
        self._alive()
        return self._context

    @property
    def label(self) -> str | None:
        """Name for messages and reports."""
        return self._entry.label

    @property
    def site(self) -> str:
        """``file:line`` that made this handle."""
        return self._entry.site

    @property
    def released(self) -> bool:
        """Whether the reference was given back (or away)."""
        return self._entry.held is None

    @property
    def parent(self) -> Held | None:
        """The handle whose root this sub-buffer is part of, else ``None``."""
        self._alive()
        return self._parent

    def info(self) -> MemInfo:
        """Ask the driver for every ``CL_MEM_*`` value now.

        Returns
        -------
        MemInfo
            A record of this moment; it keeps the context, not the memory object.

        Raises
        ------
        ReleasedError

        Notes
        -----
        Does not block. OpenCL specification: ``clGetMemObjectInfo``.
        """
        _inflight.sweep()
        return query(self._share())

    def __repr__(self) -> str:
        entry = self._entry
        how = entry.how if entry.held else "collected"
        state = f", {self._gone[0]} at {self._gone[1]}" if self._gone else f", {how}"
        return f"<MemHandle {self._text()}{state}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: a cl_mem means nothing outside its process and has one owner; "
            "send the data (enqueue_copy to a NumPy array) and create a new buffer in the worker, or share it here "
            "with MemHandle.retain"
        )

    def __deepcopy__(self, memo: object = None) -> NoReturn:
        self.__reduce_ex__(2)

    __copy__ = __deepcopy__

    # -- for the other modules of this package ---------------------------------------------------------------

    def _share(self) -> Any:
        """Return a PyOpenCL object with a reference of its own, so that no release can pull it away."""
        with self._lock:
            int_ptr = self._entry.held
            if int_ptr is None:
                raise self._gone_error()
            return _opencl.wrap_mem_object(int_ptr, True)

    def _alive(self) -> _ledger.Entry:
        entry = self._entry
        if entry.held is None:
            raise self._gone_error()
        return entry

    def _text(self) -> str:
        entry = self._entry
        return describe(entry.label, entry.size, entry.site, entry.kind)

    def _gone_error(self) -> ReleasedError | ForkedProcessError:
        if self._gone is None:
            return ReleasedError(f"{self._text()} was collected together with what refers to it; it is released")
        how, site = self._gone
        if how == "inherited by fork":
            return ForkedProcessError(
                f"{self._text()} belongs to the parent process; OpenCL objects do not survive a fork: create it in "
                "the child, or start the child with the 'spawn' method"
            )
        return ReleasedError(f"{self._text()} was {how} at {site} and cannot be used any more")
