"""What may be passed for a kernel argument, by its declared type; where that is not known, anything may."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyopencl as cl

from ._handle import MemHandle

READ, WRITE, ASSUMED = "read", "write", "assumed"
POINTER, LOCAL, IMAGE, SAMPLER, VALUE = "pointer", "local", "image", "sampler", "value"

_KINDS = cl.mem_object_type
_IMAGES = {
    "image1d_t": _KINDS.IMAGE1D, "image1d_buffer_t": _KINDS.IMAGE1D_BUFFER, "image1d_array_t": _KINDS.IMAGE1D_ARRAY,
    "image2d_t": _KINDS.IMAGE2D, "image2d_array_t": _KINDS.IMAGE2D_ARRAY, "image3d_t": _KINDS.IMAGE3D,
}  # fmt: skip
_INTEGERS = {"char": 1, "short": 2, "int": 4, "long": 8}
_SHORT_NAMES = {f"u{name}": f"unsigned {name}" for name in _INTEGERS}
_FLOATS = {"half": 2, "float": 4, "double": 8}
_VECTOR = re.compile(r"(u?(?:char|short|int|long)|half|float|double)(2|3|4|8|16)")
_SCALARS = [
    kind for kind in {np.dtype(code).type for code in np.typecodes["All"]} if np.dtype(kind).kind in "biufmM"
]  # fmt: skip
_WHAT = {
    POINTER: "a MemHandle or PyOpenCL object of a buffer, SVM, or None (a null pointer)",
    LOCAL: "pyopencl.LocalMemory(bytes)",
    IMAGE: "a MemHandle or PyOpenCL object of such an image",
    SAMPLER: "a pyopencl.Sampler",
}


class Parameter(NamedTuple):
    """One argument of a kernel.

    Attributes
    ----------
    mode : str
        How it is used: `READ`, `WRITE`, or `ASSUMED` (meaningless for what is no memory object).
    accepts : frozenset or None
        Types of NumPy scalars, `pyopencl.mem_object_type` numbers, `LOCAL`; ``None`` where nothing is known.
    kind : str
        What it is; empty where that is not known.
    size : int
        Bytes of a value, else 0.
    declared : str
        For messages.
    """

    mode: str
    accepts: frozenset[Any] | None = None
    kind: str = ""
    size: int = 0
    declared: str = ""


def parameter(mode: str, space: str, type_name: str, declared: str) -> Parameter:
    """Return what is known of an argument; `space` is its address space, empty if it has none or that is not known."""
    if type_name in _IMAGES:
        return Parameter(mode, frozenset([_IMAGES[type_name]]), IMAGE, 0, declared)
    if type_name == "sampler_t":
        return Parameter(mode, frozenset(), SAMPLER, 0, declared)
    if space in ("global", "constant"):
        return Parameter(mode, frozenset([_KINDS.BUFFER]), POINTER, 0, declared)
    if space == "local":
        return Parameter(mode, frozenset([LOCAL]), LOCAL, 0, declared)
    size, scalars = _value(type_name)
    if not size:
        return Parameter(mode)
    return Parameter(mode, scalars, VALUE, size, declared)


@functools.cache
def _value(type_name: str) -> tuple[int, frozenset[Any]]:
    """Return size and scalars of a type that is passed by value; no size where it is not one of OpenCL C's own."""
    vector = _VECTOR.fullmatch(type_name)
    if vector:
        size, _ = _value(vector[1])
        return size * {"3": 4}.get(vector[2], int(vector[2])), frozenset()
    words = _SHORT_NAMES.get(type_name, type_name).split()
    if len(words) > 1 and "int" in words and not {"char", "int"} <= set(words):
        words.remove("int")  # of "unsigned int", "long int", "short unsigned int"
    signs = [word for word in words if word in ("signed", "unsigned")]
    names = [word for word in words if word not in signs]
    if len(names) > 1 or len(signs) > 1 or not words:
        return 0, frozenset()
    base = names[0] if names else "int"
    if base in _FLOATS and not signs:
        kinds = "fiu" if base == "half" else "f"  # halves are often kept as their bits
        return _FLOATS[base], _scalars(_FLOATS[base], kinds)
    size = _INTEGERS.get(base, 0)
    return size, _scalars(size, "biumM")


def _scalars(size: int, kinds: str) -> frozenset[Any]:
    return frozenset([one for one in _SCALARS if np.dtype(one).itemsize == size and np.dtype(one).kind in kinds])


def check(one: Parameter, index: int, kernel_name: str, arg: Any) -> None:
    """Refuse an argument that `Parameter.accepts` does not list, unless it will do all the same."""
    if one.accepts is None:
        return
    if isinstance(arg, MemHandle):
        fits = arg._type in one.accepts
    elif isinstance(arg, cl.MemoryObjectHolder):
        fits = (_KINDS.BUFFER if type(arg) is cl.Buffer else arg.type) in one.accepts
    elif one.kind == VALUE:
        fits = _fits_value(one, arg)
    elif one.kind == POINTER:
        fits = arg is None or isinstance(arg, cl.SVMPointer)
    else:
        fits = isinstance(arg, {LOCAL: cl.LocalMemory, SAMPLER: cl.Sampler}.get(one.kind, ()))
    if not fits:
        _refuse(one, index, kernel_name, arg)


def _fits_value(one: Parameter, arg: Any) -> bool:
    """Say whether `arg` can be the bytes of a value; scalars of NumPy are told by their type, others by their size."""
    if isinstance(arg, (bool, int, float, complex)) and not isinstance(arg, np.generic):
        return True  # PyOpenCL knows what to do, or does not
    if type(arg) in one.accepts:  # type: ignore[operator]
        return True
    if arg is None or isinstance(arg, (cl.LocalMemory, cl.SVMPointer, cl.Sampler, cl.CommandQueue)):
        return False
    if isinstance(arg, np.generic) and one.accepts and not isinstance(arg, np.void):
        return False
    try:
        return memoryview(arg).nbytes == one.size
    except (TypeError, ValueError):
        return True  # not ours to judge


def _refuse(one: Parameter, index: int, kernel_name: str, arg: Any) -> NoReturn:
    what = _WHAT.get(one.kind)
    if what is None and one.accepts:
        what = "numpy." + " or numpy.".join(sorted({np.dtype(kind).name for kind in one.accepts if _plain(kind)}))
    elif what is None:
        what = f"{one.size} bytes, for example of pyopencl.cltypes"
    raise TypeError(
        f"argument {index} of kernel {kernel_name!r} is declared as {one.declared!r} and takes {what}, "
        f"not {_given(arg)}"
    )


def _given(arg: Any) -> str:
    name = type(arg).__name__
    if isinstance(arg, (MemHandle, np.generic, bool, int, float, complex)):
        return f"{name} {arg!r}"
    try:
        return f"{name} of {memoryview(arg).nbytes} bytes"
    except (TypeError, ValueError):
        return name


def _plain(kind: type[np.generic]) -> bool:
    return np.dtype(kind).kind in "iuf"
