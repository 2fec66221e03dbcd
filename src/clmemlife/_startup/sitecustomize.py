"""The start-up hook: watches a process from the moment in which it has imported PyOpenCL, and costs nothing before.

``python -m clmemlife run`` puts this folder first on ``PYTHONPATH``, so that the interpreter of the program and those
of its child processes import this file when they start. It makes room for the ``sitecustomize`` of the user, if there
is one, and imports nothing that the interpreter has not loaded anyway.
"""

import atexit
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False  # as type checkers know it; typing itself is slow to load
if TYPE_CHECKING:
    from typing import Any

_HOME = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Find PyOpenCL as the other finders do, with a loader that tells when it is loaded."""

    def __init__(self, first: bool) -> None:
        self.first = first
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        thread = get_ident()
        if name != "pyopencl" or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            specs = (one.find_spec(name, path, target) for one in list(sys.meta_path) if one is not self)
            spec: Any = next((one for one in specs if one is not None), None)
        finally:
            self._asking.discard(thread)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader:
    """Load with another loader, which is all that the module knows of afterwards."""

    def __init__(self, loader: "Any", finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "Any") -> "Any":
        return self._loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            _begin(self._finder.first)


def _begin(first: bool) -> None:
    try:
        try:
            from clmemlife import _watch
        except ModuleNotFoundError as error:  # the program's own sys.path does not lead there
            if error.name != "clmemlife":
                raise
            _load_package()
            from clmemlife import _watch
        _watch.begin(first)
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write(f"clmemlife: this process is not watched ({type(error).__name__}: {error})\n")


def _load_package() -> None:
    from importlib import util

    folder = os.path.dirname(_HOME)
    spec = util.spec_from_file_location(
        "clmemlife", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["clmemlife"] = module = util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _make_room() -> None:
    """Import the user's own ``sitecustomize`` in place of this one; the program finds no trace in ``sys.path``."""
    sys.path[:] = [one for one in sys.path if one != _HOME]
    mine = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = mine


def _say_if_unused() -> None:
    if _finder in sys.meta_path and os.getpid() == _pid and sys.__stderr__ is not None:
        sys.__stderr__.write("clmemlife: the program did not import PyOpenCL, so there was nothing to watch\n")


_pid = os.getpid()
_finder = _Finder(os.environ.pop("CLMEMLIFE_FIRST", "") == "1")  # not for children
if os.environ.get("CLMEMLIFE_SANITIZE", "0") not in ("", "0"):
    sys.meta_path.insert(0, _finder)
    if _finder.first:
        atexit.register(_say_if_unused)
_make_room()
