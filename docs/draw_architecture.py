"""Draw ``explanation/architecture.svg`` from the table of layers on the page beside it.

Run it when a module was added: ``python docs/draw_architecture.py``. A test compares picture and table.
"""

from __future__ import annotations

import re
import textwrap
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "explanation"
ROW = re.compile(r"^\|([^|]*)\| ((?:`\w+`(?:, )?)+) \| .* \|$", re.MULTILINE)
WIDTH, LEFT, RIGHT, GAP, LINE = 920, 560, 280, 12, 15
INK, FAINT, CARD, EDGE = "#1f2933", "#5b6773", "#fbfaf7", "#c9c4b8"
FILL = {"words": "#eceae4", "readers": "#dcefe3", "the ways in": "#f7e3cf"}
PLAIN = "#dde8f3"
GLOSS = {
    "the ways in": "pytest plugin, command line",
    "readers": "leaks, hazards, where, when",
    "the end": "exit of the interpreter, fork",
    "many of those": "streams of chunks",
    "what is done": "kernels, copies, fills, maps, migrations",
    "one reference": "handles, host memory, images",
    "who is told": "destructor callbacks, leases of host memory",
    "who is alive": "the ledger: objects, handles, open maps",
    "driver": "the one seam to OpenCL, wait-lists, the journal",
    "words": "errors, flags, places in your program",
}
STYLE = f"""
text {{ font-family: system-ui, sans-serif; font-size: 13px; fill: {INK} }}
.name {{ font-weight: 600 }}
.module {{ font-family: ui-monospace, monospace; font-size: 11px; fill: {FAINT} }}
.note {{ font-size: 12px; fill: {FAINT} }}
.arrow {{ stroke: {FAINT}; stroke-width: 1.5; fill: none; marker-end: url(#head) }}
"""


def layers(page: str) -> dict[str, list[str]]:
    """Return the modules of each layer, from the bottom up."""
    found: dict[str, list[str]] = {}
    layer = ""
    for name, modules in ROW.findall(page.partition("## The layers")[2].partition("\n## ")[0]):
        layer = name.strip().partition(" (")[0] or layer
        found.setdefault(layer, []).extend(re.findall(r"\w+", modules))
    return found


def text(x: float, y: float, words: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{EDGE}"/>'


def band(x: float, y: float, width: float, name: str, modules: list[str]) -> tuple[list[str], float]:
    """Return a box with its modules, and its height."""
    lines = textwrap.wrap("  ".join(modules), int((width - 24) / 6.8))
    height = 30 + LINE * len(lines)
    parts = [box(x, y, width, height, FILL.get(name, PLAIN)), text(x + 12, y + 19, name, "name")]
    parts.append(text(x + 24 + 7.6 * len(name), y + 19, GLOSS.get(name, ""), "note"))
    parts += [text(x + 12, y + 36 + LINE * number, line, "module") for number, line in enumerate(lines)]
    return parts, height


def draw(page: str) -> str:
    """Return the picture."""
    known = layers(page)
    parts: list[str] = []
    x, y = 20.0, 20.0
    parts += [box(x, y, LEFT, 34, "#ffffff"), text(x + 12, y + 22, "your program", "name")]
    y += 34 + GAP
    places: dict[str, tuple[float, float]] = {}
    for name in reversed(known):
        if name != "readers":
            more, height = band(x, y, LEFT, name, known[name])
            parts += more
            places[name] = (y, height)
            y += height + GAP
    parts += [box(x, y, LEFT, 34, "#cfd4da"), text(x + 12, y + 22, "PyOpenCL, the ICD loader, the driver", "name")]
    bottom = y + 34
    right = x + LEFT + 40
    more, height = band(right, places["the ways in"][0], RIGHT, "readers", known["readers"])
    parts += more
    parts += [text(right, places["the ways in"][0] - 14, "the package diagnostics", "note")]
    journal = places["driver"][0] + places["driver"][1] / 2
    end = places["the ways in"][0] + height
    middle = right + RIGHT / 2
    parts += [f'<path class="arrow" d="M{x + LEFT:g} {journal:g} H{middle:g} V{end + 6:g}"/>']
    for number, words in enumerate(
        ("the journal: a record of each", "command, map, migration and wait,", "while somebody listens")
    ):
        parts.append(text(right, journal + 20 + LINE * number, words, "note"))
    parts.append(text(right, bottom - 12, "imports point down only", "note"))
    total = bottom + 20
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:g}" role="img" '
        'aria-label="The layers of clmemlife, from your program down to the driver">\n'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{FAINT}"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{total:g}" rx="10" fill="{CARD}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    picture = draw((FOLDER / "architecture.md").read_text(encoding="utf-8"))
    (FOLDER / "architecture.svg").write_text(picture, encoding="utf-8")
