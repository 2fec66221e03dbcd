"""The rows of a timeline, for every way to show it: who did what from when to when, with nothing on top of another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ._spans import Snapshot, TimelineCommand, TimelineEvent, TimelineQueue

HOST, MAPS, OBJECTS = "host", "mapped for the host", "memory objects"
MOST_LANES = 32  # of one row; what comes on top is drawn as late as there is room

_CATEGORIES = {
    "kernel": "kernel",
    "unmap": "map",
    "map": "map",
    "migrat": "migrate",
    "fill": "fill",
    "copy": "copy",
    "marker": "order",
    "barrier": "order",
}

_LATER = {"map": (MAPS, "maps"), "object": (OBJECTS, "objects")}  # rows that come below those of the devices


class Bar(NamedTuple):
    """Something that lasts, in nanoseconds since the recording began."""

    begin: int
    end: int
    title: str
    category: str
    item: TimelineCommand | TimelineEvent


@dataclass(slots=True)
class Row:
    """Bars that do not overlap. A row that needs several lanes is several of these with one `name`."""

    group: str
    name: str
    lane: int
    bars: list[Bar] = field(default_factory=list)


def category(command: TimelineCommand) -> str:
    """Return what sort of command it is, also where others enqueued it."""
    words = command.name if command.kind == "foreign" else command.kind
    return next((found for word, found in _CATEGORIES.items() if word in words), "other")


def is_exact(command: TimelineCommand) -> bool:
    """Say whether begin and end are those of the device."""
    return command.started is not None and command.ended is not None


def rows(snapshot: Snapshot) -> list[Row]:
    """Return all rows: threads of the host, user events, the queues of each device, maps, memory objects."""
    commands, end = snapshot.commands, snapshot.end
    made: dict[tuple[str, str], list[Bar]] = {}

    def put(group: str, name: str, *bar: Bar) -> None:
        made.setdefault((group, name), []).extend(bar)

    for command in commands:
        call = Bar(command.called, command.returned, f"{command.kind} {command.name}".strip(), "call", command)
        put(HOST, f"thread {command.thread}", call)
    later: list[tuple[str, str, Bar]] = []
    for event in snapshot.events:
        begin = event.begin or 0
        bar = Bar(begin, max(begin, end if event.end is None else event.end), event.name, event.kind, event)
        if event.kind in _LATER:
            later.append((*_LATER[event.kind], bar))
        else:
            put(HOST, "user events" if event.kind == "user_event" else f"thread {event.thread}", bar)
    by_queue: dict[TimelineQueue, list[TimelineCommand]] = {}
    for command in commands:
        by_queue.setdefault(command.queue, []).append(command)
    for queue in sorted(by_queue, key=lambda one: (one.device_number, one.number)):
        group, name = f"device {queue.device_number}: {queue.device}", f"queue {queue.number}"
        flags = [
            word for word, told in (("out of order", queue.out_of_order), ("not profiled", not queue.profiled)) if told
        ]
        name += f" ({', '.join(flags)})" if flags else ""
        put(group, name, *[Bar(*snapshot.span(one), one.title, category(one), one) for one in by_queue[queue]])
    for group, name, bar in sorted(later, key=lambda one: (one[0], one[2].begin)):
        put(group, name, bar)
    return [row for (group, name), bars in made.items() for row in lanes(group, name, bars)]


def lanes(group: str, name: str, bars: Iterable[Bar], most: int = MOST_LANES) -> list[Row]:
    """Deal bars to as few rows as keep them apart; where those do not suffice, shorten the begin of what comes late."""
    found: list[Row] = []
    ends: list[int] = []
    for bar in sorted(bars, key=lambda one: (one.begin, one.end)):
        bar = bar._replace(end=max(bar.begin + 1, bar.end))
        lane = next((number for number, end in enumerate(ends) if end <= bar.begin), len(ends))
        if lane == most:
            lane = ends.index(min(ends))
            bar = bar._replace(begin=ends[lane], end=max(ends[lane] + 1, bar.end))
        if lane == len(found):
            found.append(Row(group, name, lane))
            ends.append(0)
        found[lane].bars.append(bar)
        ends[lane] = bar.end
    return found
