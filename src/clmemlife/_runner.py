"""Daemon threads that are started on first use, and what becomes of an exception where nothing can be raised."""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import CodeType

from . import _opencl
from .exceptions import CleanupWarning

__all__ = ["GATHER_SECONDS", "Runner", "Starter", "report_failure"]

GATHER_SECONDS = 0.001
"""How long a thread that was woken waits for more: one wake-up for each object would cost the others dearly."""

_INTERRUPT_SECONDS = 0.5


def report_failure(message: str, error: BaseException, code: CodeType | None = None) -> None:
    """Emit a `CleanupWarning` caused by `error`; where it cannot be shown, hand it to ``threading.excepthook``.

    Parameters
    ----------
    message : str
        What failed, on which object.
    error : BaseException
        Becomes the ``__cause__`` of the warning.
    code : CodeType, optional
        The code that the warning is to point at.
    """
    warning = CleanupWarning(message)
    warning.__cause__ = error
    where = (code.co_filename, code.co_firstlineno) if code is not None else ("<clean-up>", 1)
    try:
        # With a registry that lasts, the second of two equal texts would be swallowed.
        warnings.warn_explicit(warning, CleanupWarning, *where, registry={})
    except BaseException as raised:  # warnings are errors, or the hook that shows them fails
        _hand_to_hook(raised)


def _hand_to_hook(error: BaseException) -> None:
    arguments = (type(error), error, error.__traceback__, threading.current_thread())
    with suppress(BaseException):
        threading.excepthook(threading.ExceptHookArgs(arguments))


class Starter:
    """Start a daemon thread once, without a lock that a finalizer on the same thread could wait for.

    Attributes
    ----------
    enabled : bool
        False stops further starts; the thread itself may look at it.
    """

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.enabled = True
        self.thread: threading.Thread | None = None
        self._name = name
        self._target = target
        self._starting = threading.Lock()

    def start(self) -> bool:
        """Return whether the thread runs; it may not start for want of memory, or while the interpreter ends."""
        if self.thread is None and self.enabled and self._starting.acquire(blocking=False):
            try:
                thread = threading.Thread(target=self._target, name=f"clmemlife-{self._name}", daemon=True)
                thread.start()
                self.thread = thread
            except (RuntimeError, MemoryError):
                self._starting.release()
        return self.thread is not None and self.enabled

    def join(self, deadline: float) -> None:
        """Wait for the end of the thread, at most until `deadline` of ``time.monotonic``."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(max(0.0, deadline - time.monotonic()))


class Runner(Starter):
    """A thread that runs tasks in the order in which they were put.

    Attributes
    ----------
    done : int
        How many tasks have run.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, self._run)
        self.done = 0
        self._skip = False
        self._tasks: queue.SimpleQueue[Callable[[], object] | threading.Event | None] = queue.SimpleQueue()

    def put(self, task: Callable[[], object]) -> None:
        """Have `task` run; never blocks, and may be called from a finalizer."""
        self._tasks.put(task)
        self.start()

    def settle(self, deadline: float) -> None:
        """Wait until all that was put before has run, at most until `deadline`; run it here if there is no thread."""
        if self.thread is threading.current_thread():
            return
        if self.start():
            marker = threading.Event()
            self._tasks.put(marker)
            marker.wait(max(0.0, deadline - time.monotonic()))
            return
        while time.monotonic() < deadline and not self._tasks.empty():
            self._step(block=False)

    def stop(self, deadline: float) -> None:
        """End the thread when it has run what was put before; after `deadline`, interrupt what runs and skip the rest.

        A thread that comes back from an OpenCL call while the interpreter ends would abort the process (up to Python
        3.13 it is ended by ``pthread_exit``, which C++ destructors do not survive). So a task that runs too long
        gets a ``SystemExit``, at the latest half a second after `deadline`. One that is blocked does not see it.
        """
        self.enabled = False
        self._tasks.put(None)
        self.join(deadline)
        if self.thread is None or self.thread is threading.current_thread():
            return
        self._skip = True
        interrupt_until = max(deadline, time.monotonic()) + _INTERRUPT_SECONDS
        while self.thread.is_alive() and time.monotonic() < interrupt_until:
            _opencl.raise_in_thread(self.thread.ident or 0, SystemExit)
            self.thread.join(_INTERRUPT_SECONDS / 5)  # less could hit the report of the first

    def _run(self) -> None:
        while not self._skip and self._step(block=self._tasks.empty()):
            pass

    def _step(self, block: bool) -> bool:
        try:
            task = self._tasks.get(block)
        except queue.Empty:  # `settle` on another thread was faster
            return True
        if block and task is not None:
            time.sleep(GATHER_SECONDS)
        if isinstance(task, threading.Event):
            task.set()
        elif task is not None:
            try:
                task()
            except BaseException as error:  # the thread serves others
                _hand_to_hook(error)
            self.done += 1
        return task is not None
