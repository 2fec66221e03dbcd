"""Why a Python object is alive: who refers to it, in words, within a bounded effort."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable
from typing import Any

_OURS = __name__.partition(".")[0]
_SHOWN = ("MemHandle", "Mapping", "Migration")
_CONTAINERS = ("list", "tuple", "set", "frozenset", "deque", "OrderedDict", "defaultdict")
_MOST = 4
_DEPTH = 4


class Explainer:
    """Describe what refers to objects; each look at all objects of the process is one of `searches`."""

    def __init__(self, searches: int = 40) -> None:
        self._searches = searches
        self._skip: set[int] = {id(self.__dict__)}

    def skip(self, *things: object) -> None:
        """Never name these as holders."""
        self._skip |= {id(one) for one in things}

    def holders(self, thing: object, depth: int = _DEPTH) -> list[str]:
        """Return up to four descriptions of what refers to `thing`, outermost name last."""
        found = []
        for referrer in self._referrers(thing):
            text = self._describe(referrer, thing, depth)
            if text and text not in found:
                found.append(text)
            if len(found) == _MOST:
                break
        return found

    def _referrers(self, thing: object) -> list[Any]:
        if self._searches <= 0:
            return []
        self._searches -= 1
        found: list[Any] = []
        everything = gc.get_referrers(thing)
        self._skip |= {id(found), id(everything)}
        for one in everything:
            if id(one) not in self._skip and not _is_internal(one):
                found.append(one)
        return found

    def _describe(self, referrer: Any, thing: object, depth: int) -> str:
        kind = type(referrer)
        name = kind.__name__
        if isinstance(referrer, types.FrameType):
            return self._describe_frame(referrer, thing)
        if isinstance(referrer, types.ModuleType):
            return f"{_key_of(vars(referrer), thing)} of module {referrer.__name__}"
        if isinstance(referrer, dict):
            return self._describe_dict(referrer, thing, depth)
        if name in ("generator", "coroutine", "async_generator"):
            code = getattr(referrer, "gi_code", None) or getattr(referrer, "cr_code", None) or referrer.ag_code
            return f"the suspended {name} {referrer.__qualname__}() ({code.co_filename}:{code.co_firstlineno})"
        if isinstance(referrer, types.CellType):
            return self._within("a variable of a closure", referrer, depth)
        if isinstance(referrer, types.MethodType):  # without a name for it, it is that of a 'with' block
            outer = self.holders(referrer, depth - 1) if depth > 1 else []
            return f"its method {referrer.__name__}(), in {outer[0]}" if outer else ""
        if isinstance(referrer, types.FunctionType):
            return f"function {referrer.__module__}.{referrer.__qualname__}()"
        if name in _CONTAINERS:
            return self._within(f"a {name} of {len(referrer)}", referrer, depth)
        if name == "FixtureDef":
            return f"the value of fixture {getattr(referrer, 'argname', '?')!r}"
        if kind.__module__.startswith(_OURS):
            return f"a {name} (created at {getattr(referrer, 'site', '?')})" if name == "MemHandle" else f"a {name}"
        return f"{_attribute_of(referrer, thing)} of a {kind.__module__}.{kind.__qualname__}"

    def _describe_frame(self, frame: types.FrameType, thing: object) -> str:
        names = [name for name, value in frame.f_locals.items() if value is thing]
        what = f"local {names[0]!r}" if names else "a value on the stack"
        text = f"{what} of {frame.f_code.co_name}() ({frame.f_code.co_filename}:{frame.f_lineno})"
        kept = any(isinstance(one, types.TracebackType) for one in self._referrers(frame))
        return text + (", kept by a traceback" if kept else "")

    def _describe_dict(self, holder: dict[Any, Any], thing: object, depth: int) -> str:
        module = sys.modules.get(str(holder.get("__name__")))
        if module is not None and vars(module) is holder:
            return f"global {_key_of(holder, thing)} of module {module.__name__}"
        key = _key_of(holder, thing)
        for owner in self._referrers(holder):
            if getattr(owner, "__dict__", None) is holder:
                kind = type(owner)
                return f"attribute {key} of a {kind.__module__}.{kind.__qualname__}"
        return self._within(f"entry {key} of a dict", holder, depth)

    def _within(self, text: str, container: object, depth: int) -> str:
        outer = self.holders(container, depth - 1) if depth > 1 else []
        outer.sort(key=lambda one: not one.startswith("global"))
        return f"{text}, in {outer[0]}" if outer else text


def _key_of(holder: dict[Any, Any], thing: object) -> str:
    return next((repr(key)[:60] for key, value in list(holder.items()) if value is thing), "a key")


def _attribute_of(owner: object, thing: object) -> str:
    names: Iterable[str] = [*getattr(owner, "__dict__", ())]
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        names = [*names, *((slots,) if isinstance(slots, str) else slots)]
    for name in names:
        if _plain_attribute(owner, name) is thing:
            return f"attribute {name!r}"
    return "an attribute"


def _plain_attribute(owner: object, name: str) -> object:
    try:
        return object.__getattribute__(owner, name)
    except AttributeError:
        return None


def _is_internal(referrer: object) -> bool:
    """Say whether a referrer is machinery of this library, or of a loop, which explains nothing to a user."""
    if isinstance(referrer, types.FrameType):
        return str(referrer.f_globals.get("__name__")).partition(".")[0] == _OURS
    kind = type(referrer)
    if kind.__name__.endswith("_iterator"):
        return True
    return kind.__module__.partition(".")[0] == _OURS and kind.__name__ not in _SHOWN
