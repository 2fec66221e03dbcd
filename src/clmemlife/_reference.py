"""One reference to one memory object: taken once, given back once, on every path."""

from __future__ import annotations

import builtins
import weakref
from _thread import RLock
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import pyopencl as cl

from . import _callbacks, _hostmem, _inflight, _ledger, _opencl
from ._meminfo import MemInfo, measure, query
from ._owning import collected, take
from ._owning import give_back as _release
from ._site import caller_site, describe, unraisable, warn_at
from .exceptions import CleanupWarning, ForkedProcessError, ReleasedError
from .flags import MemFlags

Self = TypeVar("Self", bound="Reference")
_BUFFER = cl.mem_object_type.BUFFER
_NONE: frozenset[int] = frozenset()


class Reference:
    """What `MemHandle` is behind the ways to make one: the reference, its end, and what may be asked.

    The finalizer gets plain values, never the object. Whoever takes the address out (`_disarm`) has the reference
    and gives it back. Commands do not borrow the handle's reference: each gets a PyOpenCL object with one of its
    own (`_share`), so that a release in another thread cannot pull the memory away.
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
    _parent: Reference | None
    _type: int

    # -- ways to give it back --------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the reference back, once; a second call does nothing.

        Does not block, any thread. Queued commands keep what they use. A release that fails is reported as
        `CleanupWarning` with call, status and object. OpenCL specification: ``clReleaseMemObject``.
        """
        int_ptr = self._disarm("released")
        if int_ptr is not None:
            _ledger.remove(self._entry)
            problem = _release(int_ptr, self._entry)
            _inflight.sweep(64)
            if problem:
                warn_at(caller_site(), problem, CleanupWarning)

    def detach(self) -> cl.MemoryObject:
        """Give the reference away to a PyOpenCL object; the handle answers afterwards as a released one does.

        Returns
        -------
        pyopencl.MemoryObject
            Owns the reference from now on, and releases it when it is collected.

        Raises
        ------
        ReleasedError
            There is no reference to give any more.
        """
        with self._lock:
            if self._entry.held is None:
                raise self._gone_error()
            mem = _opencl.wrap_mem_object(self._entry.held, True)
            int_ptr = self._disarm("detached")
            self._entry.how = "detached"
        _ledger.remove(self._entry)
        problem = _release(int_ptr, self._entry) if int_ptr is not None else None
        if problem:
            warn_at(caller_site(), problem, CleanupWarning)
        return mem

    def __enter__(self: Self) -> Self:
        if self._entry.held is None:
            raise self._gone_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.release()
        except Warning as warning:
            if error is None:
                raise
            unraisable(warning)

    def on_destroy(self, fn: Callable[[_callbacks.ObjectInfo], object]) -> None:
        """Call ``fn(info)`` once, after the runtime has destroyed the memory object.

        Parameters
        ----------
        fn : callable
            Gets a small record (`label`, `size` in bytes, `site`), never the dead ``cl_mem``. It runs on a thread of
            its own, the last registered first; it may block, call OpenCL (what it enqueues is flushed), release
            handles and raise (reported as `CleanupWarning`).

        Raises
        ------
        TypeError
            `fn` cannot be called.
        ReleasedError
        CallError, OSError
            The driver refuses, or no pipe can be opened; nothing is registered.

        Notes
        -----
        `fn` is held until it has run; the object lives as long as anything holds a reference: other handles,
        sub-buffers, queued commands. Does not block. OpenCL specification: ``clSetMemObjectDestructorCallback``.
        """
        if not callable(fn):
            raise TypeError(f"on_destroy takes a callable, not {fn!r}")
        entry = self._alive()
        with self._lock:
            mem = self._share()
            if not entry.watches:
                info = _callbacks.ObjectInfo(entry.label, entry.size, entry.site)
                entry.watches.append(_callbacks.watch(mem.int_ptr, info))
            entry.watches[0].call(fn)

    # -- what it is ------------------------------------------------------------------------------------------

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
    def parent(self) -> Reference | None:
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

    def _disarm(self, how: str) -> int | None:
        """Mark as gone; return the address to the one caller who then has the reference."""
        with self._lock:
            entry = self._entry
            int_ptr, entry.held = entry.held, None
            if int_ptr is not None:
                self._gone = (how, caller_site())
                self._finalizer.detach()
            return int_ptr

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

    @classmethod
    def _take(
        cls: builtins.type[Self], mem: Any, how: str, label: str | None, site: str, parent: Reference | None,
        host: _hostmem.HostMemory | None = None, fresh: tuple[cl.Context, int, MemFlags] | None = None,
    ) -> Self:  # fmt: skip
        """Make the handle of `mem`, with a reference of its own: the last step, which alone can leave one behind.

        `fresh` is what is known of a new buffer: context, bytes and flags need not be asked for.
        """
        self = object.__new__(cls)
        int_ptr = mem.int_ptr
        if fresh is None:
            facts = measure(mem, label, site)
            self._type, self._context, self._flags = facts.type, facts.context, facts.flags
            self._misaligned = facts.misaligned
            kind, size, root, offset = facts.kind, facts.size, facts.root, facts.offset
        else:
            self._context, size, self._flags = fresh
            self._type, kind, offset, self._misaligned = _BUFFER, "buffer", 0, _NONE
            root = _ledger.Root(int_ptr, size, label, site)
        self._lock = RLock()
        self._gone = None
        self._parent = parent
        entry = _ledger.Entry(int_ptr, kind, size, how, label, site, root, offset, weakref.ref(self))
        self._entry = entry
        if fresh is None:
            same = _ledger.owner_of(int_ptr)
            if same is not None:
                entry.watches = same.watches
        if host is not None:
            entry.watches += host.lease(int_ptr, label, size, site, root)
        self._finalizer = weakref.finalize(self, collected, entry)
        self._finalizer.atexit = False
        try:
            take(entry)
        except BaseException:
            self._finalizer.detach()
            raise
        _ledger.add(entry)
        return self
