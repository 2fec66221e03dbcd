"""Who did what when: `record_timeline`, as data, as a trace for Perfetto, as a graph, as a picture."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ... import _ledger
from .. import _hooks
from .._scope import Readers, Scope
from . import _ended
from ._graph import dot
from ._picture import draw
from ._recording import Recording
from ._spans import Snapshot, TimelineCommand, TimelineEvent, TimelineQueue
from ._trace import trace

__all__ = ["TimelineCommand", "TimelineEvent", "TimelineQueue", "record_timeline"]

_recordings: Readers[Recording] = Readers()


class record_timeline(Scope):  # noqa: N801 - used like a function, as contextlib.suppress is
    """Record while the block runs when commands ran, what they waited for, and what the host did meanwhile.

    Parameters
    ----------
    limit : int
        How many commands, and how many other events, are kept; then the oldest go and are counted in `dropped`. One
        takes about 1 KB.

    Raises
    ------
    ValueError
        A `limit` below 1.

    Notes
    -----
    Any thread; it sees all threads of the process, the commands of this library, and those of raw PyOpenCL as far as
    its functions are called through the ``pyopencl`` module. Blocks nest. It never blocks and enqueues nothing, and it
    keeps no queue and no memory object: an event is held until it was seen to be at its end, no longer than the block.
    What is not at its end by then stays so.

    Times are nanoseconds of the host's clock since the block began. Where a queue has profiling
    (``PROFILING_ENABLE``), begin and end are those of the device, brought to the host's clock: the device's time at
    which each command was queued lies within the call that enqueued it, as the host's clock has it.
    `TimelineQueue.clock_error` says how far that may be off. Without profiling there are only the call and the moment
    when the end was seen, at a wait or a later call. OpenCL specification: "Profiling Operations on Memory Objects and
    Kernels", ``clGetEventProfilingInfo``.
    """

    def __init__(self, *, limit: int = 50_000) -> None:
        if limit < 1:
            raise ValueError(f"at least one command is kept, not {limit}")
        self._limit = limit
        self._recording: Recording | None = None

    def start(self) -> None:
        """Begin to record, as entering the block does; what was recorded before is forgotten."""
        self.stop()
        recording = self._recording = Recording(self._limit)
        _hooks.install()
        _ledger.observe(recording)
        _recordings.begin(recording)
        recording.begin()

    def stop(self) -> None:
        """Stop recording, as leaving the block does; a second call does nothing."""
        recording = self._recording
        if recording is not None and _recordings.end(recording):
            _ledger.unobserve(recording)
            _hooks.uninstall()
            recording.close()
            if not _recordings.listening:
                _ended.clear()

    # -- what was recorded ---------------------------------------------------------------------------------------------

    @property
    def commands(self) -> tuple[TimelineCommand, ...]:
        """The commands, in the order of the calls."""
        return self._snapshot().commands

    @property
    def events(self) -> tuple[TimelineEvent, ...]:
        """Waits of the host, user events, maps, memory objects, in the order of their begins."""
        return self._snapshot().events

    @property
    def live_bytes(self) -> tuple[tuple[int, int], ...]:
        """How many bytes the live handles stood for at each change: (nanoseconds, bytes)."""
        return self._snapshot().live_bytes

    @property
    def dropped(self) -> int:
        """How many commands and events went because of `limit`."""
        return self._snapshot().dropped

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that https://ui.perfetto.dev and ``chrome://tracing`` show (Trace Event Format, JSON).

        Parameters
        ----------
        path : path
            Written anew.

        Notes
        -----
        One row for each queue, each thread of the host, user events, maps, and memory objects, in lanes where they
        overlap; arrows for wait-lists; the live bytes as a counter. What has no times of the device is in the category
        ``not profiled``.
        """
        Path(path).write_text(json.dumps(trace(self._snapshot()), separators=(",", ":")), encoding="utf-8")

    def to_dot(self) -> str:
        """Return the dependency graph in the DOT language of Graphviz.

        Returns
        -------
        str
            For ``dot -Tsvg``, say.

        Notes
        -----
        Boxes are commands, by queue; solid arrows wait-lists, dashed ones the order of an in-order queue, dotted ones
        lead from a map to its unmap. What the host has waited for is not in it.
        """
        return dot(self._snapshot())

    def plot(self, path: str | os.PathLike[str] | None = None, *, axes: Any = None) -> Any:
        """Draw the queues over time, the host and its maps, and below them the live bytes.

        Parameters
        ----------
        path : path, optional
            Where to save it, in the format of its suffix. An SVG has the same bytes for the same records.
        axes : Axes or pair of Axes, optional
            Where to draw instead of in a new figure: rows, and live bytes.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            Matplotlib is missing: it comes with the extra ``plot``.

        Notes
        -----
        Colours of text and background are those of Matplotlib's settings (``matplotlib.style``).
        """
        return draw(self._snapshot(), path, axes)

    def _snapshot(self) -> Snapshot:
        return Snapshot() if self._recording is None else self._recording.snapshot()
