"""Words for messages: where in the user's program, which object; and warnings that are never lost."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
import warnings

PACKAGE = _PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _depth_from_environment() -> int:
    text = os.environ.get("CLMEMLIFE_SITE_DEPTH", "")
    return max(1, int(text)) if text.isdigit() else 1


_depth = _depth_from_environment()


class Site(str):
    """``file:line`` with the callers of that line, innermost first, in ``stack``."""

    __slots__ = ("stack",)
    stack: tuple[str, ...]


def set_site_depth(lines: int) -> int:
    """Set how many lines of the call stack are kept for each new handle and map; return what it was.

    Parameters
    ----------
    lines : int
        1 (the default, or what the environment variable ``CLMEMLIFE_SITE_DEPTH`` says) keeps the innermost line
        outside this package. More cost about half a microsecond each for every handle; reports show them. It counts
        for all threads.

    Returns
    -------
    int
        How many lines were kept before.

    Raises
    ------
    ValueError
        Less than one line.
    """
    global _depth
    if lines < 1:
        raise ValueError(f"at least one line of the call stack is kept, not {lines}")
    before, _depth = _depth, lines
    return before


def caller_site(inner: str | tuple[str, ...] = _PACKAGE) -> str:
    """Return ``file:line`` of the innermost caller that is not code of this package (or another set of files)."""
    frame = sys._getframe(2)  # whoever asks is code of this package
    filename = frame.f_code.co_filename
    while filename.startswith(inner) and frame.f_back is not None:
        frame = frame.f_back
        filename = frame.f_code.co_filename
    if _depth > 1:
        return _with_stack(frame)
    code, at = frame.f_code, frame.f_lasti
    known = _lines.get((id(code), at))
    if known is not None and known[0] is code:
        return known[1]
    if len(_lines) >= _MOST_LINES:
        _lines.clear()
    site = f"{filename}:{frame.f_lineno}"
    _lines[id(code), at] = code, site
    return site


_MOST_LINES = 1024
_lines: dict[tuple[int, int], tuple[types.CodeType, str]] = {}  # Python counts lines from the begin of a function


def _with_stack(frame: types.FrameType) -> Site:
    stack: list[str] = []
    outer: types.FrameType | None = frame
    while outer is not None and len(stack) < _depth:
        stack.append(f"{outer.f_code.co_filename}:{outer.f_lineno}")
        outer = outer.f_back
    site = Site(stack[0])
    site.stack = tuple(stack)
    return site


def describe(label: str | None, size: int, site: str, kind: str = "memory object") -> str:
    """Return how messages name an object: label, size, creation site."""
    return f"{repr(label) if label else 'unlabelled ' + kind} ({size} bytes, created at {site})"


def plural(number: int, word: str) -> str:
    """Return how many, in words: ``1 handle``, ``2 handles``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def warn_at(site: str, message: str, category: type[Warning]) -> None:
    """Warn as if the line at `site` had; raises where warnings are errors."""
    filename, _, line = site.rpartition(":")
    warnings.warn_explicit(message, category, filename or site, int(line) if line.isdigit() else 0)


def report_at(site: str, message: str, category: type[Warning]) -> None:
    """Warn where nothing may be raised: a warning that became an error goes to ``sys.unraisablehook``."""
    try:
        warn_at(site, message, category)
    except Warning as error:
        unraisable(error)


def unraisable(error: BaseException) -> None:
    """Hand an exception that must not be raised to ``sys.unraisablehook``; never raises.

    The interpreter's own hook takes nothing but its own record, which Python code cannot make: its work is done here.
    """
    hook = sys.unraisablehook
    with contextlib.suppress(Exception):
        if hook is sys.__unraisablehook__:
            traceback.print_exception(type(error), error, error.__traceback__)
        else:
            hook(
                types.SimpleNamespace(
                    exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=None
                )
            )
