"""What plain PyOpenCL objects are alive at the end of a scope, where they were made, and why they are alive."""

from __future__ import annotations

import builtins
import gc
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl

from ..flags import MapFlags, MemFlags
from . import _faults, _mapped, _wrapped
from ._places import KEY, variables
from ._records import UNSEEN, LiveRecord
from ._why import Explainer

HOW = "pyopencl"
_OURS = __name__.partition(".")[0]
_COLLECTIONS = (list, dict, set, frozenset, deque)
_NO_WAY = (types.ModuleType, type, types.CodeType, types.FrameType)  # through these nothing is held


def leaked(first: int) -> tuple[LiveRecord, ...]:
    """Return a record for each object since number `first` that is alive.

    What a variable of a running function or of a module leads to is not among them. While the program runs, that is
    what the variable, or an attribute of its value, is; at the end of the program, also what is in its collections.
    """
    gc.collect()
    left = [one for one in _wrapped.alive.values() if one.number > first and one.usable]
    maps = [one for one in _mapped.everything.values() if one.number > first]
    if left or maps:
        at_end = not any(_outside(sys._getframe()))
        held = _held(at_end)
        left = [one for one in left if one.number not in held]
        maps = [one for one in maps if one.writes or not at_end or one.number not in held]
    objects = _wrapped.objects_of(left) if left else {}
    explainer = Explainer()
    explainer.skip(objects)
    records = []
    for one in left:
        mem = objects.pop(one.number, None)
        reasons = [] if mem is None else explainer.holders(mem) or [UNSEEN]
        name = type(mem).__name__
        records.append(_record(one, [f"its {name}: {text}" for text in reasons]))
        del mem
    return (*records, *map(_of_map, maps))


def report_collected() -> None:
    """Report the lines whose objects only the collector could free, where that was much memory."""
    sums: dict[str, tuple[int, int]] = {}
    for site, size in _wrapped.collected:
        count, total = sums.get(site, (0, 0))
        sums[site] = count + 1, total + size
    _wrapped.collected.clear()
    for site, (count, total) in sums.items():
        if total >= _MUCH:
            _faults.report(
                "left_to_collector",
                f"{count} objects of {total} bytes made here were in reference cycles: they held their memory until "
                "Python's garbage collector ran, which knows nothing of device memory",
                site, remedy="Call release() when an object is done with, or break the cycle.", quietly=True,
            )  # fmt: skip


_MUCH = 1 << 20


def _record(one: _wrapped.Wrapper, why: list[str]) -> LiveRecord:
    maps = len(_mapped.open_maps.get(one.root.number, ()))
    return LiveRecord(
        one.root.label, one.size, one.site, one.kind, HOW, 0.0, one.offset, maps, None, MemFlags(one.flags), "foreign",
        children=one.shared.parts, why=tuple(why),
    )  # fmt: skip


def _of_map(entry: _mapped.Map) -> LiveRecord:
    access = entry.access
    return LiveRecord(
        access.label, access.stop - access.start, entry.site, "map", HOW, 0.0, access.start, 1, None,
        MapFlags.WRITE if entry.writes else MapFlags.READ, "mapped",
    )  # fmt: skip


def _running() -> Iterator[types.FrameType]:
    """Yield the frames of all threads that run code of others."""
    for frame in list(sys._current_frames().values()):
        yield from _outside(frame)


def _outside(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] != _OURS:
            yield frame
        frame = frame.f_back


def _held(at_end: bool) -> set[int]:
    """Return the numbers of the objects and maps that variables lead to."""
    plain: list[Any] = []
    deep: list[Any] = []
    for name, module in list(sys.modules.items()):
        home = name.partition(".")[0]
        if home not in ("builtins", "sys", _OURS) and hasattr(module, "__dict__"):
            (deep if at_end or home == "pyopencl" else plain).extend(list(vars(module).values()))
    for frame in _running():
        plain.extend(variables(frame))
    found: set[int] = set()
    _search(deep, found, through_collections=True)
    _search(plain, found, through_collections=False)
    return found


def _search(todo: list[Any], found: set[int], *, through_collections: bool) -> None:
    never = {id(vars(builtins)), id(sys.modules), id(todo), id(_wrapped.alive)}
    seen: set[int] = set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or id(thing) in never or isinstance(thing, _NO_WAY):
            continue
        seen.add(id(thing))
        if isinstance(thing, (cl.MemoryObjectHolder, cl.MemoryMap)):
            tripwire = getattr(thing, KEY, None)
            if tripwire is not None:
                found.add(tripwire.about.number)
        elif isinstance(thing, np.ndarray):
            todo.append(np.ndarray.base.__get__(thing))
        elif through_collections:
            todo.extend(gc.get_referents(thing))
        elif not isinstance(thing, (*_COLLECTIONS, types.FunctionType, types.MethodType)):
            todo.extend(_attributes(thing))


def _attributes(thing: Any) -> list[Any]:
    if isinstance(thing, tuple):
        return list(thing)
    names = getattr(thing, "__dict__", None)
    return list(names.values()) if type(names) is dict else []
