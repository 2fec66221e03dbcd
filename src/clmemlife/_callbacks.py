"""Who is told that a memory object is gone: leases of host memory end, callbacks run.

Three daemon threads, each started on first use, share the work that the driver's notice (see `_notices`) starts:

- the *reader* finds the object that a notice belongs to, and runs nothing of the user,
- the *lease* thread drops the leased objects, since even that can run a ``__del__``, which may block,
- the *callback* thread runs what ``on_destroy`` was given.

So a callback that blocks delays other callbacks only, and a finalizer that blocks delays other leases only. What is
never dropped or never run is kept: a leak is preferred to a dangling pointer.

The collector can run finalizers in the middle of any function here, and those may come back into this module:
shared state changes by single atomic steps (``list.pop``, ``SimpleQueue.put``), and the one lock is reentrant and
held for one addition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ._notices import Notices
from ._runner import Runner, report_failure
from ._site import describe

__all__ = [
    "ObjectInfo", "Watch", "after_fork_in_child", "catch_up", "drain", "leased_bytes", "outstanding", "poll", "watch",
]  # fmt: skip

_IN_HAND_SECONDS = 1.0  # a thread that reads needs far less, but may have to wait for a processor

after_callback: Callable[[], None] | None = None
"""Called on the callback thread after each callback, to flush what it enqueued."""


class ObjectInfo(NamedTuple):
    """What a callback is told about the memory object that is gone.

    Attributes
    ----------
    label : str or None
        Its name.
    size : int
        Its size in bytes.
    site : str
        Where it was created, ``file:line``.
    """

    label: str | None
    size: int
    site: str


Callback = Callable[[ObjectInfo], object]


class _Dispatcher:
    """All state of one process."""

    def __init__(self) -> None:
        self.notices = Notices()
        self.leases = Runner("leases")
        self.callbacks = Runner("callbacks")
        self.leased_bytes = 0
        self._counting = threading.RLock()

    def add_leased(self, nbytes: int) -> None:
        with self._counting:
            self.leased_bytes += nbytes

    def settle(self, deadline: float) -> bool:
        """Pass on all notices written so far and let what they start run; return whether there was anything."""
        done = self.leases.done + self.callbacks.done
        found = self.notices.read(max(0.0, deadline - time.monotonic()))
        self.leases.settle(deadline)
        self.callbacks.settle(deadline)
        return found > 0 or self.leases.done + self.callbacks.done != done

    def stop(self, deadline: float) -> None:
        self.notices.stop(deadline)
        self.leases.stop(deadline)
        self.callbacks.stop(deadline)

    def disarm_in_child(self) -> None:
        self.notices.disarm_in_child()
        self.leases.enabled = self.callbacks.enabled = False
        self._counting = threading.RLock()  # a thread that is not in the child may have held the other


class Watch:
    """One registration with the driver: all that waits for one memory object to be destroyed.

    Any thread may use it. It is held here until the notice comes, so it need not be kept.

    Attributes
    ----------
    info : ObjectInfo
        What the callbacks are told.
    dead : bool
        Whether the notice has been read: the driver has destroyed the object.
    """

    __slots__ = ("_callbacks", "_dispatcher", "_leases", "dead", "info")

    def __init__(self, dispatcher: _Dispatcher, info: ObjectInfo) -> None:
        self.info = info
        self.dead = False
        self._dispatcher = dispatcher
        self._leases: list[tuple[object, int]] = []
        self._callbacks: list[Callback] = []

    def lease(self, obj: object, nbytes: int) -> None:
        """Keep `obj` alive until the driver has destroyed the memory object; `nbytes` is for statistics."""
        self._dispatcher.leases.start()
        self._dispatcher.add_leased(nbytes)
        self._leases.append((obj, nbytes))
        if self.dead:
            self._pass_on()

    def call(self, fn: Callback) -> None:
        """Run ``fn(info)`` once, on the callback thread, when the object is destroyed; last added runs first.

        It may block, use OpenCL and raise: that becomes a `CleanupWarning`. Added to a dead object it runs at once.
        """
        self._dispatcher.callbacks.start()
        self._callbacks.append(fn)
        if self.dead:
            self._pass_on()

    def notice(self) -> None:
        """Pass on what waited: the object is gone."""
        self.dead = True
        self._pass_on()

    def _pass_on(self) -> None:
        # No local name may refer to a leased object or to a callback: its last reference must go on its own thread.
        dispatcher = self._dispatcher
        try:
            while self._leases:
                entry = [self._leases.pop()]
                dispatcher.add_leased(-entry[0][1])
                dispatcher.leases.put(entry.clear)
        except IndexError:  # another thread took the last one
            pass
        try:
            while self._callbacks:
                dispatcher.callbacks.put(partial(_run_callback, [self._callbacks.pop()], self.info))
        except IndexError:
            pass


def _run_callback(holder: list[Callback], info: ObjectInfo) -> None:
    fn = holder.pop()
    for step in (partial(fn, info), after_callback):
        try:
            if step is not None:
                step()
        except BaseException as error:  # also SystemExit: the thread serves others
            report_failure(
                f"the on_destroy callback {getattr(fn, '__qualname__', repr(fn))} of "
                f"{describe(info.label, info.size, info.site)} raised {type(error).__name__}: {error}",
                error,
                getattr(fn, "__code__", None),
            )


_dispatcher = _Dispatcher()
_inherited: list[_Dispatcher] = []


def watch(ptr: int, info: ObjectInfo) -> Watch:
    """Register a living memory object with the driver; the caller holds a reference to it.

    Never blocks. Any thread may call it, a finalizer too. An object watched twice has two registrations, whose
    callbacks run in no certain order between the two.

    Raises
    ------
    CallError
        ``clSetMemObjectDestructorCallback`` failed; nothing is recorded.
    OSError
        Another pipe was needed and could not be opened; nothing is recorded.
    """
    result = Watch(_dispatcher, info)
    _dispatcher.notices.register(ptr, result)
    return result


def poll(timeout_seconds: float = 0.0) -> int:
    """Pass on the notices written so far; return how many.

    Does not wait, unless told to wait so long for a thread that is just reading them. It runs nothing of the user:
    leases and callbacks go to their threads.
    """
    return _dispatcher.notices.read(timeout_seconds)


def catch_up() -> int:
    """Pass on the notices written so far, also those that another thread has in hand just now; return how many."""
    return poll(_IN_HAND_SECONDS)


def leased_bytes() -> int:
    """Return how many bytes of host memory are kept for memory objects that are not destroyed."""
    return _dispatcher.leased_bytes


def outstanding() -> int:
    """Return how many registrations still wait for their notice."""
    return _dispatcher.notices.outstanding()


def drain(timeout_seconds: float, *, grace_seconds: float = 0.25, final: bool = False) -> int:
    """Wait until each notice written so far has been read and its callbacks have run.

    Parameters
    ----------
    timeout_seconds : float
        Upper limit of the wait. A callback that runs longer goes on without us; if `final`, it is interrupted with
        a ``SystemExit`` (reported as usual), which takes half a second more at most, and the rest is skipped.
    grace_seconds : float
        How long to wait for one more notice while registrations are outstanding: a driver may destroy objects on
        a thread of its own, shortly after the last release.
    final : bool
        Stop the threads afterwards, so that nothing wakes up while the interpreter ends. The pipes stay open, since
        the driver may still write; later notices are read by `poll` and `drain` only.

    Returns
    -------
    int
        How many registrations are still outstanding: their objects are alive.

    Notes
    -----
    Where no thread can be started (Python 3.12 and later at exit) and none runs yet, callbacks run on the calling
    thread, and the limit is looked at between two of them.
    """
    dispatcher = _dispatcher
    quiet_since = time.monotonic()
    deadline = quiet_since + timeout_seconds
    while True:
        before = dispatcher.notices.outstanding()
        busy = dispatcher.settle(deadline)
        now, left = time.monotonic(), dispatcher.notices.outstanding()
        if now >= deadline:
            break
        if busy or left < before:  # the reader took a notice meanwhile: what it started may not have run
            quiet_since = now
        elif not left or now - quiet_since >= grace_seconds:
            break
        else:
            time.sleep(0.001)
    if final:
        dispatcher.stop(deadline)
    return dispatcher.notices.outstanding()


def after_fork_in_child() -> None:
    """Begin anew in a forked child: registrations and notices are the parent's.

    What was leased stays alive for ever, since the child's copy of the driver may still use it.
    """
    global _dispatcher
    _dispatcher.disarm_in_child()
    _inherited.append(_dispatcher)
    _dispatcher = _Dispatcher()
