"""The end of things: what is done when the interpreter exits, and in the child of a fork."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from typing import Any

from . import _callbacks, _commands, _foreign, _hostmem, _inflight, _journal, _ledger, _staging
from ._owning import give_back
from ._site import report_at

EXIT_TIMEOUT_SECONDS = 2.0
"""How long, all together, exit waits for queued commands and callbacks (``CLMEMLIFE_EXIT_TIMEOUT`` overrides)."""


def _timeout() -> float:
    try:
        return max(0.0, float(os.environ["CLMEMLIFE_EXIT_TIMEOUT"]))
    except (KeyError, ValueError):
        return EXIT_TIMEOUT_SECONDS


def close() -> None:
    """End everything that is left, in a safe order: maps, queued commands, parts before wholes, callbacks.

    Runs once, at exit, early in the shutdown of the interpreter; afterwards no finalizer of ours has anything left
    to do. What the driver has not completed within the limit is kept for ever: its destructors would wait.
    """
    deadline = time.monotonic() + _timeout()
    for entry in _ledger.open_maps():
        mapping = entry.owner()
        if mapping is not None:
            try:
                mapping._end()
            except Exception:  # the program is over, and nothing can be said to anybody
                mapping._finalizer.detach()
                mapping._open.forget()
    _inflight.close(max(0.0, deadline - time.monotonic()))
    _staging.close()
    entries = _ledger.entries()
    for handle in [one.owner() for one in sorted(entries, key=lambda one: (one.kind == "buffer", -one.number))]:
        int_ptr = None if handle is None else handle._disarm("released at exit")
        if int_ptr is not None:
            give_back(int_ptr, handle._entry)  # nothing can be said to anybody
    _callbacks.drain(max(0.25, deadline - time.monotonic()), final=True)


_collecting = False


def _before_fork() -> None:
    """Keep the collector from handles and maps until the child knows that they are its parent's."""
    global _collecting
    if gc.isenabled():
        _collecting = True
        gc.disable()


def _after_fork() -> None:
    global _collecting
    if _collecting:
        _collecting = False
        gc.enable()


def _after_fork_in_child() -> None:
    """Disarm what was inherited: nothing of it may reach the driver from here."""
    _journal.after_fork_in_child()
    _callbacks.after_fork_in_child()
    entries, open_maps = _ledger.forget_all()
    _commands.renew_locks()
    for entry in entries:
        handle = entry.owner()
        if handle is not None:
            handle._lock = threading.RLock()
            handle._disarm("inherited by fork")
    _hostmem.forget()
    _staging.after_fork_in_child()
    _foreign.after_fork_in_child()
    _inflight.close(0.0)
    for open_map in open_maps:
        mapping = open_map.owner()
        if mapping is not None:
            mapping._lock = threading.RLock()
            mapping._finalizer.detach()
            mapping._open.forget()


def _tell_what_is_left() -> None:
    """Say what was neither released nor unmapped, once, before `close` does it."""
    from .diagnostics.leaks import report

    left = report()
    if left.records and sys.stderr is not None:
        sys.stderr.write(f"clmemlife: left at exit; {left}\n")


_CHECKS: dict[str, Any] = {
    "hazards": "warn", "hazards:raise": "raise", "hazards:warn": "warn", "hazards:record": "record", "leaks": "",
}  # fmt: skip


def _check_as_told() -> None:
    """Start what ``CLMEMLIFE_CHECK`` asks for: checks of the program (``hazards``), a word at its end (``leaks``)."""
    wanted = [word.strip() for word in os.environ.get("CLMEMLIFE_CHECK", "").split(",")]
    unknown = [word for word in wanted if word and word not in _CHECKS]
    modes = [_CHECKS[word] for word in wanted if _CHECKS.get(word)]
    if "leaks" in wanted:
        atexit.register(_tell_what_is_left)
    if modes:
        from .diagnostics.hazards.checking import check_program

        check_program(modes[-1])
    if unknown:
        text = f"CLMEMLIFE_CHECK asks for {', '.join(map(repr, unknown))}, which means nothing; known are "
        report_at("CLMEMLIFE_CHECK:0", text + ", ".join(_CHECKS), RuntimeWarning)


atexit.register(close)
_check_as_told()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
    os.register_at_fork(after_in_child=_after_fork)
