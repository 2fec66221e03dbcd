"""Maps of plain PyOpenCL: what is mapped now, what collides with it, and arrays that are used at the wrong time."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyopencl as cl

from ... import _journal, _ledger
from ..._journal import Access
from ...exceptions import MapConflictError
from . import _faults
from ._places import KEY, Nobody, Tripwire
from ._svm import Area
from ._uses_of import Bound, image_access
from ._wrapped import Wrapper, usable

READ, WRITE, INVALIDATE = (
    int(one) for one in (cl.map_flags.READ, cl.map_flags.WRITE, cl.map_flags.WRITE_INVALIDATE_REGION)
)
SMALL = 1 << 16  # bytes that are compared at the end of a map for reading


class Map:
    """One map, from its call to its end."""

    __slots__ = (
        "access", "array", "asked", "before", "event", "key", "number", "out_of_order", "pitch", "read_only",
        "released", "site", "waited", "wrapper", "writes",
    )  # fmt: skip

    def __init__(self, wrapper: Wrapper | Area, access: Access, flags: int, site: str) -> None:
        self.wrapper: Any = wrapper  # of what is mapped
        self.access, self.site = access, site
        self.writes = bool(flags & (WRITE | INVALIDATE))
        self.read_only = flags == READ
        self.number = next(_ledger._numbers)
        self.released: str | None = None
        self.waited = False
        self.asked = (0, 0)  # bytes of the object, as the call has them
        self.pitch: tuple[int, int] | None = None  # of its rows, as it is and as it should be
        self.before: bytes | None = None
        self.array: weakref.ref[Any] | None = None
        self.event: Any = None
        self.key: Any = None  # of its queue
        self.out_of_order = False

    @property
    def thing(self) -> str:
        """The object that is mapped, in words."""
        return str(self.wrapper)

    @property
    def end(self) -> str:
        """The call that ends it, in PyOpenCL's words."""
        return "release() of the SVMMap" if isinstance(self.wrapper, Area) else "array.base.release(queue)"

    @property
    def renewed(self) -> bool:
        """Whether the same array may be used again, since the shared virtual memory was mapped again."""
        return self.released is not None and isinstance(self.wrapper, Area) and self.access.obj in open_maps


open_maps: dict[int, tuple[Map, ...]] = {}
"""By the number of the root object; replaced, never changed."""
_lock = threading.RLock()  # a finalizer may end a map in the middle of all this
everything: dict[int, Map] = {}
"""Open maps, by their own number."""


def check_flags(flags: int, site: str, wrapper: Wrapper | Area) -> None:
    """Report map flags that mean nothing, or that contradict each other."""
    if not flags:
        wrong = "map flags of 0 ask for no access at all"
    elif flags & ~(READ | WRITE | INVALIDATE):
        wrong = f"map flags of {flags:#x} have bits that are no map flags"
    elif flags & INVALIDATE and flags & (READ | WRITE):
        wrong = "WRITE_INVALIDATE_REGION excludes READ and WRITE"
    else:
        return
    _faults.report(
        "wrong_map_flags", wrong, site, thing=str(wrapper),
        remedy="Use map_flags.READ, WRITE, READ | WRITE, or WRITE_INVALIDATE_REGION alone; mem_flags are others.",
    )  # fmt: skip


def describe_buffer(bound: Bound, site: str) -> Map:
    """Return the map that a call of ``enqueue_map_buffer`` is about to make."""
    wrapper = usable(bound["buf"], site, "enqueue_map_buffer")
    flags = int(bound["flags"])
    shape = bound["shape"]
    shape = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    nbytes = np.dtype(bound["dtype"]).itemsize
    for length in shape:
        nbytes *= operator.index(length)
    offset = operator.index(bound["offset"])
    check_flags(flags, site, wrapper)
    access = wrapper.access(
        reads=not flags & INVALIDATE, writes=bool(flags & ~READ & 7), start=offset, stop=offset + nbytes
    )
    entry = Map(wrapper, access, flags, site)
    entry.asked = offset, offset + nbytes
    return entry


def describe_image(bound: Bound, site: str) -> Map:
    """Return the map that a call of ``enqueue_map_image`` is about to make."""
    wrapper = usable(bound["img"], site, "enqueue_map_image")
    flags = int(bound["flags"])
    check_flags(flags, site, wrapper)
    access = image_access(
        bound["img"], wrapper, bound["origin"], bound["region"], reads=not flags & INVALIDATE,
        writes=bool(flags & ~READ & 7),
    )  # fmt: skip
    return Map(wrapper, access, flags, site)


def check(accesses: Iterable[Access], what: str, site: str) -> None:
    """Report accesses of a command that collide with an open map."""
    for access in accesses:
        for entry in open_maps.get(access.obj, ()):
            if entry.released is not None:
                continue
            if (access.writes or access.assumed) and access.overlaps(entry.access):
                entry.before = None  # what changes there need not be the host's doing
            if not (entry.writes or access.writes) or not access.overlaps(entry.access):
                continue
            mapping = what == "map"
            _faults.report(
                "map_conflict" if mapping else "command_on_mapped",
                f"{what} {'overlaps' if mapping else 'uses'} bytes [{access.start}, {access.stop}), mapped for "
                f"{'writing' if entry.writes else 'reading'} since {entry.site}",
                site,
                entry.site,
                thing=entry.thing,
                remedy=f"Call {entry.end} for the map made at {entry.site} before, and wait for it.",
                error=MapConflictError,
            )


def known(entry: Map, event: Any, blocking: bool) -> None:
    """Enter a map into the books."""
    entry.event, entry.waited = event, blocking
    with _lock:
        everything[entry.number] = entry
        open_maps[entry.access.obj] = (*open_maps.get(entry.access.obj, ()), entry)


def opened(entry: Map, array: Any, event: Any, blocking: bool) -> None:
    """Take note that the driver has made a map."""
    known(entry, event, blocking)
    memory_map = array.base
    setattr(memory_map, KEY, Tripwire(entry, _dropped))
    entry.array = weakref.ref(array)
    if entry.read_only and blocking and entry.pitch is None and array.nbytes <= SMALL:
        entry.before = array.tobytes()


def closed(entry: Map, site: str) -> None:
    """Take note that a map ends."""
    entry.released = site
    with _lock:
        everything.pop(entry.number, None)
        left = tuple([one for one in open_maps.get(entry.access.obj, ()) if one.released is None])
        if left:
            open_maps[entry.access.obj] = left
        else:
            open_maps.pop(entry.access.obj, None)


def compare(entry: Map, site: str) -> None:
    """Report what was written through a map for reading."""
    array = None if entry.array is None else entry.array()
    if entry.before is not None and array is not None and np.ndarray.tobytes(array) != entry.before:
        _faults.report(
            "wrong_map_flags",
            f"the host wrote into a map for reading only, made at {entry.site}: what it wrote may be lost",
            entry.site, site, thing=entry.thing, remedy="Map with map_flags.WRITE (mem_flags are other numbers).",
        )  # fmt: skip
    entry.before = None


on_drop: Callable[[Map, str], None] | None = None
"""Called when a map goes that nobody released: its end unmaps it, without an event."""


def _dropped(entry: Map, site: str) -> None:
    if entry.released is None:
        closed(entry, site)
        if on_drop is not None:
            on_drop(entry, site)


def forget_all() -> None:
    """Let go of everything, when the last scope has ended."""
    open_maps.clear()
    everything.clear()


def mapped_by(memory_map: Any) -> Map | None:
    """Return what is known of a ``MemoryMap``."""
    tripwire = getattr(memory_map, KEY, None)
    return tripwire.about if tripwire is not None and isinstance(tripwire.about, Map) else None


def publish_end(entry: Map, site: str) -> None:
    """Put the unmap that a dropped map does by itself on the journal."""
    if not _journal.listeners:
        return
    command = _journal.Command("unmap", entry.key, "", entry.out_of_order, site=site, mapping=entry.number)
    try:
        _journal.before(command)
    except Exception:  # nothing can be raised in a finalizer, and the checker has counted it
        return
    _journal.after(command, Nobody())
