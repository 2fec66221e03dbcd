"""One reference to one memory object: taken once, also over from others, and given back once, on every path."""

from __future__ import annotations

import weakref
from _thread import RLock
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import pyopencl as cl

from . import _callbacks, _hostmem, _inflight, _ledger, _opencl
from ._arguments import address_of
from ._held import Held
from ._meminfo import measure
from ._owning import collected, take
from ._owning import give_back as _release
from ._site import caller_site, describe, unraisable, warn_at
from .exceptions import CallError, CleanupWarning, OwnershipError
from .flags import MemFlags

Self = TypeVar("Self", bound="Reference")
_BUFFER = cl.mem_object_type.BUFFER
_NONE: frozenset[int] = frozenset()


class Reference(Held):
    """The reference of a `MemHandle`: its begin, also where others have the object already, and its end.

    The finalizer gets plain values, never the object. Whoever takes the address out (`_disarm`) has the reference
    and gives it back.
    """

    __slots__ = ()

    # -- ways to share one that is there ---------------------------------------------------------------------

    @classmethod
    def retain(cls: type[Self], mem: Held | cl.MemoryObjectHolder | int, *, label: str | None = None) -> Self:
        """Share an object that somebody else owns: one reference more now, one less at release.

        Parameters
        ----------
        mem : MemHandle, PyOpenCL memory object, or int
            An ``int`` is the address of a live ``cl_mem`` (``int_ptr``).
        label : str, optional
            Name for messages and reports; by default that of `mem`, if it is a handle.

        Returns
        -------
        MemHandle
            Owns a reference of its own; the caller releases it. `mem` keeps its own.

        Raises
        ------
        TypeError, ValueError
            No memory object, no address.
        ReleasedError
            `mem` is a handle that was released.
        CallError, pyopencl.Error
            The driver does not know the address (where it looks).

        Notes
        -----
        Does not block. OpenCL specification: ``clRetainMemObject``.
        """
        site = caller_site()
        if isinstance(mem, Held):
            return cls._take(mem._share(), "retain", label if label is not None else mem.label, site, mem._parent)
        if isinstance(mem, cl.MemoryObjectHolder):
            return cls._take(mem, "retain", label, site, None)
        return cls._take(_opencl.wrap_mem_object(address_of(mem, "retain"), True), "retain", label, site, None)

    @classmethod
    def adopt(cls: type[Self], int_ptr: int, *, label: str | None = None) -> Self:
        """Take over one existing reference to a raw ``cl_mem`` that nobody else will release.

        Parameters
        ----------
        int_ptr : int
            Address of a live ``cl_mem`` from foreign code.
        label : str, optional
            Name for messages and reports.

        Returns
        -------
        MemHandle
            Owns the reference that was the caller's.

        Raises
        ------
        TypeError
            A PyOpenCL object or a handle: it releases itself, use `retain`.
        OwnershipError
            A live handle of this process has the object already: its reference is not there to be taken.

        Notes
        -----
        If this raises, the reference is still the caller's. OpenCL specification: "Retaining and Releasing Memory
        Objects".
        """
        if isinstance(int_ptr, (Held, cl.MemoryObjectHolder)):
            raise TypeError(
                f"adopt takes the address of a cl_mem that nobody else releases; a {type(int_ptr).__name__} releases "
                "itself: use MemHandle.retain"
            )
        address = address_of(int_ptr, "adopt")
        owner = _ledger.owner_of(address)
        if owner is not None:
            raise OwnershipError(
                f"{describe(owner.label, owner.size, owner.site, owner.kind)} already owns this memory object in this "
                "process; use MemHandle.retain to share it"
            )
        mem = _opencl.wrap_mem_object(address, True)
        handle = cls._take(mem, "adopt", label, caller_site(), None)
        try:
            _opencl.release_mem_object(address)  # the adopted reference: _take has added the handle's own
        except CallError:
            handle.release()
            raise
        return handle

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

    # -- for the other modules of this package ---------------------------------------------------------------

    def _disarm(self, how: str) -> int | None:
        """Mark as gone; return the address to the one caller who then has the reference."""
        with self._lock:
            entry = self._entry
            int_ptr = entry.held
            if int_ptr is not None:
                self._gone = (how, caller_site())
                entry.held = None
                self._finalizer.detach()
            return int_ptr

    @classmethod
    def _take(
        cls: type[Self], mem: Any, how: str, label: str | None, site: str, parent: Held | None,
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
