"""What is known of PyOpenCL's memory objects while a sanitizer listens.

PyOpenCL's objects take no weak references, but attributes: each gets a `Tripwire`, which goes when its object goes,
just before the object gives its reference back. What is told about an object is kept apart from it, in a `Wrapper`,
so that nothing here keeps it alive or changes a reference count.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import pyopencl as cl

from ... import _callbacks, _foreign, _journal, _ledger, _opencl
from ..._meminfo import locate
from ...exceptions import ReleasedError
from . import _faults, _leases
from ._places import KEY, UNSEEN, Tripwire

_MOST = 10_000


class Shared:
    """One ``cl_mem``: how many of PyOpenCL's objects have a reference to it."""

    __slots__ = ("extra", "int_ptr", "kept", "owners", "parts", "pending", "root")

    def __init__(self, int_ptr: int, root: _ledger.Root) -> None:
        self.int_ptr, self.root = int_ptr, root
        self.owners = 0
        self.parts = 0  # live sub-buffers
        self.extra = 0  # owners that took a reference which was not theirs
        self.kept = False  # it may outlive PyOpenCL's objects, so the driver is asked to say when it ends
        self.pending: list[tuple[Any, str]] = []  # commands on host memory, as events and sites

    def keep(self) -> None:
        """Know the memory object also when PyOpenCL's objects of it have gone."""
        if not self.kept:
            self.kept = True
            _foreign.keep(self.root, alive=True)

    def enqueued(self, event: Any, site: str) -> None:
        """Take note of a command on host memory, and forget those that are complete."""
        with _lock:
            self.pending = [*(one for one in self.pending if _leases.running(one[0])), (event, site)]

    def watch(self) -> _callbacks.Watch | None:
        """Return the registration for its end, if it is kept."""
        return _foreign.watch_of(self.root) if self.kept else None


class Wrapper:
    """One PyOpenCL memory object: buffer, image, sub-buffer or block of a pool."""

    __slots__ = (
        "accesses", "alive", "context", "flags", "host", "int_ptr", "kind", "number", "offset", "parent", "pooled",
        "released", "released_by", "root", "shared", "site", "size",
    )  # fmt: skip

    def __init__(self, int_ptr: int, site: str, shared: Shared, offset: int, size: int, flags: int, kind: str) -> None:
        self.int_ptr, self.size, self.flags, self.kind = int_ptr, size, flags, kind
        self.shared, self.root = shared, shared.root
        self.site, self.offset = site, offset
        self.alive = True
        self.released: str | None = None  # where
        self.released_by = "release()"
        self.pooled = False
        self.context = 0  # its address, once it was asked for
        self.host: Any = None  # the host memory behind it, or a weak reference to that
        self.parent: Shared | None = None
        self.number = next(_ledger._numbers)
        self.accesses: dict[str, _journal.Access] = {}

    @property
    def gone(self) -> bool:
        """Whether no object of PyOpenCL has a reference to the memory."""
        return not self.usable and not self.shared.owners

    def enqueued(self, event: Any, site: str) -> None:
        """Take note of a command, where the object is on host memory."""
        if self.host is not None:
            self.shared.enqueued(event, site)

    @property
    def usable(self) -> bool:
        """Whether some object of PyOpenCL still has a reference to the memory."""
        return self.alive and self.released is None

    def access(self, *, reads: bool, writes: bool, start: int = 0, stop: int | None = None) -> _journal.Access:
        """Return the use of a range of bytes of this object."""
        stop = self.size if stop is None else min(stop, self.size)
        root = self.root
        return _journal.Access(
            root.number, self.offset + start, self.offset + stop, reads, writes, label=root.label, size=root.size,
            site=self.site, alias=root.alias,
        )  # fmt: skip

    def whole(self, mode: str) -> _journal.Access:
        """Return the use of all of it by a kernel: "read", "write", "update" or, taken as read, "unclear"."""
        known = self.accesses.get(mode)
        if known is None:
            known = self.access(reads=mode != "write", writes=mode in ("write", "update"))
            known = self.accesses[mode] = known._replace(assumed=mode == "unclear")
        return known

    def __str__(self) -> str:
        label = f"{self.root.label!r}, " if self.root.label else ""
        return f"{label}{self.kind} of {self.size} bytes, created at {self.site}"


# -- who is alive ------------------------------------------------------------------------------------------------------

alive: dict[int, Wrapper] = {}
"""By number, in the order in which they were seen."""
collected: list[tuple[str, int]] = []
"""Line and bytes of those that only the collector could free."""
pools: dict[int, set[str]] = {}
"""Of memory that a pool hands out, by the number of the root: the lines that enqueued what uses the present block."""
former: dict[str, set[str]] = {}
"""By the line that got a block of a pool: the lines that enqueued what used earlier blocks of the same memory."""
_shared: dict[int, Shared] = {}
_lock = threading.RLock()


def renew_lock() -> None:
    """Take a new lock, in a forked child."""
    global _lock
    _lock = threading.RLock()


def watch(mem: Any, site: str = UNSEEN) -> Wrapper:
    """Take note of an object; of one that has been noted before, return what is known."""
    known: Tripwire | None = getattr(mem, KEY, None)
    if known is not None:
        about: Wrapper = known.about
        return about
    root, offset = locate(mem, None, site)
    int_ptr = mem.int_ptr
    root = _foreign.known(root)
    kind = "image" if mem.type != cl.mem_object_type.BUFFER else "buffer" if int_ptr == root.int_ptr else "sub-buffer"
    wrapper = _entered(mem, int_ptr, root, site, offset, mem.size, mem.flags, kind)
    if not root.users and _foreign.watch_of(root) is not None:
        wrapper.shared.kept = True
    return wrapper


def watch_new(mem: Any, site: str, size: int, flags: int) -> Wrapper:
    """Take note of a buffer that has just been made: nothing of it is known, and little need be asked."""
    int_ptr = mem.int_ptr
    return _entered(mem, int_ptr, _ledger.Root(int_ptr, size, None, site), site, 0, size, flags, "buffer")


def watch_part(mem: Any, site: str, whole: Wrapper, origin: int, size: int) -> Wrapper:
    """Take note of a sub-buffer that has just been cut out of a buffer."""
    wrapper = _entered(mem, mem.int_ptr, whole.root, site, whole.offset + origin, size, whole.flags, "sub-buffer")
    wrapper.parent = whole.shared
    whole.shared.parts += 1
    return wrapper


def watch_block(mem: Any, site: str) -> Wrapper:
    """Take note of a block of a pool, whose memory has had other uses."""
    wrapper = watch(mem, site)
    wrapper.pooled = True
    number = wrapper.root.number
    former.setdefault(site, set()).update(pools.get(number, ()))
    pools[number] = set()
    return wrapper


def _entered(
    mem: Any, int_ptr: int, root: _ledger.Root, site: str, offset: int, size: int, flags: int, kind: str
) -> Wrapper:
    with _lock:
        shared = _shared.get(int_ptr)
        if shared is None or shared.root is not root:
            shared = _shared[int_ptr] = Shared(int_ptr, root)
        shared.owners += 1
    wrapper = Wrapper(int_ptr, site, shared, offset, size, flags, kind)
    alive[wrapper.number] = wrapper
    for faults in _faults.active:
        faults.objects += 1
    setattr(mem, KEY, Tripwire(wrapper, _gone))
    return wrapper


def root_at(int_ptr: int) -> _ledger.Root | None:
    """Return the root of the object at an address, if it is known here."""
    shared = _shared.get(int_ptr)
    return shared.root if shared is not None and shared.root.int_ptr == int_ptr else None


def usable(mem: Any, site: str, what: str) -> Wrapper:
    """Return what is known of an object that is about to be used; a released one is an error before it is a crash."""
    known: Tripwire | None = getattr(mem, KEY, None)
    wrapper: Wrapper = watch(mem, f"an unknown line before {site}") if known is None else known.about
    if wrapper.released is not None:
        report_released(wrapper, site, what)
    return wrapper


def report_released(wrapper: Wrapper, site: str, what: str) -> None:
    """Report the use of a released object, which most drivers answer with a crash."""
    _faults.report(
        "use_after_release",
        f"{what} uses a {wrapper.kind} that was released at {wrapper.released}",
        site,
        wrapper.released or "",
        thing=str(wrapper),
        remedy=f"Do not use it after release() at {wrapper.released}, or release it later.",
        error=ReleasedError,
        fatal=not wrapper.pooled,
    )


def end(wrapper: Wrapper, site: str, how: str | None) -> None:
    """Take note that an object gives its reference back, by a call (`how`) or since nobody has it any more."""
    alive.pop(wrapper.number, None)
    if wrapper.released is not None:
        return
    if how is None:
        wrapper.alive = False
        how = "end of the object"
    wrapper.released, wrapper.released_by = site, how
    shared = wrapper.shared
    with _lock:
        shared.owners -= 1
    if shared.extra and shared.owners:
        shared.extra -= 1  # the reference that this object gives back is another one's: replace it
        _opencl.retain_mem_object(wrapper.int_ptr)
    if wrapper.parent is not None:
        wrapper.parent.parts -= 1
        _forget(wrapper.parent)
    _forget(shared)
    if wrapper.host is not None:
        _leases.keep_host_memory(wrapper)
        _leases.look_at_leases(site, wrapper)


def _forget(shared: Shared) -> None:
    """Forget an object that nobody has any more; what a queued command still does with it needs no more order."""
    root = shared.root
    with _lock:
        if shared.owners or shared.parts:
            return
        if _shared.get(shared.int_ptr) is shared:
            del _shared[shared.int_ptr]
    if shared.int_ptr == root.int_ptr and not shared.kept and not root.users and _journal.listeners:
        _journal.host(_journal.Released(root.number))


def _gone(wrapper: Wrapper, site: str) -> None:
    if wrapper.released is None:
        if _collecting == threading.get_ident() and len(collected) < _MOST:
            collected.append((wrapper.site, wrapper.size))
        end(wrapper, site, None)
    else:
        wrapper.alive = False
        _leases.look_at_leases(site, wrapper)


_collecting = 0


def during_collection(phase: str, info: dict[str, int]) -> None:
    """Note that the collector runs (for ``gc.callbacks``)."""
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else 0


def forget_all() -> None:
    """Let go of everything, when the last scope has ended."""
    global former
    alive.clear()
    collected.clear()
    pools.clear()
    former = {}  # a scope that has ended still reads the old one
    _leases.leases.clear()
    _leases.memory.clear()
    _shared.clear()


def objects_of(wrappers: list[Wrapper]) -> dict[int, Any]:
    """Return the PyOpenCL objects that are watched by these, by number; a search of all objects."""
    wanted = {one.number for one in wrappers}
    found = {}
    for one in gc.get_objects():
        if isinstance(one, cl.MemoryObjectHolder):
            tripwire = getattr(one, KEY, None)
            if tripwire is not None and tripwire.about.number in wanted:
                found[tripwire.about.number] = one
    return found
