"""What only C can do to a type: see its constructor called, and watch an array that is in the program's hands.

CPython with its global lock only, and only after each place in memory was found to hold what it should; elsewhere
`can_see_constructors` and `can_watch_arrays` are false, and the sanitizer sees less.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any

import numpy as np
import pyopencl as cl

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_TYPE = object.__basicsize__ - _POINTER  # of `ob_type` in an object
_VECTORCALL = 400  # of `tp_vectorcall` in a type, on machines with 64 bits
_FLAGS = 168  # of `tp_flags`
_USUAL = (
    sys.implementation.name == "cpython"
    and _POINTER == 8
    and object.__basicsize__ == 16
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)


def _constructor(kind: type) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(kind) + _VECTORCALL)


def _flags(kind: type) -> int:
    return ctypes.c_ulong.from_address(id(kind) + _FLAGS).value


def _known_layout() -> bool:
    if not _USUAL or any(_flags(kind) != kind.__flags__ for kind in (int, cl.Buffer, np.ndarray)):
        return False
    usual = _constructor(cl.Kernel).value
    return bool(usual) and _constructor(cl.Context).value == usual and not _constructor(cl.Image).value


can_see_constructors = _known_layout()
"""Whether a replaced ``__init__`` can be made to run. PyOpenCL's types call their constructor past it."""


def go_through_init(kind: type) -> int | None:
    """Have ``kind(...)`` look up ``__init__`` as other classes do; return what `restore_constructor` needs."""
    slot = _constructor(kind)
    before = slot.value
    slot.value = None
    return before


def restore_constructor(kind: type, before: int | None) -> None:
    """Undo `go_through_init`."""
    _constructor(kind).value = before


def object_at(address: int) -> Any:
    """Return the object at an address, which must be alive; ``None`` on interpreters where that takes more."""
    return ctypes.cast(address, ctypes.py_object).value if _USUAL and address else None


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    ]


_NAME = b"numpy.ndarray"
_VERSION_TAG, _BASE_TYPE, _COLLECTED = 1 << 18, 1 << 10, 1 << 14


def _same_layout(base: type) -> type | None:
    """Return a subclass whose objects look in memory as those of `base`: a class statement adds a collector's head."""
    if not _USUAL or base.__flags__ & _COLLECTED:
        return None
    create = ctypes.pythonapi.PyType_FromSpecWithBases
    create.restype, create.argtypes = ctypes.py_object, (ctypes.POINTER(_Spec), ctypes.py_object)
    spec = _Spec(_NAME, 0, 0, _VERSION_TAG | _BASE_TYPE, (_Slot * 1)(_Slot(0, None)))
    try:
        kind: type = create(ctypes.byref(spec), (base,))
    except (SystemError, TypeError):
        return None
    same = kind.__basicsize__ == base.__basicsize__ and kind.__dictoffset__ == base.__dictoffset__
    return kind if same and not kind.__flags__ & _COLLECTED else None


watched_array: type | None = _same_layout(np.ndarray)
can_watch_arrays = watched_array is not None


_pointer_at = ctypes.c_void_p.from_address
_array_type, _watched_type = id(np.ndarray), id(watched_array)
_its_reference = ctypes.py_object(watched_array)


def set_class(array: Any, *, watched: bool) -> None:
    """Make an array one of `watched_array`, or a plain one again."""
    if (type(array) is watched_array) is watched:
        return
    if watched:
        ctypes.pythonapi.Py_IncRef(_its_reference)  # as objects of a type that is no part of the interpreter do
        _pointer_at(id(array) + _TYPE).value = _watched_type
    else:
        _pointer_at(id(array) + _TYPE).value = _array_type
        ctypes.pythonapi.Py_DecRef(_its_reference)
