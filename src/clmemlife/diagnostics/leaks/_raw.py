"""PyOpenCL objects that no handle made: which are alive, what holds them, and where they were made."""

from __future__ import annotations

import functools
import gc
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from ... import _inflight
from ...flags import MemFlags
from ._records import UNSEEN, LiveRecord, wrappers
from ._why import Explainer

HOW = "pyopencl"
Key = tuple[int, int]

_HOME = os.path.dirname(os.path.abspath(str(cl.__file__))) + os.sep
_FRAMES = 6


class RawWatch:
    """Know all PyOpenCL memory objects by looking at what the garbage collector tracks.

    Nothing of PyOpenCL is replaced but ``release``, since a released object may not be asked for anything.
    ``tracemalloc`` tells the line that made an object; it is started where it does not run.
    """

    def __init__(self) -> None:
        self._released: dict[int, int] = {}
        self._known: set[Key] = set()
        self._owned: dict[int, set[Key]] = {}
        self._originals: list[tuple[Any, Any]] = []
        self._traced = not tracemalloc.is_tracing()
        if self._traced:
            tracemalloc.start(_FRAMES)
        for kind in (cl.MemoryObject, getattr(cl._cl, "PooledBuffer", None)):
            if kind is not None and "release" in vars(kind):
                self._originals.append((kind, kind.release))
                kind.release = self._noting(kind.release)

    def close(self) -> None:
        """Put PyOpenCL's own functions back."""
        for kind, original in self._originals:
            kind.release = original
        if self._traced:
            tracemalloc.stop()

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def release(mem: Any) -> Any:
            int_ptr = mem.int_ptr
            result = original(mem)
            self._released[id(mem)] = int_ptr
            return result

        return release

    def snapshot(self) -> dict[Key, Any]:
        """Return all objects that are alive, by identity and address, less those of this library's own commands."""
        ours = {id(mem) for _, used, _ in _inflight.entries() for mem in _as_sequence(used)}
        found = {}
        for mem in wrappers():
            if id(mem) not in ours:
                try:
                    int_ptr = int(mem.int_ptr)
                except cl.Error:  # given back to its pool
                    continue
                if self._released.get(id(mem)) != int_ptr:
                    found[id(mem), int_ptr] = mem
        return found

    def begin(self) -> None:
        """Begin a test: what is alive now is not its own."""
        self._known = set(self.snapshot())

    def own(self, key: int, before: set[Key]) -> None:
        """Count what came since `before` to the fixture `key`."""
        self._owned.setdefault(key, set()).update(set(self.snapshot()) - before)

    def disown(self, key: int) -> None:
        """Judge what that fixture made with the test at hand."""
        self._known -= self._owned.pop(key, set())

    def leaks(self) -> list[LiveRecord]:
        """Return a record for each memory object that came since `begin` and is no fixture's."""
        expected = self._known.union(*self._owned.values())
        if not self.snapshot().keys() - expected:
            return []
        gc.collect()
        found = self.snapshot()
        explainer = Explainer()
        explainer.skip(found)
        records: dict[int, LiveRecord] = {}
        for key in [one for one in found if one not in expected]:
            mem = found.pop(key)
            if key[1] not in records:
                holders = explainer.holders(mem) or [UNSEEN]
                name = type(mem).__name__  # a closure over `mem` would be found as one that holds it
                records[key[1]] = _record(mem, tuple(f"its {name}: {text}" for text in holders))
        return list(records.values())


def _record(mem: Any, why: tuple[str, ...]) -> LiveRecord:
    kind = "image" if mem.get_info(cl.mem_info.TYPE) != cl.mem_object_type.BUFFER else "buffer"
    return LiveRecord(
        None, mem.size, _site(mem), kind, HOW, 0.0, 0, 0, None, MemFlags(mem.get_info(cl.mem_info.FLAGS)), "foreign",
        why=why,
    )  # fmt: skip


def _site(mem: Any) -> str:
    """Return the innermost line outside PyOpenCL that made an object."""
    trace = tracemalloc.get_object_traceback(mem) or ()
    frames = [f"{frame.filename}:{frame.lineno}" for frame in reversed(trace)]
    return next((line for line in frames if not line.startswith(_HOME)), frames[0] if frames else "an unknown line")


def _as_sequence(used: object) -> tuple[object, ...]:
    return tuple(used) if isinstance(used, (list, tuple)) else (used,)
