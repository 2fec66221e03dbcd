"""The layers, read from the syntax trees: imports point down only, and what is special stands in one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clmemlife

PACKAGE = Path(clmemlife.__file__).parent

LAYERS: list[tuple[str, ...]] = [
    ("exceptions", "_site", "_settings", "flags", "_journal", "_limits"),
    ("_opencl", "_entries", "_arguments", "_unwritten"),
    ("_runner", "_inflight", "_ledger", "_images"),
    ("_notices", "_waitlist", "_room", "_layout"),
    ("_callbacks",),
    ("_hostmem", "_meminfo", "_owning", "_foreign"),
    ("_held",),
    ("_reference",),
    ("_handle",),
    ("_access", "_kernel_types"),
    ("_submit", "_kernel_args"),
    ("_block",),
    ("_staging",),
    ("_copy", "_commands", "_fill", "_openmap", "_pieces", "_slots"),
    ("_across",),
    ("_mapping", "_migration"),
    ("_chunks",),
    ("_streaming",),
    (
        "diagnostics",
        "diagnostics._scope",
        "diagnostics.hazards._clocks",
        "diagnostics.leaks._why",
        "diagnostics.timeline._spans",
        "diagnostics.timeline._ended",
        "diagnostics.residency._moves",
        "diagnostics.residency._segments",
        "diagnostics.interception._cpython",
        "diagnostics.interception._kernel_text",
    ),
    (
        "diagnostics.hazards._uses",
        "diagnostics.hazards._order",
        "diagnostics.leaks._records",
        "diagnostics._hooks",
        "diagnostics.timeline._entries",
        "diagnostics.timeline._rows",
    ),
    (
        "diagnostics.hazards._findings",
        "diagnostics.leaks",
        "diagnostics.leaks._raw",
        "diagnostics.timeline._awaited",
        "diagnostics.timeline._trace",
        "diagnostics.timeline._graph",
        "diagnostics.timeline._picture",
    ),
    (
        "diagnostics.hazards._steps",
        "diagnostics.hazards._hangs",
        "diagnostics.hazards._questions",
        "diagnostics.timeline._recording",
        "diagnostics.residency._recorder",
    ),
    ("diagnostics.hazards._judge",),
    ("diagnostics.hazards", "diagnostics.leaks.tracking", "diagnostics.interception._faults"),
    ("diagnostics.interception._places", "diagnostics.interception._leases"),
    ("diagnostics.interception._wrapped", "diagnostics.interception._svm", "diagnostics.interception._copies"),
    ("diagnostics.interception._launch", "diagnostics.interception._refused", "diagnostics.interception._owners"),
    ("diagnostics.interception._uses_of", "diagnostics.interception._methods"),
    ("diagnostics.interception._mapped",),
    ("diagnostics.interception._watched", "diagnostics.interception._leaked"),
    ("diagnostics.interception._intercept",),
    (
        "diagnostics.interception._map_hooks",
        "diagnostics.interception._host_side",
        "diagnostics.interception._svm_hooks",
    ),
    ("diagnostics.interception._install",),
    ("diagnostics.hazards.checking", "diagnostics.residency", "diagnostics.timeline", "diagnostics.interception"),
    ("diagnostics._pauses",),
    ("_lifecycle", "diagnostics.chaos"),
    ("_discovery", "_plugin_leaks", "_plugin_queues"),
    ("_info", "_plugin_sanitize", "_run", "_watch"),
    ("_plugin_run", "_startup.sitecustomize"),
    ("pytest_plugin", "__main__"),
]
"""From the bottom up; modules of one layer do not know each other. ``__init__`` is the lazy face of all.

A new module belongs in here, as low as what it imports allows.
"""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE = ("_journal", "_ledger", "diagnostics.hazards", "exceptions")
MOST_LINES = 300


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = {name_of(path) for path in PACKAGE.rglob("__init__.py")}


def imported(name: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield what a module imports, anywhere in it: modules of the package as ``.name``, others by their first name."""
    home = name.split(".") if is_package else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module.partition(".")[0]
                continue
            base = home[: len(home) - node.level + 1]
            if node.module:
                yield "." + ".".join([*base, *node.module.split(".")])
            else:
                yield from ("." + ".".join([*base, alias.name]) for alias in node.names)


IMPORTS = {name: set(imported(name, source, is_package=name in PACKAGES)) for name, source in MODULES.items()}


def upward(name: str, imports: set[str]) -> set[str]:
    """Return the modules among `imports` that are not below the module `name`."""
    return {one for one in imports if one.startswith(".") and RANK.get(one[1:], -1) >= RANK[name]}


def test_every_module_has_its_layer():
    assert {name for name in MODULES if name} <= set(RANK)


@pytest.mark.parametrize("name", [name for name in MODULES if name in RANK])
def test_imports_point_down_only(name):
    assert upward(name, IMPORTS[name]) == set()


def test_an_import_that_points_up_would_be_found():
    assert upward("_ledger", set(imported("_ledger", "from . import _journal, _handle"))) == {"._handle"}
    assert upward("_ledger", set(imported("_ledger", "def f():\n    from ._mapping import Mapping"))) == {"._mapping"}
    nested = "from ... import _submit\nfrom ..leaks import live\nfrom ..leaks.tracking import track"
    assert upward("diagnostics.hazards._uses", set(imported("diagnostics.hazards._uses", nested))) == {
        ".diagnostics.leaks",
        ".diagnostics.leaks.tracking",
    }
    assert set(imported("x", "import numpy.random as r\nfrom pyopencl.tools import y")) == {"numpy", "pyopencl"}


def test_the_package_itself_imports_nothing_but_the_standard_library_when_it_is_loaded():
    loaded = set()
    for node in ast.parse(MODULES[""]).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            loaded |= set(imported("", ast.unparse(node), is_package=True))
    assert loaded <= {"__future__", "importlib", "typing"}


@pytest.mark.parametrize(
    ("special", "homes"), [("ctypes", {"_opencl", "diagnostics.interception._cpython"}), ("pytest", {"pytest_plugin"})]
)
def test_what_is_special_stands_in_its_own_module(special, homes):
    assert {name for name, imports in IMPORTS.items() if special in imports} <= homes


def test_ctypes_is_used_at_all():
    assert "ctypes" in IMPORTS["_opencl"]


@pytest.mark.parametrize("name", PURE)
def test_what_is_pure_loads_neither_pyopencl_nor_numpy(name):
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\nimport clmemlife.{name}\n"
        "found = {'pyopencl', 'numpy', 'ctypes'} & set(sys.modules)\nassert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nobody_but_the_seam_names_the_enqueueing_functions_of_pyopencl():
    found = {
        (name, node.attr)
        for name, source in MODULES.items()
        if name not in ("_opencl", "diagnostics.interception", "_plugin_queues")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "cl"
        and node.attr.startswith("enqueue_")
    }
    assert found == set()


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_short(name):
    assert len(MODULES[name].splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("__main__", "_info")])
def test_modules_say_what_they_are_and_print_nothing(name):
    tree = ast.parse(MODULES[name])
    assert ast.get_docstring(tree)
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert "print" not in calls
