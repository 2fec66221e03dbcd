"""The records of handles and maps: what the ledger and the driver say of them, and why they are alive."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import pyopencl as cl

from ... import _inflight, _ledger
from ..._site import describe
from ...exceptions import ReleasedError
from ...flags import MapFlags, MemFlags
from ._why import Explainer


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """One handle, or one open map (`kind` ``"map"``), at one moment.

    Attributes
    ----------
    label : str or None
    size : int
        Bytes.
    site : str
        ``file:line`` that made it.
    stack : tuple of str
        That line and its callers, as deep as `set_site_depth` says.
    kind : str
        ``"buffer"``, ``"sub-buffer"``, ``"image"`` or ``"map"``.
    how : str
        How it came by its reference: ``"create_buffer"``, ``"create_image"``, ``"sub_buffer"``, ``"retain"``,
        ``"adopt"``; ``"Mapping"``.
    age : float
        Seconds.
    offset : int
        Where it begins in its root, in bytes.
    maps : int
        Open maps of the root.
    children : int
        Live sub-buffers of it.
    commands : int
        Queued commands that use it.
    parent : str or None
        What a sub-buffer is part of.
    flags : MemFlags or MapFlags
    state : str
        ``"alive"``, ``"mapped"``, ``"in flight"``; in what `track` finds also ``"collected"`` (given back only by
        garbage collection), ``"released"`` (by its handle, while others keep the memory) and ``"foreign"`` (made by
        raw PyOpenCL code).
    others : int
        References that are not this library's, as the driver counts: PyOpenCL objects (`MemHandle.mem`), other
        libraries, and the driver's own for queued commands and open maps. For debugging only, stale at once.
    why : tuple of str
        What keeps it alive; only where it was asked for.
    """

    label: str | None
    size: int
    site: str
    kind: str
    how: str
    age: float
    offset: int
    maps: int
    parent: str | None
    flags: MemFlags | MapFlags
    state: str = "alive"
    others: int = 0
    children: int = 0
    commands: int = 0
    stack: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"map of {repr(self.label) if self.label else 'an unlabelled object'}" if self.kind == "map" else ""
        text = f"{what} ({self.size} bytes, mapped at {self.site})" if what else self._text()
        lines = [f"{text}: {_STATES[self.state]}", *(f"  because of {reason}" for reason in self.why)]
        lines += [f"  called from {line}" for line in self.stack[1:]]
        return "\n".join(lines)

    def _text(self) -> str:
        return describe(self.label, self.size, self.site, self.kind) + f" by {self.how}"


_STATES = {
    "alive": "not released",
    "mapped": "still mapped",
    "in flight": "not released, and queued commands use it",
    "collected": "never ended; garbage collection had to do it",
    "foreign": "not released",
    "released": "released, but its memory is alive: somebody else holds a reference",
}


def records_of(
    things: Iterable[_ledger.Entry | _ledger.MapEntry], *, state: str | None = None, why: bool = False
) -> tuple[LiveRecord, ...]:
    """Return the records of handles and maps; with `state` given they are gone, and the driver is not asked."""
    things = list(things)
    commands = Counter(mem.int_ptr for mem in used_by_commands())
    parts: dict[int, set[int]] = {}
    for entry in _ledger.entries():
        if entry.int_ptr != entry.root.int_ptr:
            parts.setdefault(entry.root.int_ptr, set()).add(entry.int_ptr)
    records = [
        _map_record(one, state) if isinstance(one, _ledger.MapEntry)
        else _record(one, state, commands[one.int_ptr], len(parts.get(one.int_ptr, ())))
        for one in things
    ]  # fmt: skip
    if why:
        explainer = Explainer()
        records = [
            replace(record, why=tuple(_reasons(record, one, explainer)))
            for record, one in zip(records, things, strict=True)
        ]
    return tuple(records)


def _record(one: _ledger.Entry, state: str | None, commands: int, children: int) -> LiveRecord:
    maps = sum(not entry.closed for entry in one.root.maps)
    others, flags = 0, MemFlags(0)
    handle = one.owner()
    if state is None and handle is not None:
        flags = handle._flags
        with suppress(ReleasedError):
            others = _others(handle, one, commands, children)
    if state is None:
        state = "mapped" if maps else "in flight" if commands else "alive"
    is_part = one.int_ptr != one.root.int_ptr
    return LiveRecord(
        one.label, one.size, str(one.site), one.kind, one.how, monotonic() - one.created, one.offset, maps,
        one.root.label if is_part else None, flags, state, others, children, commands, stack_of(one.site),
    )  # fmt: skip


def _map_record(one: _ledger.MapEntry, state: str | None) -> LiveRecord:
    mapping = one.owner()
    label = one.root.label if mapping is None else mapping._open.held.label
    flags = (MapFlags.WRITE if one.writes else MapFlags.READ) if mapping is None else mapping.flags
    return LiveRecord(
        label, one.stop - one.start, str(one.site), "map", "Mapping", monotonic() - one.created, one.start, 1,
        one.root.label, flags, state or "mapped", stack=stack_of(one.site),
    )  # fmt: skip


def stack_of(site: str) -> tuple[str, ...]:
    """Return the site and its callers, as far as they were kept."""
    stack: tuple[str, ...] = getattr(site, "stack", (str(site),))
    return stack


def used_by_commands() -> list[Any]:
    return [
        mem
        for _, used, _ in _inflight.entries()
        for mem in (used if isinstance(used, (list, tuple)) else (used,))
        if isinstance(mem, cl.MemoryObjectHolder)
    ]


_own: WeakKeyDictionary[cl.Context, tuple[int, int]] = WeakKeyDictionary()


def _drivers_own(context: cl.Context) -> tuple[int, int]:
    """Return how many references a driver counts of its own: for a fresh buffer, and for each part of it."""
    if context not in _own:
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 1)
        fresh = buffer.reference_count - 1
        part = buffer.get_sub_region(0, 1, 0)
        _own[context] = fresh, buffer.reference_count - 1 - fresh
        part.release()
    return _own[context]


def _others(handle: Any, entry: _ledger.Entry, commands: int, children: int) -> int:
    """Return how many references are neither ours nor what the driver has of its own in any case."""
    fresh, for_each_part = _drivers_own(handle._context)
    ours = commands + fresh + children * for_each_part
    for one in _ledger.entries():  # a handle holds its object, and the root of that
        ours += entry.int_ptr in (one.int_ptr, one.root.int_ptr)
    for map_entry in entry.root.maps:
        mapping = map_entry.owner()
        ours += mapping is not None and not map_entry.closed and mapping._open.held is entry
    count: int = handle._share().reference_count - 1
    return max(0, count - ours)


UNSEEN = "a name in a running function, or something that is not Python's"


def _reasons(record: LiveRecord, one: _ledger.Entry | _ledger.MapEntry, explainer: Explainer) -> list[str]:
    reasons = []
    owner = one.owner()
    if owner is not None:
        name = type(owner).__name__
        for text in explainer.holders(owner) or [UNSEEN]:
            reasons.append(f"its {name}: {text}")
    if isinstance(one, _ledger.MapEntry):
        return reasons
    if record.children:
        reasons.append(f"{record.children} sub-buffer(s) of it that are alive")
    for entry in one.root.maps:
        if not entry.closed:
            reasons.append(f"the open map made at {entry.site}")
    if record.commands:
        reasons.append(f"{record.commands} queued command(s) that use it")
    if record.others or record.state == "released":
        wrappers = _wrappers(one.int_ptr)
        count = len(wrappers)
        while wrappers:
            wrapper = wrappers.pop()
            for text in explainer.holders(wrapper) or [UNSEEN]:
                reasons.append(f"a PyOpenCL object: {text}")
        if not count and not record.maps and not record.commands:  # those have some of the driver's
            number = f"{record.others} reference(s)" if record.others else "a reference"
            reasons.append(f"{number} of others: another library, or the driver")
    return list(dict.fromkeys(reasons))


def _wrappers(int_ptr: int) -> list[Any]:
    """Return the PyOpenCL objects of a memory object."""
    return [other for other in wrappers() if _address_of(other) == int_ptr]


def wrappers() -> list[Any]:
    """Return all PyOpenCL memory objects that the garbage collector knows; also those that were released."""
    kinds = {cl.MemoryObjectHolder}
    for _ in range(4):
        kinds.update(*(kind.__subclasses__() for kind in list(kinds)))
    return [one for one in gc.get_objects() if type(one) in kinds]


def _address_of(mem: Any) -> int | None:
    try:
        return int(mem.int_ptr)
    except cl.Error:
        return None
