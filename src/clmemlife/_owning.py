"""The reference of one handle: how it is taken from the driver and given back, without the handle itself."""

from __future__ import annotations

from . import _ledger, _opencl
from ._site import describe, report_at
from .exceptions import CallError, CleanupWarning, LeakWarning


def take(entry: _ledger.Entry) -> None:
    """Take the reference of a new handle; for a part also one to its root, all or nothing.

    A root without a reference of its own is alive as long as a part of it is, but some drivers (the Intel CPU
    runtime) refuse its address then, for queries and for further parts.
    """
    _opencl.retain_mem_object(entry.int_ptr)
    try:
        if entry.root.int_ptr != entry.int_ptr:
            _opencl.retain_mem_object(entry.root.int_ptr)
    except BaseException:
        problem = _release(entry.int_ptr, entry, "")
        if problem:  # must not hide what was first
            report_at(entry.site, problem, CleanupWarning)
        raise
    entry.held = entry.int_ptr


def give_back(int_ptr: int, entry: _ledger.Entry) -> str | None:
    """Give back what was taken; return what went wrong as text."""
    if entry.root.int_ptr == int_ptr:
        return _release(int_ptr, entry, "")
    problems = _release(int_ptr, entry, ""), _release(entry.root.int_ptr, entry, "the root of ")
    return "; ".join(filter(None, problems)) or None


def _release(int_ptr: int, entry: _ledger.Entry, of: str) -> str | None:
    try:
        _opencl.release_mem_object(int_ptr)
    except CallError as error:
        return f"{error} for {of}{describe(entry.label, entry.size, entry.site, entry.kind)}"
    return None


def collected(entry: _ledger.Entry) -> None:
    """Release for a handle that nobody released; then say so.

    In a cycle this comes before the ``__del__`` of others, which may still use the handle: hence `Entry.held`.
    """
    int_ptr, entry.held = entry.held, None
    if int_ptr is None:
        return
    _ledger.remove(entry)
    _ledger.lose(entry)
    problem = give_back(int_ptr, entry)
    text = describe(entry.label, entry.size, entry.site, entry.kind)
    report_at(entry.site, f"{text} was collected without release(); it is released now, use 'with'", LeakWarning)
    if problem:
        report_at(entry.site, problem, CleanupWarning)
