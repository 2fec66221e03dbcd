"""Other orders of the same commands: `Chaos` holds some back, `Serializer` finishes each before the next.

Both change nothing but the moment at which a command begins, within what its wait-list and its queue allow. Commands of
raw PyOpenCL come by way of `interception`, those of this library by its seam to the driver.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from .. import _opencl
from .._settings import MILLISECONDS
from .._submit import describe_queue
from . import interception
from ._pauses import Pauses, pending

__all__ = ["Chaos", "Serializer"]

_WAITS = {
    "enqueue_nd_range_kernel": 5, "enqueue_fill_buffer": 5, "enqueue_fill_image": 5, "enqueue_svm_memfill": 4,
    "enqueue_map_buffer": 8, "enqueue_map_image": 9, "enqueue_unmap_mem_object": 2, "enqueue_migrate_mem_objects": 3,
    "enqueue_read_buffer": 5, "enqueue_write_buffer": 5, "enqueue_copy": None,
}  # fmt: skip
"""Where the wait-list stands among the arguments of `_opencl`; the flag of a map that blocks comes after it."""

_USER = cl.command_type.USER


class _Scope:
    """Have a say about each command that does not block, before and after it is enqueued."""

    def start(self) -> None:
        """Begin."""
        self._originals = {name: getattr(_opencl, name) for name in _WAITS}
        for name, original in self._originals.items():
            setattr(_opencl, name, self._around(name, original))
        self._hooks = interception.rewrite_waits, interception.after_enqueue
        interception.rewrite_waits, interception.after_enqueue = self.before, self.after

    def stop(self) -> None:
        """End; what was put in place of other functions goes."""
        for name, original in self._originals.items():
            setattr(_opencl, name, original)
        interception.rewrite_waits, interception.after_enqueue = self._hooks

    def before(self, queue: cl.CommandQueue, events: list[cl.Event], name: str) -> list[cl.Event]:
        """Return the wait-list that the driver gets; it has all of `events`."""
        return events

    def after(self, queue: cl.CommandQueue, event: cl.Event) -> None:
        """Do something about a command that is enqueued."""

    def _around(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        place = _WAITS[name]
        queue_place = 1 if name == "enqueue_unmap_mem_object" else 0

        @functools.wraps(original)
        def enqueue(*arguments: Any, **where: Any) -> Any:
            blocks = where.get("is_blocking") or (place in (8, 9) and arguments[place + 1])
            if not blocks:
                queue = arguments[queue_place]
                events = where["wait_for"] if place is None else arguments[place]
                events = self.before(queue, list(events or ()), name) or None
                if place is None:
                    where["wait_for"] = events
                else:
                    arguments = (*arguments[:place], events, *arguments[place + 1 :])
            result = original(*arguments, **where)
            if not blocks:
                self.after(queue, result[1] if isinstance(result, tuple) else result)
            return result

        return enqueue


class Chaos(_Scope):
    """Hold commands back, and let later ones overtake them: what is not ordered by an event shows by wrong data.

    The first command on idle queues is held back for most of `milliseconds`. While that lasts, commands elsewhere may
    pass, or are held back for a shorter time, or, where they wait for an event, for some time after that event. The
    same seed holds back the same commands of the same program.

    Notes
    -----
    Nothing is held back where the device runs too few commands at once, or cannot build a kernel. Commands that block
    are not, since that would only make others come first. User events of the program keep their meaning.
    """

    def __init__(self, seed: int | str, milliseconds: float = MILLISECONDS) -> None:
        self.reseed(seed)
        self.held_back = 0
        self._longest = milliseconds / 1e3
        self._pauses: dict[tuple[int, int], Pauses | None] = {}
        self._held: dict[cl.CommandQueue, cl.Event] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def reseed(self, seed: int | str) -> None:
        """Go on as another `Chaos` would begin."""
        self.seed = seed
        self._random = random.Random(seed)

    def stop(self) -> None:
        """End; wait until nothing is held back."""
        super().stop()
        for pauses in self._pauses.values():
            if pauses is not None and self._pid == os.getpid():
                pauses.settle()
        self._pauses.clear()
        self._held.clear()

    def before(self, queue: cl.CommandQueue, events: list[cl.Event], name: str) -> list[cl.Event]:
        """Return `events`, and maybe that of a pause. A fault in here holds nothing back, and breaks nothing."""
        if self._pid != os.getpid() or not self._lock.acquire(blocking=False):  # a fork; a finalizer, another thread
            return events
        try:
            pause = self._pause(queue, events)
        except Exception:
            return events
        finally:
            self._lock.release()
        return events if pause is None else [*events, pause]

    def _pause(self, queue: cl.CommandQueue, events: list[cl.Event]) -> cl.Event | None:
        key, out_of_order = describe_queue(queue)
        held = self._held = {one: event for one, event in self._held.items() if pending(event)}
        chance, share = self._random.random(), self._random.random()
        if key in held and not out_of_order:
            return None
        waits = [one for one in events if pending(one)]
        if any(one.command_type == _USER for one in waits):
            return None
        if waits:
            wanted, length = chance < 0.5, 0.3 + 0.7 * share
        elif held:
            wanted, length = chance < 0.25, 0.05 + 0.3 * share
        else:
            wanted, length = True, 0.6 + 0.4 * share
        pauses = self._pauses_of(queue) if wanted else None
        pause = pauses.enqueue(length * self._longest, waits) if pauses is not None else None
        if pause is not None:
            held[key] = pause
            self.held_back += 1
        return pause

    def _pauses_of(self, queue: cl.CommandQueue) -> Pauses | None:
        context = queue.context
        places = [(context.int_ptr, one.int_ptr) for one in (queue.device, *context.devices)]
        if places[0] not in self._pauses:
            self._pauses.update(dict.fromkeys(places))  # what fails now is not tried again
            for place, device in zip(places, (queue.device, *context.devices), strict=True):
                self._pauses[place] = self._pauses[place] or Pauses(context, device)  # all now, while nothing is held
        return self._pauses[places[0]]


class Serializer(_Scope):
    """Wait after each command until it is complete: if a fault goes away by it, an event is missing.

    A command that hangs on a user event not yet set is not waited for, nor is what comes after it in its queue or waits
    for it: the program could not go on to set that event.
    """

    def __init__(self) -> None:
        self._hanging: list[tuple[cl.CommandQueue, cl.Event]] = []
        self._now = threading.local()

    def before(self, queue: cl.CommandQueue, events: list[cl.Event], name: str) -> list[cl.Event]:
        """Note whether the command hangs on a user event."""
        self._hanging = [one for one in self._hanging if pending(one[1])]
        gated = any(one.command_type == _USER and pending(one) for one in events)
        known = [one for _, one in self._hanging]
        self._now.hangs = gated or any(one in known for one in events) or any(queue == one for one, _ in self._hanging)
        return events

    def after(self, queue: cl.CommandQueue, event: cl.Event) -> None:
        """Wait for the command."""
        if getattr(self._now, "hangs", True):
            self._hanging.append((queue, cl.Event.from_int_ptr(event.int_ptr, True)))
            return
        _opencl.flush(queue)
        while pending(event):
            time.sleep(0.00005)
