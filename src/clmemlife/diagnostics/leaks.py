"""Who is alive, and how much: readings of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import pyopencl as cl

from .. import _callbacks, _inflight, _ledger

__all__ = ["LiveRecord", "Statistics", "live", "statistics"]


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """One live handle, or one open map (`kind` ``"map"``), at one moment.

    ``how`` says how it came by its reference; ``size`` is bytes, ``age`` seconds; ``maps`` counts the open maps of the
    object; ``offset`` is bytes within the root.
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


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts and bytes of the objects that this library's handles and maps hold.

    ``*_bytes`` counts the memory of each object once, parts of it not at all; ``*_count`` counts handles.
    ``pending_bytes`` were released here and are still held by queued commands; ``leased_bytes`` are host memory
    kept for ``USE_HOST_PTR`` objects.
    """

    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int
    pending_bytes: int
    leased_bytes: int


def live() -> tuple[LiveRecord, ...]:
    """Return a record for each live handle, oldest first, and for each open map whose handles are gone."""
    now = monotonic()
    entries = _ledger.entries()
    records = [
        LiveRecord(
            one.label, one.size, one.site, one.kind, one.how, now - one.created, one.offset,
            sum(not entry.closed for entry in one.root.maps),
            None if one.int_ptr == one.root.int_ptr else one.root.label,
        )
        for one in entries
    ]  # fmt: skip
    held = {one.root.number for one in entries}
    records += [
        LiveRecord(
            entry.root.label,
            entry.stop - entry.start,
            entry.site,
            "map",
            "Mapping",
            0.0,
            entry.start,
            1,
            entry.root.label,
        )
        for entry in _ledger.open_maps()
        if entry.root.number not in held
    ]
    return tuple(records)


def statistics() -> Statistics:
    """Return the sums now. Does not block, any thread."""
    _callbacks.poll()
    _ledger.open_maps()  # removals that were queued are done by whoever comes next
    pending = {}
    for _, used, _ in _inflight.entries():
        for mem in used if isinstance(used, (list, tuple)) else (used,):
            if isinstance(mem, cl.MemoryObjectHolder):
                root = mem.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT) or mem
                if _ledger.find_root(root.int_ptr) is None:
                    pending[root.int_ptr] = root.size
    counters = _ledger.counters
    return Statistics(
        counters.current_bytes, counters.peak_bytes, counters.total_bytes,
        counters.current_count, counters.peak_count, counters.total_count,
        sum(pending.values()), _callbacks.leased_bytes(),
    )  # fmt: skip
