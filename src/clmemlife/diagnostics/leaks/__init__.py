"""Who is alive, how much, and why: readings of the ledger."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ... import _callbacks, _ledger
from ..._meminfo import whole_of
from ..._site import plural
from ._records import LiveRecord, records_of, used_by_commands

__all__ = ["LiveRecord", "Report", "Statistics", "live", "report", "statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts and bytes of the objects that this library's handles and maps hold.

    The bytes of an object count once, those of its parts not at all.

    Attributes
    ----------
    current_bytes : int
        Bytes alive now.
    peak_bytes : int
        Most bytes that were alive at one moment.
    total_bytes : int
        Bytes made in all.
    current_count, peak_count, total_count : int
        How many handles, in the same way.
    pending_bytes : int
        Bytes that were released here and are still held by queued commands.
    leased_bytes : int
        Bytes of host memory that are kept for ``USE_HOST_PTR`` objects.
    staging_bytes : int
        Bytes of pinned memory for transfers; see `staging`.
    """

    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int
    pending_bytes: int
    leased_bytes: int
    staging_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What was alive when `report` was called; ``str`` gives it as text.

    Attributes
    ----------
    statistics : Statistics
    records : tuple of LiveRecord
        Each with the reason why it is alive.
    """

    statistics: Statistics
    records: tuple[LiveRecord, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values.

        Returns
        -------
        dict
            Fit for JSON.
        """
        records = [{**asdict(one), "flags": str(one.flags)} for one in self.records]
        return {"statistics": asdict(self.statistics), "records": records}

    def __str__(self) -> str:
        now = self.statistics
        lines = [
            f"alive: {plural(now.current_count, 'handle')}, {now.current_bytes} bytes (at most {now.peak_count}, "
            f"{now.peak_bytes} bytes; {now.total_count}, {now.total_bytes} bytes in all)",
            f"released and still used by queued commands: {now.pending_bytes} bytes; host memory leased: "
            f"{now.leased_bytes} bytes",
        ]
        return "\n".join([*lines, *(str(one) for one in self.records)])


def live() -> tuple[LiveRecord, ...]:
    """Return a record for each live handle, and for each open map whose handles are gone.

    Returns
    -------
    tuple of LiveRecord
        Oldest first. Records keep nothing alive. The library's own pinned memory is not among them.

    Notes
    -----
    Does not block, any thread.
    """
    entries = _ledger.entries()
    held = {one.root.number for one in entries}
    maps = [one for one in _ledger.open_maps() if one.root.number not in held]
    return records_of([*entries, *maps])


def report() -> Report:
    """Return what is alive now, handles and open maps, and why.

    Returns
    -------
    Report
        Keeps nothing alive.

    Notes
    -----
    Any thread. Looks at all Python objects, which takes milliseconds; it waits for no command.
    """
    things: list[_ledger.Entry | _ledger.MapEntry] = [*_ledger.entries(), *_ledger.open_maps()]
    return Report(statistics(), records_of(things, why=True))


def statistics() -> Statistics:
    """Return the sums now.

    Returns
    -------
    Statistics

    Notes
    -----
    Does not block, any thread.
    """
    _callbacks.catch_up()
    _ledger.open_maps()  # removals that were queued are done by whoever comes next
    pending = {}
    for mem in used_by_commands():
        root = whole_of(mem) or mem
        if _ledger.find_root(root.int_ptr) is None:
            pending[root.int_ptr] = root.size
    counters = _ledger.counters
    return Statistics(
        counters.current_bytes, max(counters.peak_bytes, _overall.peak_bytes), counters.total_bytes,
        counters.current_count, max(counters.peak_count, _overall.peak_count), counters.total_count,
        sum(pending.values()), _callbacks.leased_bytes(), counters.staging_bytes,
    )  # fmt: skip


# -- peaks within scopes -----------------------------------------------------------------------------------------------


class Window:
    """The peaks of a stretch of time."""

    def __init__(self) -> None:
        self.peak_bytes = self.peak_count = 0


_overall = Window()
_windows: list[Window] = []


def fold_peaks(*, opened: Window | None = None, closed: Window | None = None) -> None:
    """Bring the peaks of all windows up to date, as one begins or ends: the counters only know the peak since then."""
    counters = _ledger.counters
    with _ledger._lock:
        for window in (_overall, *_windows):
            window.peak_bytes = max(window.peak_bytes, counters.peak_bytes)
            window.peak_count = max(window.peak_count, counters.peak_count)
        if opened is not None:
            opened.peak_bytes, opened.peak_count = counters.current_bytes, counters.current_count
            _windows.append(opened)
        elif closed is not None:
            _windows.remove(closed)
        counters.peak_bytes, counters.peak_count = counters.current_bytes, counters.current_count
        if not _windows:
            counters.peak_bytes, counters.peak_count = _overall.peak_bytes, _overall.peak_count
