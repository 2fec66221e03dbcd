"""Words for messages: where in the user's program, which object; and warnings that are never lost."""

from __future__ import annotations

import os
import sys
import types
import warnings

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def caller_site() -> str:
    """Return ``file:line`` of the innermost caller that is not code of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def describe(label: str | None, size: int, site: str, kind: str = "memory object") -> str:
    """Return how messages name an object: label, size, creation site."""
    return f"{repr(label) if label else 'unlabelled ' + kind} ({size} bytes, created at {site})"


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
    """Hand an exception that must not be raised to ``sys.unraisablehook``."""
    sys.unraisablehook(
        types.SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=None
        )
    )
