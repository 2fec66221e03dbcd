"""The public face: loaded lazily, complete, documented, and quiet."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import clmemlife
from clmemlife import exceptions, flags

PATH = f"import sys; sys.path[:0] = {sys.path!r}\n"


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", PATH + code], capture_output=True, text=True, timeout=60, check=False
    )


def loaded_by(code: str) -> set[str]:
    done = python(code + "\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import clmemlife",
        "import clmemlife.exceptions",
        "from clmemlife import LeakWarning, ReleasedError",
        "import clmemlife; dir(clmemlife); clmemlife.__version__; clmemlife.__all__; hasattr(clmemlife, 'nonsense')",
    ],
)
def test_importing_the_package_or_its_errors_loads_neither_pyopencl_nor_numpy(code):
    assert not loaded_by(code) & {"pyopencl", "numpy", "ctypes", "clmemlife._opencl"}


def test_the_first_use_of_a_name_loads_what_it_needs_and_the_exit_hook():
    assert {"pyopencl", "clmemlife._handle", "clmemlife._lifecycle"} <= loaded_by("from clmemlife import MemHandle")


@pytest.mark.parametrize("code", ["import clmemlife", "from clmemlife import *", "from clmemlife import MemHandle"])
def test_importing_is_silent_in_development_mode_with_warnings_as_errors(code):
    done = python(code, "-W", "error", "-X", "dev")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", clmemlife.__all__)
def test_every_public_name_can_be_had_and_says_what_it_is(name):
    value = getattr(clmemlife, name)
    assert getattr(importlib.import_module("clmemlife"), name) is value
    assert value.__name__ == name
    assert inspect.getdoc(value)
    assert value.__doc__ is not None, "the text is inherited"


CLASSES = [name for name in clmemlife.__all__ if inspect.isclass(getattr(clmemlife, name))]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_says_what_it_is(name):
    cls = getattr(clmemlife, name)
    inherited = {member for base in (Exception, tuple, int, object) for member in dir(base)}
    fields = set(getattr(cls, "__dataclass_fields__", ())) | set(getattr(cls, "_fields", ()))
    for member, value in inspect.getmembers_static(cls) if sys.version_info >= (3, 11) else inspect.getmembers(cls):
        if member.startswith("_") or member in inherited or member in fields:
            continue
        if isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(value):
            assert inspect.getdoc(getattr(cls, member) if not isinstance(value, property) else value), member


def test_all_names_the_public_names_once_each_in_order():
    assert clmemlife.__all__ == sorted(set(clmemlife.__all__))
    assert set(clmemlife.__all__) <= set(dir(clmemlife))
    assert not [name for name in clmemlife.__all__ if name.startswith("_")]
    namespace: dict[str, object] = {}
    exec("from clmemlife import *", namespace)
    assert set(clmemlife.__all__) == set(namespace) - {"__builtins__"}


def test_all_errors_and_all_flags_are_public():
    assert set(exceptions.__all__) | set(flags.__all__) <= set(clmemlife.__all__)
    defined = {
        name
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and value.__module__ == exceptions.__name__
    }
    assert defined == set(exceptions.__all__)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(clmemlife.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    seen = set()
    for node in block.body:
        for alias in node.names:
            if alias.name == "*":
                seen |= set(importlib.import_module(f"clmemlife.{node.module}").__all__)
            else:
                assert alias.asname == alias.name, "a re-export needs 'as'"
                seen.add(alias.name)
    assert seen == set(clmemlife.__all__)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="module 'clmemlife' has no attribute 'nonsense'"):
        clmemlife.nonsense
    with pytest.raises(ImportError, match="nonsense"):
        from clmemlife import nonsense  # noqa: F401


def test_the_version_is_that_of_the_distribution():
    assert clmemlife.__version__ == metadata.version("clmemlife")


def test_the_types_are_marked_as_such():
    assert (Path(clmemlife.__file__).parent / "py.typed").exists()


ERRORS = [
    "",
    "ClMemLifeError Exception",
    "CallError ClMemLifeError",
    "OwnershipError ClMemLifeError",
    "ReleasedError ClMemLifeError",
    "UnmappedError ReleasedError",
    "AlignmentError ClMemLifeError ValueError",
    "ContextMismatchError ClMemLifeError ValueError",
    "DependencyError ClMemLifeError",
    "HostAliasError ClMemLifeError",
    "LiveViewError ClMemLifeError",
    "HazardError ClMemLifeError",
    "MapConflictError HazardError",
    "UnorderedAccessError HazardError",
    "LeakError ClMemLifeError",
    "ForkedProcessError ClMemLifeError",
    "UnsupportedError ClMemLifeError NotImplementedError",
    "LeakWarning ResourceWarning",
    "HazardWarning RuntimeWarning",
    "CleanupWarning RuntimeWarning",
    "ViewWarning RuntimeWarning",
    "ZeroCopyWarning RuntimeWarning",
    "",
][1:-1]


@pytest.mark.parametrize("line", ERRORS)
def test_each_error_has_its_place_in_the_tree(line):
    name, *bases = line.split()
    assert [base.__name__ for base in getattr(clmemlife, name).__bases__] == bases


def test_no_error_takes_the_name_of_a_builtin():
    import builtins

    assert not set(exceptions.__all__) & set(dir(builtins))
