"""Which line of a program called PyOpenCL, and what goes with an object of PyOpenCL."""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from ..._site import PACKAGE
from . import _faults

KEY = "_clmemlife_watch"
"""The attribute of a PyOpenCL object that has its `Tripwire`."""
UNSEEN = "an unknown line"


class Tripwire:
    """Goes with a PyOpenCL object, just before that gives its reference back."""

    __slots__ = ("about", "then")

    def __init__(self, about: Any, then: Callable[[Any, str], None]) -> None:
        self.about, self.then = about, then

    def __del__(self, _closing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _closing() and _faults.active:
            self.then(self.about, outer_site(sys._getframe(1)))

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Nothing, ()  # whoever pickles or copies the attributes of an object


class _Nothing:
    pass


class Nobody:
    """Stands for the event of a command that gives none."""


_PYOPENCL = str(cl.__file__).removesuffix("__init__.py")
_INNER = (_PYOPENCL, "<generated: 'pyopencl ", "<generated code for 'pyopencl ", "<pyopencl ")
_HERE = os.path.dirname(os.path.abspath(__file__))
_HOOKS = frozenset(
    os.path.join(folder, f"{name}.py")
    for folder, names in {
        os.path.dirname(_HERE): ("_hooks",),
        _HERE: ("_host_side", "_intercept", "_launch", "_map_hooks", "_methods", "_owners", "_svm_hooks"),
    }.items()
    for name in names
)  # stand in the place of PyOpenCL's own functions
_THEIRS, _OURS, _PYOPENCLS = range(3)
_files: dict[str, int] = {}
"""Whose code is in a file."""


def _whose(name: str) -> int:
    whose = _PYOPENCLS if name.startswith(_INNER) else _OURS if name.startswith(PACKAGE) else _THEIRS
    _files[name] = whose = _PYOPENCLS if name in _HOOKS else whose
    return whose


def outer_frame(frame: Any) -> Any:
    """Return the innermost frame that is neither PyOpenCL's nor ours, ``None`` where there is none."""
    while frame is not None:
        name = frame.f_code.co_filename
        whose = _files.get(name)
        if (_whose(name) if whose is None else whose) is _THEIRS:
            break
        frame = frame.f_back
    return frame


def outer_site(frame: Any) -> str:
    """Return the line of `outer_frame`."""
    frame = outer_frame(frame)
    return UNSEEN if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def variables(frame: types.FrameType) -> list[Any]:
    """Return the values of a frame's variables; no trace of that is left in the frame."""
    names: Any = frame.f_locals
    values = list(names.values())
    function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if function and type(names) is dict and sys.getrefcount(names) <= _HELD_HERE:
        names.clear()  # before Python 3.13 the frame keeps what it was asked for, and so the values alive
    return values


_HELD_HERE = 3  # by the frame, the name, and the call that asks


def caller(frame: Any) -> str | None:
    """Return the line that called PyOpenCL, ``None`` where this library did."""
    while frame is not None:
        name = frame.f_code.co_filename
        whose = _files.get(name)
        if whose is None:
            whose = _whose(name)
        if whose is _THEIRS:
            return f"{name}:{frame.f_lineno}"
        if whose is _OURS:
            return None
        frame = frame.f_back
    return UNSEEN
