"""The hooks of shared virtual memory: its beginning, its maps, which show the program's own array, and its end."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from ... import _journal
from ..._submit import describe_queue
from . import _faults, _mapped, _svm, _watched
from ._intercept import bind, checked_waits, published, rewritten, understood
from ._mapped import INVALIDATE, READ, Map
from ._places import KEY, Nobody, Tripwire, caller, outer_frame
from ._uses_of import Bound, Plan

Function = Callable[..., Any]
_MAP = ("queue", "is_blocking", "flags", "svm", "wait_for", "size")
_UNMAP = ("queue", "svm", "wait_for")
_HOST = "the host"  # a queue without an order, for what the host does at once
_unclaimed: dict[int, Map] = {}
"""Maps whose array nobody has told yet, by the address of their event's object."""


def allocates(original: Function) -> Function:
    """Return ``SVMAllocation.__init__`` with a note of the line."""

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
        original(self, *arguments, **keywords)
        site = caller(sys._getframe(1))
        if site is not None and _faults.active:
            flags = keywords["flags"] if "flags" in keywords else arguments[3]
            _svm.allocated(self, site, int(flags))

    return __init__


# -- maps --------------------------------------------------------------------------------------------------------------


def maps(original: Function) -> Function:
    """Return ``_enqueue_svm_map``, which all maps of shared virtual memory lead to."""

    @functools.wraps(original)
    def enqueue_map(*arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        bound = bind(_MAP, arguments, keywords)
        queue = bound.get("queue")
        if site is None or not _faults.active or not isinstance(queue, cl.CommandQueue):
            return original(*arguments, **keywords)
        entry = understood(_described, bound, site, "a map of shared virtual memory")
        waits = checked_waits(bound.get("wait_for"), site)
        blocking = bool(bound.get("is_blocking", True))
        if not blocking:
            arguments, keywords = rewritten(_MAP, arguments, keywords, queue, waits, "map")
        if entry is None:
            return published(
                queue, Plan("foreign", "map", (), blocking), waits, site, None, original, arguments, keywords
            )
        area: _svm.Area = entry.wrapper
        plan = Plan("map", "", (entry.access,), blocking, wrappers=(area,))
        entry.key, entry.out_of_order = describe_queue(queue)
        event = published(queue, plan, waits, site, entry.number, original, arguments, keywords)
        for other in _mapped.open_maps.get(entry.access.obj, ()) if entry.writes else ():
            other.before = None  # what changes there need not come of that map
        _mapped.known(entry, event, blocking)
        _unclaimed[id(event)] = entry
        return event

    return enqueue_map


def _described(bound: Bound, site: str) -> Map | None:
    """Return the map that is about to be made, ``None`` where the host may need none."""
    part = _svm.range_of(bound["svm"], site)
    if part is None or not part.area.coarse:
        return None
    flags = int(bound["flags"])
    _mapped.check_flags(flags, site, part.area)
    access = part.access("read", site, bound.get("size"))
    access = access._replace(reads=not flags & INVALIDATE, writes=bool(flags & ~READ & 7))
    return Map(part.area, access, flags, site)


def gives_map(original: Function) -> Function:
    """Return ``map`` of shared virtual memory; what it gives has the array."""

    @functools.wraps(original)
    def map(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        entry = _unclaimed.pop(id(result.event), None)
        if entry is not None:
            setattr(result, KEY, Tripwire(entry, _goes))
            _show(entry, result.array)
        return result

    return map


def _goes(entry: Map, site: str) -> None:
    """A map's object that goes has released it before."""


def _show(entry: Map, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        return
    entry.array = weakref.ref(array)
    if not entry.waited:
        _watched.watch(entry, array)
        return
    _watched.release(array)
    if entry.read_only and array.nbytes <= _mapped.SMALL:
        entry.before = array.tobytes()


def unmaps(original: Function) -> Function:
    """Return ``_enqueue_svm_unmap``, which all ends of those maps lead to."""

    @functools.wraps(original)
    def enqueue_unmap(*arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        bound = bind(_UNMAP, arguments, keywords)
        queue, pointer = bound.get("queue"), bound.get("svm")
        if site is None or not _faults.active or not isinstance(queue, cl.CommandQueue):
            return original(*arguments, **keywords)
        entry = _map_at(getattr(pointer, "svm_ptr", None))
        waits = checked_waits(bound.get("wait_for"), site)
        arguments, keywords = rewritten(_UNMAP, arguments, keywords, queue, waits, "unmap")
        if entry is None:
            return published(queue, Plan("foreign", "unmap"), waits, site, None, original, arguments, keywords)
        _mapped.compare(entry, site)
        event = published(queue, Plan("unmap"), waits, site, entry.number, original, arguments, keywords)
        entry.wrapper.enqueued(event, site, unmap=True)
        _mapped.closed(entry, site)
        if entry.access.stop - entry.access.start == entry.wrapper.size:
            _watched.watch_views(entry, outer_frame(sys._getframe(1)))
        if not _mapped.open_maps.get(entry.access.obj):
            _watched.watch(entry)
        return event

    return enqueue_unmap


def _map_at(address: int | None) -> Map | None:
    """Return the latest open map that begins at an address."""
    for entry in reversed(_mapped.everything.copy().values()):
        area = entry.wrapper
        if isinstance(area, _svm.Area) and area.start + entry.access.start == address and area.freed is None:
            return entry
    return None


def ends_map(original: Function) -> Function:
    """Return ``SVMMap.release``."""

    @functools.wraps(original)
    def release(self: Any, *arguments: Any, **keywords: Any) -> Any:
        entry, site = _mapped.mapped_by(self), caller(sys._getframe(1))
        if self.svm is None and entry is not None and entry.released is not None and site is not None:
            _faults.report(
                "double_release", f"the map made at {entry.site} was released already at {entry.released}", site,
                entry.released, thing=entry.thing, remedy="Release a map once: by release, by with, or by del.",
            )  # fmt: skip
        return original(self, *arguments, **keywords)

    return release


def guarded_buf(original: property) -> property:
    """Return ``buf``, which may not be asked of memory that was freed."""
    get = original.fget

    def buf(self: Any) -> Any:
        tripwire = getattr(self, KEY, None)
        if tripwire is not None and tripwire.about.freed is not None:
            site = caller(sys._getframe(1))
            if site is not None:
                tripwire.about.check(site)
        return get(self)  # type: ignore[misc]

    return property(buf, original.fset, original.fdel, original.__doc__)


# -- the end -----------------------------------------------------------------------------------------------------------


def rebinds(original: Function) -> Function:
    """Return ``bind_to_queue`` or ``unbind_from_queue``, which order queues by commands that nobody sees."""

    @functools.wraps(original)
    def bind_to(self: Any, *arguments: Any, **keywords: Any) -> Any:
        area = _area_of(self)
        if area is not None:
            area.rebound = True
        return original(self, *arguments, **keywords)

    return bind_to


def _area_of(memory: Any) -> _svm.Area | None:
    tripwire = getattr(memory, KEY, None)
    return tripwire.about if tripwire is not None and isinstance(tripwire.about, _svm.Area) else None


def frees(original: Function) -> Function:
    """Return ``release`` of shared virtual memory: at once, or as a command of the queue that it is bound to."""

    @functools.wraps(original)
    def release(self: Any) -> Any:
        site, area = caller(sys._getframe(1)), _area_of(self)
        if site is None or area is None or not _faults.active:
            return original(self)
        _check_end(area, site)
        queue = self._queue
        return _ended(area, queue, (), site, original, (self,), {})

    return release


def frees_later(original: Function) -> Function:
    """Return ``enqueue_release`` of shared virtual memory."""

    @functools.wraps(original)
    def enqueue_release(self: Any, *arguments: Any, **keywords: Any) -> Any:
        site, area = caller(sys._getframe(1)), _area_of(self)
        if site is None or area is None or not _faults.active:
            return original(self, *arguments, **keywords)
        _check_end(area, site)
        bound = bind(("queue", "wait_for"), arguments, keywords)
        queue = self._queue if bound.get("queue") is None else bound["queue"]
        waits = checked_waits(bound.get("wait_for"), site)
        return _ended(area, queue, waits, site, original, (self, *arguments), keywords)

    return enqueue_release


def _check_end(area: _svm.Area, site: str) -> None:
    if area.freed is not None:
        _faults.report(
            "double_release", f"shared virtual memory is freed that was freed at {area.freed} already", site,
            area.freed, thing=str(area), remedy="Call release() once, or leave it to del.",
        )  # fmt: skip
        return
    for entry in _mapped.open_maps.get(area.root.number, ()):
        if entry.released is None:
            _faults.report(
                "freed_in_use", f"shared virtual memory is freed while it is mapped since {entry.site}", site,
                entry.site, thing=str(area), remedy=f"Release the map made at {entry.site} before.",
            )  # fmt: skip


def _ended(
    area: _svm.Area, queue: Any, waits: Any, site: str, original: Function, arguments: Any, keywords: Any
) -> Any:
    """Free the memory, where nothing speaks against it."""
    if area.freed is not None:
        return original(*arguments, **keywords)
    known = () if area.rebound else (area.whole(),)
    user = area.running()
    if queue is None:  # at once
        if user is not None:
            _svm.report_in_use(area, user.site, site, "", fatal=True)
        record = None
        if _journal.listeners and known:
            record = _journal.Command("svm_free", _HOST, "", True, known, site=site, blocking=True, raw=True)
            _journal.before(record)
        result = original(*arguments, **keywords)
        if record is not None:
            _journal.after(record, Nobody())
    else:
        result = published(queue, Plan("svm_free", "", known), waits, site, None, original, arguments, keywords)
    for entry in _mapped.open_maps.get(area.root.number, ()):
        _mapped.closed(entry, site)
        _watched.watch_views(entry, sys._getframe(2))
        _watched.watch(entry)
    _svm.freed(area, site)
    area.memory = None
    return result
