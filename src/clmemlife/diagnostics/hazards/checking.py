"""The hazard checker as a scope: `check_hazards`, and what may be asked of it."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Collection, Iterable
from typing import Any

import pyopencl as cl

from ..._access import Declared
from ..._handle import MemHandle
from ..._journal import Access
from ..._site import caller_site, plural
from ..._submit import describe_queue, whole
from .. import _hooks
from .._scope import Readers, Scope
from . import Checker, Finding, Mode

__all__ = ["check_hazards", "declare", "dependencies", "explain"]

_checkers: Readers[Checker] = Readers()


class check_hazards(Scope):  # noqa: N801 - used like a function, as contextlib.suppress is
    """Check, while the block runs, that an event orders any two uses of the same bytes of which one writes.

    Parameters
    ----------
    mode : {"raise", "warn", "record"}
        `UnorderedAccessError` before the second command is enqueued; `HazardWarning`; or only `findings`.
    suppress : collection of str
        Keys of findings (`Finding.key`) that are not wanted.

    Notes
    -----
    It sees all threads of the process. Blocks nest; each has its own findings. Commands of raw PyOpenCL are not seen
    unless `declare` names them; where the host waits for raw events is. What hangs on a user event is judged when that
    is set, at the latest when the block ends. OpenCL specification: "Execution Model: Synchronization".
    """

    def __init__(self, mode: Mode = "raise", *, suppress: Collection[str] = ()) -> None:
        self._checker = Checker(mode, suppress)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, each missing edge once."""
        return self._checker.findings

    def start(self) -> None:
        """Begin to listen, as entering the block does.

        Raises
        ------
        RuntimeError
            It has begun already.
        """
        _checkers.begin(self._checker)
        _hooks.install()

    def stop(self) -> None:
        """Stop listening and judge what still hangs on a user event, as leaving the block does."""
        if _checkers.end(self._checker):
            _hooks.uninstall()
            self._checker.close()


def check_program(mode: Mode) -> None:
    """Check all that comes, until the interpreter exits; then tell what was only recorded."""
    scope = check_hazards(mode)
    scope.start()
    atexit.register(_end_of_program, scope, mode, os.getpid())


def _end_of_program(scope: check_hazards, mode: Mode, pid: int) -> None:
    if os.getpid() != pid:  # forked: nobody listens here, and what was found is the parent's to tell
        return
    scope.stop()
    if mode == "record" and scope.findings and sys.stderr is not None:
        found = "\n\n".join(f"{one}\n  met {plural(one.count, 'time')}" for one in scope.findings)
        sys.stderr.write(f"clmemlife: found {plural(len(scope.findings), 'hazard')}\n\n{found}\n")


def dependencies(*, reads: Iterable[Any] = (), writes: Iterable[Any] = ()) -> list[cl.Event]:
    """Return the smallest list of events that orders such an access: what one writes into ``wait_for``.

    Parameters
    ----------
    reads, writes : iterable of MemHandle, PyOpenCL memory object, or In/Out/InOut (for a range)

    Returns
    -------
    list of pyopencl.Event
        Empty if nothing has to be waited for.

    Raises
    ------
    RuntimeError
        No checker is listening (no `ClMemLifeError`: the program asked where there is nothing to ask).
    MapConflictError
        The host has the bytes mapped; no event can order that.

    Notes
    -----
    Any thread; does not block. The innermost open block answers.
    """
    return _listening("dependencies").dependencies(_accesses(reads, False), _accesses(writes, True))


def declare(
    event: cl.Event,
    *,
    reads: Iterable[Any] = (),
    writes: Iterable[Any] = (),
    queue: cl.CommandQueue | None = None,
) -> None:
    """Tell the checker what a command that raw PyOpenCL or another library enqueued does.

    Parameters
    ----------
    event : pyopencl.Event
        Of that command; call this right after it was enqueued.
    reads, writes
        As for `dependencies`.
    queue : pyopencl.CommandQueue, optional
        Its queue, where the event does not know it.

    Raises
    ------
    TypeError
        No event; no memory objects.
    RuntimeError
        No checker is listening (no `ClMemLifeError`: the program asked where there is nothing to ask).
    UnorderedAccessError
        In mode "raise", where that command is not ordered.

    Notes
    -----
    Any thread; does not block.
    """
    _listening("declare")
    if not isinstance(event, cl.Event):
        raise TypeError(f"declare takes the event of a command, not {type(event).__name__}")
    queue = event.command_queue if queue is None else queue
    key, out_of_order = (None, False) if queue is None else describe_queue(queue)
    for checker in list(_checkers.listening):
        checker.declare(
            event,
            _accesses(reads, False),
            _accesses(writes, True),
            queue=key,
            out_of_order=out_of_order,
            site=caller_site(),
        )


def explain(mem: Any) -> str:
    """Tell the recent uses of a memory object.

    Parameters
    ----------
    mem : MemHandle or PyOpenCL memory object

    Returns
    -------
    str
        A line for each use, oldest first.

    Raises
    ------
    RuntimeError
        No checker is listening (no `ClMemLifeError`: the program asked where there is nothing to ask).
    TypeError
        Not a memory object.

    Notes
    -----
    Any thread; does not block.
    """
    checker = _listening("explain")
    if not isinstance(mem, (MemHandle, cl.MemoryObjectHolder)):
        raise TypeError(f"explain takes a memory object, not {type(mem).__name__}")
    return checker.explain(whole(mem, reads=True, writes=True).root.number)


def _listening(name: str) -> Checker:
    if not _checkers.listening:
        raise RuntimeError(f"{name} needs a checker that listens: use it within 'with clmemlife.check_hazards():'")
    return _checkers.listening[-1]


def _accesses(things: Any, writes: bool) -> list[Access]:
    found = []
    if not isinstance(things, (MemHandle, Declared, cl.MemoryObjectHolder, Iterable)):
        raise TypeError(f"reads and writes take memory objects, not {type(things).__name__}")
    for thing in [things] if isinstance(things, (MemHandle, Declared, cl.MemoryObjectHolder)) else things:
        mem = thing.mem if isinstance(thing, Declared) else thing
        if not isinstance(mem, (MemHandle, cl.MemoryObjectHolder)):
            raise TypeError(f"reads and writes take memory objects, not {type(mem).__name__}")
        use = whole(mem, reads=not writes, writes=writes)
        if isinstance(thing, Declared):
            use.start += thing.offset
            use.stop = use.start + thing.size
        found.append(use.record())
    return found
