"""The hooks of maps: ``enqueue_map_buffer``, ``enqueue_map_image`` and ``MemoryMap.release``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from ..._submit import describe_queue
from . import _faults, _mapped, _watched
from ._intercept import bind, checked_waits, published, rewritten, understood
from ._places import caller
from ._uses_of import Bound, Plan

_MAP_BUFFER = ["queue", "buf", "flags", "offset", "shape", "dtype", "order", "strides", "wait_for", "is_blocking"]
_MAP_IMAGE = [
    "queue",
    "img",
    "flags",
    "origin",
    "region",
    "shape",
    "dtype",
    "order",
    "strides",
    "wait_for",
    "is_blocking",
]


def maps(image: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that maps as `original` does."""
    names, describe = (_MAP_IMAGE, _mapped.describe_image) if image else (_MAP_BUFFER, _mapped.describe_buffer)

    @functools.wraps(original)
    def enqueue_map(*arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return original(*arguments, **keywords)
        bound = bind(names, arguments, keywords)
        queue = bound.get("queue")
        if not isinstance(queue, cl.CommandQueue):
            return original(*arguments, **keywords)
        entry = understood(describe, bound, site, "a map")
        if entry is None:
            return original(*arguments, **keywords)
        _mapped.check((entry.access,), "map", site)
        waits = checked_waits(bound.get("wait_for"), site)
        blocking = bool(bound.get("is_blocking", True))
        if not blocking:
            arguments, keywords = rewritten(names, arguments, keywords, queue, waits, "map")
        plan = Plan("map", "", (entry.access,), blocking, asked=entry.asked, wrappers=(entry.wrapper,))
        entry.key, entry.out_of_order = describe_queue(queue)
        result = published(queue, plan, waits, site, entry.number, original, arguments, keywords)
        array = result[0]
        if image:
            _check_pitch(entry, bound, array, result[2], result[3])
        _mapped.opened(entry, array, result[1], blocking)
        if not blocking or entry.pitch is not None:
            _watched.watch(entry, array)
        return result

    return enqueue_map


def _check_pitch(entry: _mapped.Map, bound: Bound, array: Any, row: int, slice_: int) -> None:
    """Take note of wrong strides between the rows of a region, or between its slices, in the order that fits best."""
    image = bound["img"]
    width, height, depth = (*bound["region"], 1, 1)[:3]
    line = width * image.element_size
    if image.type == cl.mem_object_type.IMAGE1D_ARRAY:
        row = slice_ or row
    if (
        row == line
        and (depth == 1 or slice_ == row * height)
        and (array.flags.c_contiguous or array.flags.f_contiguous)
    ):
        return
    axes = [one for one in zip(array.shape, array.strides, strict=True) if one[0] > 1]
    wrong = []
    for inner_first in (axes[::-1], axes):
        outer = _outside_lines(inner_first, array.itemsize, line)
        wanted = [one for one in ((height, row), (depth, slice_)) if one[0] > 1]
        if outer is None or [one[0] for one in outer] != [one[0] for one in wanted]:
            continue  # which is no such order
        pitches = [(is_, should) for (_, is_), (_, should) in zip(outer, wanted, strict=True) if is_ != should]
        if not pitches:
            return
        wrong.append(pitches[0])
    if wrong:
        entry.pitch = wrong[0]


def _outside_lines(axes: list[tuple[int, int]], nbytes: int, line: int) -> list[tuple[int, int]] | None:
    """Return the axes, the inner first, without those within a line of pixels; ``None`` where no axis ends with it."""
    for number, (length, _) in enumerate(axes):
        if nbytes >= line:
            axes = axes[number:]
            break
        nbytes *= length
    else:
        axes = []
    return axes if nbytes == line else None


_UNMAP = Plan("unmap")


def unmaps(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``MemoryMap.release`` with its end on the journal."""

    @functools.wraps(original)
    def release(self: Any, *arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        entry = _mapped.mapped_by(self)
        if site is None or entry is None or not _faults.active:
            return original(self, *arguments, **keywords)
        if entry.released is not None:
            _faults.report(
                "double_release", f"the map made at {entry.site} was released already at {entry.released}", site,
                entry.released, thing=entry.thing, remedy="Release a map once: by release, by with, or by del.",
            )  # fmt: skip
            return original(self, *arguments, **keywords)
        bound = bind(("queue", "wait_for"), arguments, keywords)
        queue = bound.get("queue")
        place = (entry.key, entry.out_of_order) if queue is None else describe_queue(queue)
        if entry.before is not None:
            _mapped.compare(entry, site)
        waits = checked_waits(bound.get("wait_for"), site)
        queue = entry.key if queue is None else queue
        arguments, keywords = rewritten(("queue", "wait_for"), arguments, keywords, queue, waits, "unmap")
        event = published(queue, _UNMAP, waits, site, entry.number, original, (self, *arguments), keywords, place)
        _mapped.closed(entry, site)
        _watched.watch_views(entry, sys._getframe(1))
        _watched.watch(entry)
        return event

    return release


def unmapped_by_end(entry: _mapped.Map, site: str) -> None:
    """A map went that nobody released."""
    _mapped.publish_end(entry, site)
