"""Sphinx: the pages are plain Markdown, the API comes from docstrings. Nothing is fetched from a network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

import clmemlife

project = "clmemlife"
author = copyright = "the clmemlife project"
release = version = clmemlife.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"clmemlife {release}"

myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # docstrings say what a parameter is
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "obj"  # docstrings name things in single backticks
add_module_names = False


def literal(app: Any, env: Any, node: Any, contnode: nodes.Node) -> nodes.Node | None:
    """Show what has no entry (a parameter, a type in words, a field of a record, a class of PyOpenCL) as it stands."""
    name, _, member = node["reftarget"].removeprefix("clmemlife.").partition(".")
    wrong = name in clmemlife.__all__ and not (member and hasattr(getattr(clmemlife, name), member))
    return None if node.get("refdomain") != "py" or wrong else contnode


def single_fields(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Give each of several attributes that are described together (``a, b : int``) a description of its own."""
    text = "\n".join(lines)
    head, heading, fields = text.partition("Attributes\n----------\n")
    if heading:
        several = re.compile(r"^(\w+(?:, \w+)+)( : .*)?\n((?:    .*\n|\n)*)", re.MULTILINE)
        fields = several.sub(
            lambda found: "".join(f"{one}{found[2] or ''}\n{found[3]}" for one in found[1].split(", ")), fields + "\n"
        )
        lines[:] = (head + heading + fields).split("\n")


def setup(app: Any) -> dict[str, Any]:
    """Register what is above."""
    app.connect("missing-reference", literal)
    app.connect("autodoc-process-docstring", single_fields, priority=400)  # before Napoleon
    return {"parallel_read_safe": True}
