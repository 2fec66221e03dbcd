"""The end of things: what is done when the interpreter exits, and in the child of a fork."""

from __future__ import annotations

import atexit
import os
import time

from . import _callbacks, _inflight, _ledger

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
            mapping._end_at_exit()
    _inflight.close(max(0.0, deadline - time.monotonic()))
    entries = _ledger.entries()
    for handle in [one.owner() for one in sorted(entries, key=lambda one: (one.kind == "buffer", -one.number))]:
        if handle is not None:
            handle._end_at_exit()
    _callbacks.drain(max(0.0, deadline - time.monotonic()), final=True)


def _after_fork_in_child() -> None:
    """Disarm what was inherited: nothing of it may reach the driver from here."""
    _callbacks.after_fork_in_child()
    for entry in _ledger.entries():
        handle = entry.owner()
        if handle is not None:
            handle._disown()
    for open_map in _ledger.open_maps():
        mapping = open_map.owner()
        if mapping is not None:
            mapping._disown()
    _inflight.close(0.0)


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
