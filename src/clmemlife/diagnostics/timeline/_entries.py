"""What a recording keeps of queues, commands, user events and maps while it runs, and the frozen records made of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyopencl as cl

from ..._journal import Command
from ._spans import Clock, Sample, TimelineCommand, TimelineEvent, TimelineQueue

_PROFILE = (cl.profiling_info.QUEUED, cl.profiling_info.SUBMIT, cl.profiling_info.START, cl.profiling_info.END)
_PROFILED = cl.command_queue_properties.PROFILING_ENABLE
_OUT_OF_ORDER = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


class _Token:
    """Hangs on a queue for as long as that lives, since PyOpenCL's objects cannot be referred to weakly."""

    __slots__ = ("__weakref__",)


class Queue:
    """What is kept of a queue; never the queue. `pending` counts its commands that are not at their end."""

    __slots__ = ("device", "device_key", "number", "out_of_order", "pending", "profiled", "tokens")

    def __init__(self, number: int, key: Any, out_of_order: bool) -> None:
        device, properties = getattr(key, "device", key), getattr(key, "properties", 0)
        self.number = number
        self.device = str(getattr(device, "name", device)).strip()
        self.device_key = getattr(device, "int_ptr", device)
        self.out_of_order = out_of_order or bool(properties & _OUT_OF_ORDER)
        self.profiled = bool(properties & _PROFILED)
        self.tokens: tuple[weakref.ref[_Token], ...] = ()
        self.pending = 0

    def is_of(self, key: Any) -> bool:
        """Say whether this is the queue `key` and no earlier one of the same address."""
        if not hasattr(key, "int_ptr"):
            return True
        token = getattr(key, "_clmemlife_token", None)
        if token is None:
            token = key._clmemlife_token = _Token()
        for one in self.tokens:
            if one() is token:
                return True
        if self.tokens and not self.lives():
            return False
        self.tokens = (*[one for one in self.tokens if one() is not None], weakref.ref(token))
        return True

    def lives(self) -> bool:
        """Say whether anybody has it."""
        return self.pending > 0 or any(one() is not None for one in self.tokens)


class Entry:
    """One command; `event` only until that was seen to be at its end."""

    __slots__ = (
        "accesses", "blocking", "called", "event", "kind", "mapping", "name", "number", "profile", "queue", "returned",
        "seen", "site", "status", "thread", "unseen", "waits",
    )  # fmt: skip

    def __init__(self, command: Command, number: int, queue: Queue, called: int, returned: int, thread: str) -> None:
        self.number, self.queue, self.thread = number, queue, thread
        self.kind, self.name, self.site = command.kind, command.name, str(command.site)
        self.accesses, self.blocking, self.mapping = command.accesses, command.blocking, command.mapping
        self.called, self.returned = called, returned
        self.event: Any = command.event if hasattr(command.event, "int_ptr") else None  # others may have a stand-in
        if self.event is not None:
            queue.pending += 1
        self.waits: tuple[int, ...] = ()
        self.unseen = 0
        over = self.event is None and self.blocking
        self.seen: int | None = returned if over else None
        self.status: int | None = 0 if over else None
        self.profile: tuple[int, int, int, int] | None = None

    def settle(self, status: int | None, now: int) -> None:
        """Keep what the event says at its end."""
        self.status, self.seen = status, now
        if status == 0 and self.queue.profiled:
            with suppress(cl.Error):
                queued, submitted, started, ended = [self.event.get_profiling_info(one) for one in _PROFILE]
                self.profile = queued, submitted, started, ended

    def let_go(self) -> None:
        """Hold the event no longer."""
        if self.event is not None:
            self.event = None
            self.queue.pending -= 1

    def sample(self) -> Sample | None:
        """Return what it tells of the clock of its device, if that makes sense."""
        if self.profile is None or self.seen is None:
            return None
        queued, _, started, ended = self.profile
        if not queued or not 0 < started <= ended:
            return None  # NVIDIA's driver gives a migration, and some markers, the begin and end of another command
        if queued > started:
            return started, self.called - started, self.seen - ended
        return queued, self.called - queued, min(self.returned - queued, self.seen - ended)

    def record(self, queue: TimelineQueue, clock: Clock | None) -> TimelineCommand:
        """Return what is known now."""
        queued = submitted = started = ended = None
        if clock is not None and self.profile is not None and self.sample() is not None:
            queued, submitted, started, ended = [clock.host(one) if one else None for one in self.profile]
        return TimelineCommand(
            self.number, self.kind, self.name, queue, self.site, self.thread, self.called, self.returned,
            queued, submitted, started, ended, self.seen,
            self.status, self.waits, self.unseen, self.accesses, self.blocking, self.mapping,
        )  # fmt: skip


class User:
    """One user event; `event` only until that was seen to be set."""

    __slots__ = ("begin", "end", "event", "number", "status", "thread")

    def __init__(self, event: Any, number: int, begin: int) -> None:
        self.event, self.number, self.begin = event, number, begin
        self.end: int | None = None
        self.status: int | None = None
        self.thread = ""

    def settle(self, status: int | None, now: int) -> None:
        """Take note that it was set."""
        self.end, self.status = now, status

    def let_go(self) -> None:
        """Hold the event no longer."""
        self.event = None

    def record(self) -> TimelineEvent:
        """Return what is known now."""
        name = f"user event {self.number}"
        return TimelineEvent(
            "user_event", name, self.begin, self.end, "?", self.thread, number=self.number, status=self.status
        )


class Map:
    """The host's use of a map."""

    __slots__ = ("end", "entry", "unmap")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.unmap: int | None = None
        self.end: int | None = None

    def record(self, command: TimelineCommand) -> TimelineEvent | None:
        """Return what is known now; ``None`` where the map failed or the host may not use it yet."""
        begin = command.ended if command.ended is not None else command.seen
        if command.failed or (begin is None and self.end is None):
            return None
        if begin is None or (self.end is not None and begin > self.end):
            begin = self.end  # nobody looked at it in between
        access = command.accesses[0] if command.accesses else None
        nbytes = access.stop - access.start if access else 0
        of = (command.number,) if self.unmap is None else (command.number, self.unmap)
        return TimelineEvent("map", command.objects, begin, self.end, command.site, command.thread, nbytes, of=of)


def assemble(
    entries: Iterable[Entry], over: Iterable[TimelineEvent | User | Map]
) -> tuple[tuple[TimelineCommand, ...], tuple[TimelineEvent, ...]]:
    """Return commands and events as frozen records, all times in those of the host."""
    entries, over = list(entries), list(over)
    everything = {one.number: one for one in (*entries, *[one.entry for one in over if isinstance(one, Map)])}
    samples: dict[Any, list[Sample]] = {}
    devices: dict[Any, int] = {}
    for entry in everything.values():
        key = entry.queue.device_key
        sample = entry.sample()
        if sample is not None:
            samples.setdefault(key, []).append(sample)
    clocks = {key: Clock(some) for key, some in samples.items()}
    queues: dict[Queue, TimelineQueue] = {}
    for one in sorted({entry.queue for entry in everything.values()}, key=lambda one: one.number):
        clock = clocks.get(one.device_key) if one.profiled else None
        number = devices.setdefault(one.device_key, len(devices) + 1)
        error = None if clock is None else clock.error
        queues[one] = TimelineQueue(one.number, one.device, number, one.out_of_order, one.profiled, error)
    commands = {
        number: entry.record(queues[entry.queue], clocks.get(entry.queue.device_key))
        for number, entry in everything.items()
    }
    events = [
        one.record(commands[one.entry.number]) if isinstance(one, Map) else one.record() if isinstance(one, User)
        else one for one in over
    ]  # fmt: skip
    found = sorted((one for one in events if one is not None), key=lambda one: one.begin or 0)
    return tuple(commands[one.number] for one in entries), tuple(found)
