"""A timeline as a trace for Perfetto and Chrome: the Trace Event Format, in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import count
from typing import Any

from ..._journal import Access
from ._rows import HOST, OBJECTS, Bar, is_exact, rows
from ._spans import Snapshot, TimelineCommand, TimelineEvent

Json = dict[str, Any]
_FIELDS: dict[type, list[str]] = {
    kind: [one.name for one in fields(kind) if one.name not in ("queue", "accesses")]
    for kind in (TimelineCommand, TimelineEvent)
}


def trace(snapshot: Snapshot) -> Json:
    """Return the whole document as plain values."""
    groups: dict[str, int] = {}
    meta: list[Json] = []
    slices: list[Json] = []
    places: dict[int, tuple[int, int, Bar]] = {}  # of commands and user events: where arrows begin and end
    for tid, row in enumerate(rows(snapshot), 1):
        if row.group not in groups:
            groups[row.group] = pid = len(groups) + 1
            meta += _named("process", row.group, pid, 0)
        pid = groups[row.group]
        meta += _named("thread", f"{row.name} [{row.lane + 1}]" if row.lane else row.name, pid, tid)
        for bar in row.bars:
            slices.append(_slice(bar, pid, tid))
            if bar.category == "user_event" or (row.group != HOST and isinstance(bar.item, TimelineCommand)):
                places[bar.item.number or 0] = pid, tid, bar
    counters = [
        {
            "ph": "C",
            "name": "live bytes",
            "pid": groups.get(OBJECTS, 0),
            "tid": 0,
            "ts": _us(time),
            "args": {"bytes": n},
        }
        for time, n in snapshot.live_bytes
    ]
    timed = sorted([*slices, *counters, *_arrows(snapshot, places)], key=lambda one: one["ts"])  # slices before arrows
    about = {
        "made_by": "clmemlife",
        "dropped": snapshot.dropped,
        "clock_error_ns": {
            f"queue {one.number}": one.clock_error for one in dict.fromkeys(c.queue for c in snapshot.commands)
        },
    }
    return {"traceEvents": [*meta, *timed], "displayTimeUnit": "ns", "otherData": about}


def _arrows(snapshot: Snapshot, places: dict[int, tuple[int, int, Bar]]) -> Iterator[Json]:
    """Yield two ends for each edge of a wait-list: within the slice of what is waited for, and within what waits."""
    numbers = count(1)
    for command in snapshot.commands:
        if command.number not in places:
            continue
        to_pid, to_tid, target = places[command.number]
        for number in command.waits:
            if number not in places:
                continue
            pid, tid, source = places[number]
            if source.begin >= target.end:
                continue  # the clocks of two devices are not known better than that
            leaves = max(source.begin, min(source.end - 1, target.begin))
            arrives = min(target.end - 1, max(target.begin, leaves))
            what = {"name": "wait_for", "cat": "wait_for", "id": next(numbers)}
            yield {"ph": "s", **what, "pid": pid, "tid": tid, "ts": _us(leaves)}
            yield {"ph": "f", "bp": "e", **what, "pid": to_pid, "tid": to_tid, "ts": _us(arrives)}


def _slice(bar: Bar, pid: int, tid: int) -> Json:
    item, title, cat = bar.item, bar.title, bar.category
    about: Json
    if cat == "call":
        about = {"number": item.number, "site": item.site}
    elif isinstance(item, TimelineEvent):
        about = _told(item)
        if item.end is None:
            about["end"] = "not while it was recorded"
    else:
        exact = is_exact(item)
        about = _told(item)
        about["queue"] = item.queue.number
        about["accesses"] = [_use(one) for one in item.accesses]
        about["times"] = "of the device" if exact else "from the call to the end as seen"
        title += " (failed)" if item.failed else " (not at its end)" if item.status is None else ""
        cat += "" if exact else ",not profiled"
    made = {"ph": "X", "name": title, "cat": cat, "pid": pid, "tid": tid, "args": about}
    return {**made, "ts": _us(bar.begin), "dur": _us(bar.end - bar.begin)}


def _told(item: TimelineCommand | TimelineEvent) -> Json:
    told = {name: getattr(item, name) for name in _FIELDS[type(item)]}
    return {name: value for name, value in told.items() if value is not None and value != () and value != ""}


def _use(access: Access) -> str:
    verb = "reads and writes" if access.reads and access.writes else "writes" if access.writes else "reads"
    return f"{verb} bytes [{access.start}, {access.stop}) of {access.label or f'object {access.obj}'}"


def _named(what: str, name: str, pid: int, tid: int) -> list[Json]:
    place = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**place, "name": f"{what}_name", "args": {"name": name}},
        {**place, "name": f"{what}_sort_index", "args": {"sort_index": tid or pid}},
    ]


def _us(ns: int) -> float:
    return ns / 1000
