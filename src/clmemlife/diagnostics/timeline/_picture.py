"""A timeline as a picture, by Matplotlib, which is loaded here and only when one is drawn."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ._rows import HOST, OBJECTS, Bar, Row, is_exact, rows
from ._spans import Snapshot, TimelineCommand

_COLOURS = {  # told apart by most eyes, on white and on black
    "kernel": "#e69f00",
    "copy": "#56b4e9",
    "fill": "#8fa8ff",
    "map": "#2bb673",
    "migrate": "#d583b3",
    "order": "#9a9a9a",
    "other": "#b9a944",
    "call": "#9a9a9a",
    "wait": "#cfc3ae",
    "user_event": "#b9a944",
    "failed": "#e2483d",
}
_WORDS = {"order": "marker", "call": "enqueueing call", "wait": "wait of the host", "user_event": "user event"}
_WIDTH, _ROW = 11.0, 0.26  # inches
_FONT = 7.0  # points
_FINEST = 1000  # bars of one row that can be told apart
_MOST_ARROWS = 60
_UNITS = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


class _Place(NamedTuple):
    row: Row
    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def draw(snapshot: Snapshot, path: str | os.PathLike[str] | None, axes: Any) -> Any:
    """Draw and return the figure; see `record_timeline.plot`."""
    matplotlib = _module("matplotlib")
    places, titles, height = _arranged([row for row in rows(snapshot) if row.group != OBJECTS])
    if axes is None:
        inches = _ROW * height + 0.5
        figure = _module("matplotlib.figure").Figure((_WIDTH, inches + 1.9), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.22)  # the font of an SVG's reader may be wider
        upper, lower = figure.subplots(2, sharex=True, height_ratios=[inches, 1.0])
    else:
        upper, lower = (*axes, None)[:2] if hasattr(axes, "__iter__") else (axes, None)
        figure = upper.figure
    begin, end = _extent(snapshot)
    unit, scale = next((one for one in _UNITS if end - begin >= one[1]), _UNITS[-1])
    painter = _Painter(upper, begin, end, scale)
    for place in places:
        painter.paint(place)
    painter.arrows(snapshot, places)
    for top, title in titles:
        upper.text(
            0, top, f" {title}", transform=upper.get_yaxis_transform(), va="center", size=_FONT + 1, weight="bold"
        )
    heads = [(place, sum(one.height for one in places if _same(one.row, place.row))) for place in places]
    heads = [(place, total) for place, total in heads if not place.row.lane]
    upper.set_yticks([one.top + total / 2 for one, total in heads], [one.row.name for one, _ in heads], size=_FONT + 1)
    upper.set_ylim(height, 0)
    upper.set_xlim((begin - (end - begin) * 0.01) / scale, (end + (end - begin) * 0.01) / scale)
    upper.tick_params(axis="y", length=0)
    upper.grid(axis="x", alpha=0.25, linewidth=0.5)
    upper.set_axisbelow(True)
    _frame(upper)
    painter.legend(figure if axes is None else upper)
    if lower is not None:
        _bytes(lower, snapshot, begin, end, scale)
    (upper if lower is None else lower).set_xlabel(f"{unit} since the recording began")
    if path is not None:
        is_svg = os.fspath(path).endswith(".svg")
        with matplotlib.rc_context({"svg.hashsalt": "clmemlife", "svg.fonttype": "none"}):
            figure.savefig(path, metadata={"Date": None} if is_svg else None)
    return figure


class _Painter:
    """Bars and arrows on one pair of axes."""

    def __init__(self, axes: Any, begin: int, end: int, scale: int) -> None:
        self.axes, self.begin, self.end, self.scale = axes, begin, end, scale
        self.used: dict[str, None] = {}
        self.to_rgba = _module("matplotlib.colors").to_rgba
        inches = axes.get_position().width * axes.figure.get_figwidth()
        self.points = inches * 72 / max(1, end - begin)  # for each nanosecond

    def paint(self, place: _Place) -> None:
        """Draw the bars of a row."""
        bars = list(self._merged(place.row.bars))
        if not bars:
            return
        thin = 0.25 * place.height if bars[0].category == "call" else 0.1 * place.height
        colours = []
        for bar in bars:
            kind = "failed" if getattr(bar.item, "failed", False) and bar.category != "call" else bar.category
            self.used[kind] = None
            vague = isinstance(bar.item, TimelineCommand) and bar.category != "call" and not is_exact(bar.item)
            colours.append(self.to_rgba(_COLOURS[kind], 0.55 if vague else 1.0))
        least = (self.end - self.begin) / _FINEST * 1.5  # to be seen at all
        spans = [(bar.begin / self.scale, max(least, bar.end - bar.begin) / self.scale) for bar in bars]
        self.axes.broken_barh(
            spans, (place.top + thin, place.height - 2 * thin), facecolors=colours,
            edgecolors=self.axes.get_facecolor(), linewidth=0.3,
        )  # fmt: skip
        if place.height >= 0.5:
            for bar in bars:
                self._write(bar, place)

    def _write(self, bar: Bar, place: _Place) -> None:
        room = int((min(bar.end, self.end) - max(bar.begin, self.begin)) * self.points / (0.6 * _FONT) - 0.5)
        if bar.category == "call" or room < min(len(bar.title), 5):
            return
        text = bar.title if len(bar.title) <= room else bar.title[: room - 1] + "…"
        middle = (max(bar.begin, self.begin) + min(bar.end, self.end)) / 2 / self.scale
        self.axes.text(
            middle, place.middle, text, ha="center", va="center_baseline", size=_FONT, color="black", clip_on=True
        )

    def _merged(self, bars: Iterable[Bar]) -> Iterator[Bar]:
        """Join bars of one sort that are too close together to be told apart."""
        finest = (self.end - self.begin) // _FINEST
        last: Bar | None = None
        for bar in bars:
            if bar.end < self.begin or bar.begin > self.end:
                continue
            if last is not None:
                small = bar.end - bar.begin <= finest and bar.begin - last.end <= finest
                if small and bar.category == last.category and _failed(bar) == _failed(last):
                    last = last._replace(end=bar.end, title="")
                    continue
                yield last
            last = bar
        if last is not None:
            yield last

    def arrows(self, snapshot: Snapshot, places: list[_Place]) -> None:
        """Draw what waited for what in another row, where that is not too much to be seen and the times are known."""
        where = {
            bar.item.number: (place, bar) for place in places for bar in place.row.bars
            if bar.category == "user_event"
            or (place.row.group != HOST and isinstance(bar.item, TimelineCommand) and is_exact(bar.item))
        }  # fmt: skip
        edges = [
            (where[number], where[command.number])
            for command in snapshot.commands for number in command.waits if number in where and command.number in where
        ]  # fmt: skip
        edges = [one for one in edges if not _same(one[0][0].row, one[1][0].row)]
        if len(edges) > _MOST_ARROWS:
            return
        for (place, bar), (to_place, to_bar) in edges:
            ends = (bar.end / self.scale, place.middle), (to_bar.begin / self.scale, to_place.middle)
            self.axes.annotate(
                "", ends[1], ends[0], annotation_clip=True,
                arrowprops={"arrowstyle": "->", "linewidth": 0.6, "alpha": 0.6, "shrinkA": 0, "shrinkB": 0,
                            "color": _module("matplotlib").rcParams["text.color"], "mutation_scale": 7},
                zorder=1.5,
            )  # fmt: skip

    def legend(self, target: Any) -> None:
        """Say what the colours mean, above all."""
        patch = _module("matplotlib.patches").Patch
        patches = [patch(color=_COLOURS[one], label=_WORDS.get(one, one)) for one in _COLOURS if one in self.used]
        where = (
            {"loc": "outside upper left"}
            if target is not self.axes
            else {"loc": "lower left", "bbox_to_anchor": (0, 1)}
        )
        if patches:
            target.legend(
                handles=patches, ncols=len(patches), frameon=False, fontsize=_FONT + 0.5, handlelength=1, **where
            )


def _arranged(shown: list[Row]) -> tuple[list[_Place], list[tuple[float, str]], float]:
    """Return where each row is, and where the names of the groups are, from the top down; and the whole height."""
    places: list[_Place] = []
    titles: list[tuple[float, str]] = []
    top, group = 0.0, ""
    crowded = {(row.group, row.name) for row in shown if row.lane > 1}
    for row in shown:
        if row.group != group:
            group = row.group
            titles.append((top + 0.6, group))
            top += 1.05
        height = 0.5 if (row.group, row.name) in crowded else 0.8 if row.lane else 1.0
        places.append(_Place(row, top, height))
        top += height
    return places, titles, max(top, 1.0) + 0.2


def _same(one: Row, other: Row) -> bool:
    return (one.group, one.name) == (other.group, other.name)


def _failed(bar: Bar) -> bool:
    return isinstance(bar.item, TimelineCommand) and bar.item.failed


def _extent(snapshot: Snapshot) -> tuple[int, int]:
    """Return from when to when there is something to be seen."""
    begins = [one.called for one in snapshot.commands]
    ends = [max(one.returned, snapshot.span(one)[1]) for one in snapshot.commands]
    ends += [one.end for one in snapshot.events if one.end is not None and one.kind != "object"]
    begin = min(begins, default=0)
    return begin, max([*ends, begin + 1000])


def _bytes(axes: Any, snapshot: Snapshot, begin: int, end: int, scale: int) -> None:
    """Draw the live bytes."""
    before = [one for one in snapshot.live_bytes if one[0] <= begin]
    points = [(begin, before[-1][1] if before else 0), *[one for one in snapshot.live_bytes if begin < one[0] <= end]]
    points.append((end, points[-1][1]))
    unit, size = next((one for one in _SIZES if max(n for _, n in points) >= one[1]), _SIZES[-1])
    x, y = [time / scale for time, _ in points], [n / size for _, n in points]
    axes.fill_between(x, y, step="post", alpha=0.35, color=_COLOURS["copy"], linewidth=0)
    axes.step(x, y, where="post", color=_COLOURS["copy"], linewidth=1.2)
    axes.set_ylim(0, max(y) * 1.15 or 1)
    axes.set_ylabel(f"live {unit}" if unit != "bytes" else "live bytes", size=_FONT + 1)
    axes.tick_params(labelsize=_FONT + 1)
    axes.grid(alpha=0.25, linewidth=0.5)
    _frame(axes)


def _frame(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "plot needs Matplotlib: python -m pip install 'clmemlife[plot]'", name="matplotlib"
        ) from error
