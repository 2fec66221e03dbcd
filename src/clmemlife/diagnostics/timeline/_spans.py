"""What a timeline is made of: frozen records, and the clock of a device in terms of the host's."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ..._block import LABEL as STAGING
from ..._journal import Access

DRIFT = 500e-6  # how fast two clocks of one machine may run apart: no slower than clocks are set right
Sample = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TimelineQueue:
    """A queue that commands of a timeline were seen on.

    Attributes
    ----------
    number : int
        In the order in which queues were first seen, from 1.
    device : str
        Name of its device.
    device_number : int
        Tells devices of one name apart, from 1, as they were first seen.
    out_of_order, profiled : bool
        What it was made with.
    clock_error : int or None
        How far the times of its device may be from those of the host, in nanoseconds; ``None`` without such times.
    """

    number: int
    device: str
    device_number: int = 1
    out_of_order: bool = False
    profiled: bool = False
    clock_error: int | None = None


@dataclass(frozen=True, slots=True)
class TimelineCommand:
    """One command. All times are nanoseconds of the host's clock since the recording began, ``None`` if not known.

    Attributes
    ----------
    number : int
        In the order of the calls, from 1; user events count too.
    kind, name : str
        ``"enqueue_kernel"`` and the kernel, ``"enqueue_copy"``, ``"map"``, ... ; ``"foreign"`` and PyOpenCL's function.
    queue : TimelineQueue
    site : str
        The caller's ``file:line``.
    thread : str
        The name of the caller's thread.
    called, returned : int
        When the call began and when it was back.
    queued, submitted, started, ended : int or None
        What the device says (``CL_PROFILING_COMMAND_*``); ``None`` where the queue has no profiling.
    seen : int or None
        When it was first seen to be at its end: at a wait or at a later call, so this may be long after the end.
    status : int or None
        0 complete, negative failed, ``None`` not at its end while it was recorded.
    waits : tuple of int
        Numbers of the commands and user events in its wait-list.
    unseen : int
        How many more events were in its wait-list, of commands that were not seen.
    accesses : tuple
        Records with ``obj``, ``label``, ``start``, ``stop`` (bytes), ``reads``, ``writes``.
    blocking : bool
        Whether the call waited for it.
    mapping : int or None
        The same number for a map and its unmap.
    """

    number: int
    kind: str
    name: str
    queue: TimelineQueue
    site: str = "?"
    thread: str = "?"
    called: int = 0
    returned: int = 0
    queued: int | None = None
    submitted: int | None = None
    started: int | None = None
    ended: int | None = None
    seen: int | None = None
    status: int | None = None
    waits: tuple[int, ...] = ()
    unseen: int = 0
    accesses: tuple[Access, ...] = ()
    blocking: bool = False
    mapping: int | None = None

    @property
    def title(self) -> str:
        """What pictures call it: the kernel, or what is done to which object."""
        if self.kind == "enqueue_kernel" and self.name:
            return self.name
        verb = self.kind.removeprefix("enqueue_")
        if self.kind == "foreign" or not self.accesses:
            return self.name or verb
        sources = ", ".join(_label(one) for one in self.accesses if one.reads)
        targets = ", ".join(_label(one) for one in self.accesses if one.writes)
        if self.kind != "enqueue_copy" or not (sources or targets):
            return f"{verb} {self.objects} {self.name}".strip()
        if sources and targets:
            return f"copy {sources} to {targets}"
        return f"copy from {sources}" if sources else f"copy to {targets}"

    @property
    def objects(self) -> str:
        """The labels of the objects that it uses."""
        return ", ".join(dict.fromkeys(_label(one) for one in self.accesses))

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.status is not None and self.status < 0


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """What is no command: a wait of the host, a user event, the host's use of a map, the life of a memory object.

    Attributes
    ----------
    kind : {"wait", "user_event", "map", "object"}
    name : str
    begin, end : int or None
        Nanoseconds as for commands; ``None`` for what began before the recording, or was not over when that ended. A
        map begins when the host may use the bytes and ends when its unmap is called; a user event begins with the
        first command that waits for it.
    site, thread : str
        Where and in which thread, as far as that is known.
    nbytes : int
        Bytes of a map or an object.
    number : int or None
        Of a user event, in the wait-lists of commands.
    of : tuple of int
        Numbers of the commands that were waited for, or of the map and its unmap.
    status : int or None
        Of a user event: what it was set to.
    """

    kind: str
    name: str
    begin: int | None
    end: int | None
    site: str = "?"
    thread: str = ""
    nbytes: int = 0
    number: int | None = None
    of: tuple[int, ...] = ()
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one moment; `live_bytes` are (time, bytes) at each change, `end` is the moment."""

    commands: tuple[TimelineCommand, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    live_bytes: tuple[tuple[int, int], ...] = ()
    dropped: int = 0
    end: int = 0

    def span(self, command: TimelineCommand) -> tuple[int, int]:
        """Return from when to when a command is drawn: as the device says, else from the call to the end as seen."""
        if command.started is not None and command.ended is not None:
            return max(0, command.started), max(0, command.started, command.ended)
        return command.called, max(command.called, self.end if command.seen is None else command.seen)


def short(site: str) -> str:
    """Return a site without its folders."""
    return os.path.basename(site)


def _label(access: Access) -> str:
    return "staging" if access.label == STAGING else access.label or f"object {access.obj}"


class Clock:
    """The clock of a device in terms of the host's.

    Each command gives a sample: the device's time when it was enqueued, and between which two values the host's clock
    was ahead of it then, since that moment lies within the call. Clocks run apart slowly, so samples that are close in
    time narrow each other. The time of the host grows with that of the device: no two commands change places.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        """Take (time of the device, least lead of the host, greatest lead of the host), in nanoseconds."""
        samples = sorted(samples)
        self._times = [time for time, _, _ in samples]
        low, high = [float(low) for _, low, _ in samples], [float(high) for _, _, high in samples]
        for here, there in [(i, i - 1) for i in range(1, len(samples))] + [
            (i, i + 1) for i in reversed(range(len(samples) - 1))
        ]:
            apart = DRIFT * abs(self._times[here] - self._times[there])
            low[here] = max(low[here], low[there] - apart)
            high[here] = min(high[here], high[there] + apart)
        self._leads = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        self.error = max((round(abs(b - a) / 2) for a, b in zip(low, high, strict=True)), default=None)

    def host(self, time: int) -> int:
        """Return the host's time at a time of the device."""
        times, leads = self._times, self._leads
        after = bisect_right(times, time)
        if after in (0, len(times)):
            return time + round(leads[0 if not after else -1])
        begin, end = times[after - 1], times[after]
        share = (time - begin) / (end - begin)
        return time + round(leads[after - 1] * (1 - share) + leads[after] * share)
