"""The dependency graph of a timeline, in the DOT language of Graphviz."""

from __future__ import annotations

import itertools

from ._rows import category
from ._spans import Snapshot, TimelineCommand, TimelineQueue, short

_COLOURS = {
    "kernel": "#f5c98a",
    "copy": "#a9cfee",
    "fill": "#c9dff2",
    "map": "#b5dfc4",
    "migrate": "#e6bcd6",
    "order": "#dddddd",
    "other": "#eeeeee",
}


def dot(snapshot: Snapshot) -> str:
    """Return the graph: a box for each command, in its queue; arrows for wait-lists and, dashed, for the order of a
    queue.
    """
    lines = [
        "digraph timeline {",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=10];',
        '  edge [color="#555555"];',
    ]
    by_queue: dict[TimelineQueue, list[TimelineCommand]] = {}
    for command in snapshot.commands:
        by_queue.setdefault(command.queue, []).append(command)
    for queue, commands in sorted(by_queue.items(), key=lambda one: one[0].number):
        kind = "out of order" if queue.out_of_order else "in order"
        lines.append(f"  subgraph cluster_{queue.number} {{")
        lines.append(f"    label={quoted(f'queue {queue.number}, {kind}', queue.device)};")
        lines += [f"    {_node(one)}" for one in commands]
        lines.append("  }")
    nodes = {one.number for one in snapshot.commands}
    for event in snapshot.events:
        if event.kind == "user_event" and event.number is not None:
            state = "not set" if event.end is None else "set" if not event.status else f"set to {event.status}"
            lines.append(f"  n{event.number} [shape=diamond, style=solid, label={quoted(event.name, state)}];")
            nodes.add(event.number)
    edges: dict[tuple[int, int], str] = {}
    unmapped: dict[int, int] = {}
    for queue, commands in by_queue.items():
        if not queue.out_of_order:
            for first, second in itertools.pairwise(commands):
                edges[first.number, second.number] = ' [style=dashed, color="#aaaaaa"]'
    for command in snapshot.commands:
        if command.mapping is not None:
            if command.mapping in unmapped:
                edges[unmapped[command.mapping], command.number] = ' [style=dotted, label="mapped", fontsize=9]'
            unmapped[command.mapping] = command.number
        for number in command.waits:
            if number in nodes:
                edges[number, command.number] = ""
    lines += [f"  n{first} -> n{second}{style};" for (first, second), style in edges.items()]
    return "\n".join([*lines, "}", ""])


def _node(command: TimelineCommand) -> str:
    text = [command.title, short(command.site)]
    if command.unseen:
        text.append(f"also waits for {command.unseen} not seen")
    if command.failed:
        text.append(f"failed: {command.status}")
    colour = "#e58a80" if command.failed else _COLOURS[category(command)]
    return f"n{command.number} [label={quoted(*text)}, fillcolor={quoted(colour)}];"


def quoted(*lines: str) -> str:
    """Return lines of text as a string of DOT, whatever is in them."""
    safe = ["".join(c if c.isprintable() else " " for c in line) for line in lines]
    return '"' + r"\n".join(line.replace("\\", r"\\").replace('"', r"\"") for line in safe) + '"'
