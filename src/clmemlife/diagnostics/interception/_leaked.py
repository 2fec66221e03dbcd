"""What is alive at the end of a scope, of plain PyOpenCL and of this library: where it was made, and why it lives."""

from __future__ import annotations

import builtins
import gc
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl

from ... import _ledger
from ..._site import plural
from ...flags import MapFlags, MemFlags
from ..leaks._records import UNSEEN, LiveRecord, records_of
from ..leaks._why import Explainer
from . import _faults, _mapped, _wrapped
from ._places import KEY, variables

HOW = "pyopencl"
_OURS = __name__.partition(".")[0]
_COLLECTIONS = (list, dict, set, frozenset, deque)
_WATCHED = (cl.MemoryObjectHolder, cl.MemoryMap, *((cl.SVMMap,) if hasattr(cl, "SVMMap") else ()))
_NO_WAY = (types.ModuleType, type, types.CodeType, types.FrameType)  # through these nothing is held


Thing = _ledger.Entry | _ledger.MapEntry


class Lost:
    """Handles and maps of this library that were collected before anybody ended them: an observer of the ledger."""

    def __init__(self) -> None:
        self.things: deque[Thing] = deque(maxlen=10_000)
        self._first = 0

    def start(self, first: int) -> None:
        """Take note of those made since number `first`."""
        self._first = first
        _ledger.observe(self)

    def stop(self) -> None:
        _ledger.unobserve(self)

    def _added(self, entry: _ledger.Entry) -> None:
        """Nothing is to be known of what is alive: the ledger has it."""

    def _lost(self, entry: Thing) -> None:
        if entry.number > self._first:
            self.things.append(entry)

    def _ended(self, root: _ledger.Root) -> None:
        """What ends by itself is no leak."""


def leaked(first: int, lost: Lost) -> tuple[LiveRecord, ...]:
    """Return a record for each object, handle and map since number `first` that is alive, and for what was `lost`.

    What a variable of a running function or of a module leads to is not among them. While the program runs, that is
    what the variable, or an attribute of its value, is; at the end of the program, also what is in its collections.
    A handle or a map of this library is to be ended by the program: at the end of that, no variable excuses it.
    """
    gc.collect()
    left = [one for one in _wrapped.alive.copy().values() if one.number > first and one.usable]
    maps = [one for one in _mapped.everything.copy().values() if one.number > first]
    everything: list[Thing] = [*_ledger.entries(), *_ledger.open_maps()]
    own = [one for one in everything if one.number > first]
    at_end = not any(_outside(sys._getframe()))
    if left or maps or (own and not at_end):
        held = _held(at_end, own)
        left = [one for one in left if one.number not in held]
        maps = [one for one in maps if one.writes or not at_end or one.number not in held]
        own = [one for one in own if at_end or one.number not in held]
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
    alive = [one for one in own if one.owner() is not None]
    gone = [one for one in own if one.owner() is None]  # at the end of the program finalizers do not run any more
    collected = {one.number: one for one in (*lost.things.copy(), *gone)}.values()
    ours = *records_of(alive, why=True), *records_of(collected, state="collected")
    return (*records, *map(_of_map, maps), *ours)


def report_collected(*, ours: bool = False) -> None:
    """Report the lines whose objects only the collector could free, where that was much memory.

    Where the collection was `ours`, that is said at the end of the program only: before, there could be others.
    """
    if ours and any(_outside(sys._getframe())):
        _wrapped.collected.clear()
    sums: dict[str, tuple[int, int]] = {}
    for site, size in _wrapped.collected:
        count, total = sums.get(site, (0, 0))
        sums[site] = count + 1, total + size
    _wrapped.collected.clear()
    for site, (count, total) in sums.items():
        if total >= _MUCH:
            _faults.report(
                "left_to_collector",
                f"{plural(count, 'object')} of {total} bytes made here, in reference cycles, held their memory until "
                + ("the program ended" if ours else "Python's garbage collector ran, which knows nothing of them"),
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


def _held(at_end: bool, own: Iterable[Thing]) -> set[int]:
    """Return the numbers of the objects and maps that variables lead to; `own` are this library's."""
    plain: list[Any] = []
    deep: list[Any] = []
    for name, module in list(sys.modules.items()):
        home = name.partition(".")[0]
        if home not in ("builtins", "sys", _OURS) and hasattr(module, "__dict__"):
            (deep if at_end or home == "pyopencl" else plain).extend(list(vars(module).values()))
    for frame in _running():
        plain.extend(variables(frame))
    numbers = {id(one.owner()): one.number for one in own}  # of what is alive: only `plain` may lead to it
    found: set[int] = set()
    _search(deep, found, numbers, through_collections=True)
    _search(plain, found, numbers, through_collections=False)
    return found


def _search(todo: list[Any], found: set[int], own: dict[int, int], *, through_collections: bool) -> None:
    never = {id(vars(builtins)), id(sys.modules), id(todo), id(_wrapped.alive)}
    seen: set[int] = set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or id(thing) in never or isinstance(thing, _NO_WAY):
            continue
        seen.add(id(thing))
        if id(thing) in own:
            found.add(own[id(thing)])
        if isinstance(thing, _WATCHED):
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
