"""Which device holds what: read off the records of migrations, kernels, copies and maps.

This is the picture that follows from what commands declare, in the order in which they were enqueued. A driver may move
more (all of a buffer for a kernel that reads a part) or nothing at all (devices that share the host's memory).
"""

from __future__ import annotations

from typing import Any

import pyopencl as cl

from ..._handle import MemHandle
from ..._meminfo import locate
from .._scope import Readers, Scope
from ._moves import Move, Residency, ResidencyFinding
from ._recorder import Recorder

__all__ = ["Move", "Residency", "ResidencyFinding", "record_residency", "residency"]

_recorders: Readers[Recorder] = Readers()


class record_residency(Scope):  # noqa: N801 - used like a function, as contextlib.suppress is
    """Record where memory objects are while the block runs; `residency` asks.

    Notes
    -----
    It sees the commands of this library in all threads of the process. Blocks nest. It only looks: nothing is raised,
    `findings` tells what is wrong or needless. OpenCL specification: ``clEnqueueMigrateMemObjects``.
    """

    def __init__(self) -> None:
        self._recorder = Recorder()

    @property
    def findings(self) -> tuple[ResidencyFinding, ...]:
        """What was found so far, each once for an object and a place in the program."""
        return tuple(self._recorder.findings.values())

    @property
    def moves(self) -> tuple[Move, ...]:
        """Bytes moved between each two places, all objects together, those that are gone included."""
        return self._recorder.moves()

    def start(self) -> None:
        """Begin to listen, as entering the block does.

        Raises
        ------
        RuntimeError
            It has begun already.
        """
        _recorders.begin(self._recorder)

    def stop(self) -> None:
        """Stop listening, as leaving the block does."""
        _recorders.end(self._recorder)


def residency(mem: Any) -> Residency:
    """Return where a memory object is, as far as was recorded.

    Parameters
    ----------
    mem : MemHandle or PyOpenCL memory object
        For a part, its whole is looked at.

    Returns
    -------
    Residency

    Raises
    ------
    TypeError
        No memory object.
    RuntimeError
        Nothing is recorded.

    Notes
    -----
    Any thread; does not block. The innermost open block answers.
    """
    if not _recorders.listening:
        raise RuntimeError("residency needs records: use it within 'with clmemlife.record_residency():'")
    if not isinstance(mem, (MemHandle, cl.MemoryObjectHolder)):
        raise TypeError(f"residency takes a memory object, not {type(mem).__name__}")
    root = mem._alive().root if isinstance(mem, MemHandle) else locate(mem)[0]
    return _recorders.listening[-1].report(root.number, root.label, root.size)
