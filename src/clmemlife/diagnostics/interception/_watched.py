"""Arrays of maps that must not be used yet, any more, or with these strides: a use is reported, and done.

The array is the program's, so it is changed in place, and back: for that time it is of a subclass that notices
uses. Arrays that nothing is wrong with are never touched.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

import numpy as np

from ...exceptions import ReleasedError, UnmappedError
from . import _cpython, _faults
from ._mapped import Map, mapped_by
from ._places import outer_site, variables
from ._svm import Area

_HARMLESS = frozenset(
    """base shape strides dtype itemsize size nbytes ndim flags ctypes data view __class__ __array_interface__
    __array_struct__ __dict__ __doc__ __sizeof__ __array_priority__ __array_finalize__ __array_prepare__
    __array_wrap__ __len__ __hash__ __init_subclass__ __dir__ __weakref__ __reduce__ __reduce_ex__
    __setstate__""".split()  # noqa: SIM905
)
_NUMPY = str(np.__file__).removesuffix("__init__.py")
_SLACK = 256
_watched: dict[int, tuple[weakref.ref[Any], Map]] = {}


def watch(entry: Map, array: Any = None) -> None:
    """Notice uses of the array of a map from now on."""
    array = entry.array() if array is None and entry.array is not None else array
    if array is None or not _cpython.can_watch_arrays or type(array) not in (np.ndarray, _cpython.watched_array):
        return
    if len(_watched) > _SLACK:
        for number, (reference, _) in _watched.copy().items():  # which other threads, and finalizers, change
            if reference() is None:
                _forget(number)
    _watched[id(array)] = weakref.ref(array), entry
    _cpython.set_class(array, watched=True)


def _forget(number: int) -> None:
    gone = _watched.pop(number, None)
    if gone is not None and gone[0]() is not None:  # of a new array, at the same place in memory
        _watched[number] = gone


def watch_views(entry: Map, frame: types.FrameType | None) -> None:
    """Notice also uses of the views of a map's array that variables of the running functions have."""
    array = None if entry.array is None else entry.array()
    if array is None or not _cpython.can_watch_arrays or sys.getrefcount(array) <= _HELD_HERE:
        return
    base = array.base
    seen = 0
    while frame is not None and seen < _DEEP:
        for one in variables(frame):
            many = one if type(one) in (list, tuple) and len(one) < _MANY else (one,)
            for view in many:
                if type(view) is np.ndarray and view is not array and view.base is not None and _shows(view, base):
                    watch(entry, view)
        frame, seen = frame.f_back, seen + 1


_HELD_HERE = 3  # by a variable of the program, the name, and the call that asks
_DEEP, _MANY = 8, 64


def _shows(view: Any, memory_map: Any) -> bool:
    while isinstance(view, np.ndarray):
        view = np.ndarray.base.__get__(view)
    return view is memory_map


def release(array: Any) -> None:
    """Make it a plain array again."""
    _watched.pop(id(array), None)
    if type(array) is _cpython.watched_array:
        _cpython.set_class(array, watched=False)


def release_all() -> None:
    """Make all of them plain again."""
    for reference, _ in _watched.copy().values():
        array = reference()
        if array is not None:
            release(array)
    _watched.clear()


def map_of(array: Any) -> Map | None:
    """Return the map that an array, or a view of it, shows."""
    known = _watched.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    base: Any = array
    while isinstance(base, np.ndarray):
        base = np.ndarray.base.__get__(base)
    return None if base is None else mapped_by(base)


def used(array: Any, site: str) -> None:
    """Judge a use of an array, also by a call of PyOpenCL."""
    entry = map_of(array)
    if entry is None or not _faults.active:
        return
    if entry.renewed:
        release(array)
    elif entry.released is not None:
        freed = isinstance(entry.wrapper, Area) and entry.wrapper.gone
        gone = entry.wrapper.gone
        _faults.report(
            "stale_map_array",
            f"the array of the map made at {entry.site} is used after its release at {entry.released}"
            + (", and its memory object is gone" if gone else ""),
            site, entry.released, thing=entry.thing,
            remedy="Copy what is needed before the release, or map again; del the array with the map.",
            error=ReleasedError if freed else UnmappedError, fatal=freed,
        )  # fmt: skip
    elif not entry.waited and not settled(entry):
        _faults.report(
            "map_not_ready",
            f"the array of the non-blocking map made at {entry.site} is used before anybody waited for its event",
            site, entry.site, thing=entry.thing,
            remedy=f"Call .wait() on the event that the map at {entry.site} returned, or map with is_blocking=True.",
        )  # fmt: skip
    elif entry.pitch is not None:
        is_, should = entry.pitch
        _faults.report(
            "wrong_map_strides",
            f"rows of the array of the map made at {entry.site} are taken to be {is_} bytes apart; they are {should}",
            site, entry.site, thing=entry.thing,
            remedy="Pass strides= made from the row and slice pitch that enqueue_map_image returns, in a second map.",
        )  # fmt: skip
    elif type(array) is _cpython.watched_array:
        release(array)


def settled(entry: Map) -> bool:
    """Say whether the host has waited for a map, as far as the scopes know; where none orders commands, it may have."""
    entry.waited = not known_settled or any(knows(entry.event) for knows in known_settled)
    return entry.waited


known_settled: list[Any] = []
"""Asked whether the host has waited for an event: one function for each scope that orders commands."""


def _site() -> str:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_NUMPY):
        frame = frame.f_back
    return outer_site(frame)


def _special(name: str) -> Any:
    original = getattr(np.ndarray, name)

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        used(self, _site())
        return original(self, *arguments, **keywords)

    method.__name__ = name
    return method


def _getitem(self: Any, index: Any) -> Any:
    """Take an item; a part of shared virtual memory is no use of it yet, so it is watched too."""
    entry = _shared(self)
    if entry is None or not all(isinstance(one, _SLICES) for one in (index if type(index) is tuple else (index,))):
        used(self, _site())
        return np.ndarray.__getitem__(self, index)
    made = np.ndarray.__getitem__(self, index)
    watch(entry, made)
    return made


_SLICES = (slice, type(...), type(None))
_OTHER_VIEWS = frozenset(("T", "reshape", "transpose", "swapaxes", "squeeze"))


def _shared(array: Any) -> Map | None:
    """Return the map of an array that is there without a map too, where that shows shared virtual memory."""
    entry = map_of(array)
    return entry if entry is not None and isinstance(entry.wrapper, Area) and not entry.wrapper.gone else None


def _getattribute(self: Any, name: str) -> Any:
    if name not in _HARMLESS and (name not in _OTHER_VIEWS or _shared(self) is None):
        used(self, _site())
    return np.ndarray.__getattribute__(self, name)


def _plain(value: Any) -> Any:
    plain: Any = np.ndarray.view
    return plain(value, np.ndarray) if type(value) is _cpython.watched_array else value


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    site = _site()
    given = keywords.get("out", ())
    for one in (*inputs, *given):
        if type(one) is _cpython.watched_array:
            used(one, site)
    keywords = {name: _plain(value) for name, value in keywords.items()}
    if given:
        keywords["out"] = tuple(_plain(one) for one in given)
    result = getattr(ufunc, method)(*map(_plain, inputs), **keywords)
    if not given or result is None:
        return result
    made = result if type(result) is tuple else (result,)
    theirs = tuple(one if mine is None else mine for one, mine in zip(made, given, strict=True))
    return theirs if type(result) is tuple else theirs[0]


def _finalize(self: Any, _: Any) -> None:
    """Make an array that comes of a watched one plain: what it shows was reported when it was made."""
    _cpython.set_class(self, watched=False)


def _view(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """Make a view, which is no use of the memory yet: so it is watched too."""
    made = np.ndarray.view(self, *arguments, **keywords)
    entry = map_of(self)
    if entry is not None and np.ndarray not in (*arguments, *keywords.values()):
        watch(entry, made)
    return made


def _reduce(self: Any, *arguments: Any) -> Any:
    used(self, _site())
    return np.ndarray.view(self, np.ndarray).__reduce_ex__(*(arguments or (2,)))


def _array_function(self: Any, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
    used(self, _site())
    return np.ndarray.__array_function__(self, function, types, arguments, keywords)


def _text(self: Any) -> str:
    used(self, _site())
    return repr(np.ndarray.view(self, np.ndarray))


def _prepare(kind: type) -> None:
    for name in (
        "__setitem__", "__iter__", "__str__", "__format__", "__bool__", "__int__", "__float__",
        "__contains__", "__copy__", "__deepcopy__", "__complex__", "__index__",
    ):  # fmt: skip
        setattr(kind, name, _special(name))
    made: dict[str, Any] = {
        "__getattribute__": _getattribute, "__getitem__": _getitem, "__array_ufunc__": _array_ufunc,
        "__array_function__": _array_function,
        "__repr__": _text, "__module__": "numpy", "__array_finalize__": _finalize, "view": _view, "__reduce__": _reduce,
        "__reduce_ex__": _reduce,
    }  # fmt: skip
    for name, value in made.items():
        setattr(kind, name, value)


if _cpython.watched_array is not None:
    _prepare(_cpython.watched_array)
