"""The listener behind `record_timeline`: it keeps numbers and text, and events only until they are at their end."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from ... import _journal, _ledger, _opencl
from ..._journal import Command
from ._awaited import Awaited
from ._entries import Entry, Map, Queue, User, assemble
from ._spans import Snapshot, TimelineEvent

_A_FEW, _MANY = 4, 256  # pending commands that are looked at after a call, and after a wait
_SLACK = 64


class Recording:
    """A listener of the journal and an observer of the ledger.

    What comes is put in a line, with its time, and worked off by whoever finds the lock free: nobody waits, and what a
    garbage collection does in between gets its turn.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._dropped = limit, 0
        self._origin, self._end = perf_counter_ns(), -1
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._numbers, self._queue_numbers = itertools.count(1), itertools.count(1)
        self._calls: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, _journal.HostWait, str]] = {}  # by thread
        self._entries: deque[Entry] = deque()
        self._over: deque[TimelineEvent | User | Map] = deque()
        self._bytes: deque[tuple[int, int]] = deque(maxlen=limit)
        self._events = Awaited(self._now, self._finish)
        self._queues: dict[Hashable, Queue] = {}
        self._queues_at = _SLACK
        self._maps: dict[int, Map] = {}
        self._objects: dict[int, TimelineEvent] = {}

    def _now(self) -> int:
        return perf_counter_ns() - self._origin

    # -- what the journal and the ledger call --------------------------------------------------------------------------

    def before(self, command: Command) -> None:
        """Take the time."""
        self._calls[id(command)] = self._now()

    def abandoned(self, command: Command) -> None:
        """Forget a command that the driver refused."""
        self._calls.pop(id(command), None)

    def after(self, command: Command) -> None:
        """Take note of a command."""
        returned = self._now()
        called = self._calls.pop(id(command), returned)
        self._take(self._command, command, called, returned, threading.current_thread().name)

    def host(self, record: _journal.HostRecord) -> None:
        """Take note of what the host did."""
        if isinstance(record, (_journal.HostWait, _journal.UserEventSet)):
            thread = threading.current_thread()
            self._take(self._host, record, self._now(), thread.ident, thread.name)

    def _added(self, entry: _ledger.Entry) -> None:
        """Take note of a new object; what is a part of another one has no life of its own here."""
        self._born(entry.root, self._now())

    def _lost(self, entry: _ledger.Entry | _ledger.MapEntry) -> None:
        """Nothing more: what was collected has ended like anything else."""

    def _ended(self, root: _ledger.Root) -> None:
        """Put the end of an object in the line; the ledger is locked, so it stays there until the next call."""
        self._inbox.append((self._dead, (root.number, self._now(), _ledger.counters.current_bytes)))

    # -- the scope -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take note of what is alive already."""
        for entry in _ledger.entries():
            self._born(entry.root, None)

    def close(self) -> None:
        """End: look once more at what is pending, then let go of all events."""
        with self._lock:
            self._work()
            self._events.poll()
            self._end = self._now()
            self._events.close()
            self._calls.clear()

    def forget_in_child(self) -> None:
        """Keep what a forked child inherits for ever: to let go of it would reach the driver."""
        self._lock = threading.Lock()
        _ledger.unobserve(self)
        _opencl.immortalise(list(self._inbox))
        self._inbox.clear()
        self._events.forget_in_child()

    def snapshot(self) -> Snapshot:
        """Return all that is known now."""
        with self._lock:
            self._work()
            self._events.poll()
            mine = threading.get_ident()
            waits = [
                self._wait(begin, None, record, thread)
                for key, (begin, record, thread) in self._waiting.items() if key != mine
            ]  # fmt: skip
            over = [*self._over, *self._maps.values(), *self._objects.values(), *self._events.unset(), *waits]
            commands, events = assemble(self._entries, over)
            end = self._now() if self._end < 0 else self._end
            return Snapshot(commands, events, tuple(self._bytes), self._dropped, end)

    # -- one thing at a time -------------------------------------------------------------------------------------------

    def _take(self, step: Callable[..., None], *values: Any) -> None:
        self._inbox.append((step, values))
        while self._inbox and self._lock.acquire(blocking=False):
            try:
                self._work()
                self._events.poll(_A_FEW)
            finally:
                self._lock.release()

    def _work(self) -> None:
        while self._inbox:
            step, values = self._inbox.popleft()
            step(*values)

    def _born(self, root: _ledger.Root, begin: int | None) -> None:
        known = TimelineEvent("object", root.label or "unlabelled", begin, None, str(root.site), nbytes=root.size)
        self._take(self._object, root.number, known, _ledger.counters.current_bytes)

    def _object(self, number: int, known: TimelineEvent, nbytes: int) -> None:
        if self._objects.setdefault(number, known) is known:
            self._bytes.append((known.begin or 0, nbytes))

    def _dead(self, number: int, now: int, nbytes: int) -> None:
        known = self._objects.pop(number, None)
        if known is not None:
            self._finish(replace(known, end=now))
            self._bytes.append((now, nbytes))

    def _command(self, command: Command, called: int, returned: int, thread: str) -> None:
        waits = [self._awaited(event, command, called) for event in command.waits]
        queue = self._queue(command.queue, command.out_of_order)
        entry = Entry(command, next(self._numbers), queue, called, returned, thread)
        entry.waits = tuple([number for number in waits if number is not None])
        entry.unseen = waits.count(None)
        if len(self._entries) >= self._limit:
            self._events.let_go(self._entries.popleft())
            self._dropped += 1
        self._entries.append(entry)
        if entry.event is not None:
            self._events.add(entry)
            if entry.blocking:
                self._events.observe(entry, returned)
        if entry.mapping is not None and entry.kind == "map":
            self._maps[entry.mapping] = Map(entry)
        elif entry.mapping is not None and entry.mapping in self._maps:
            use = self._maps.pop(entry.mapping)
            use.unmap, use.end = entry.number, called
            self._finish(use)

    def _awaited(self, event: Hashable, command: Command, now: int) -> int | None:
        number = self._events.number(event)
        if number is None and (event in command.gates or event in command.opened):
            number = self._user(event, now).number
        known = self._events.known.get(event)
        if known is not None and event in command.opened:
            self._events.observe(known, now)
        return number

    def _user(self, event: Hashable, now: int) -> User:
        user = User(event, next(self._numbers), now)
        self._events.add(user)
        return user

    def _host(self, record: _journal.HostWait | _journal.UserEventSet, now: int, ident: int, thread: str) -> None:
        if isinstance(record, _journal.UserEventSet):
            user = self._events.known.get(record.event)
            if user is None and self._events.number(record.event) is None:
                user = self._user(record.event, now)
            if user is not None:
                user.thread = thread
                self._events.observe(user, now)
        elif not record.returned:
            self._waiting[ident] = now, record, thread
        else:
            begin, first, _ = self._waiting.pop(ident, (now, record, thread))
            self._finish(self._wait(begin, now, first, thread))
            for event in record.events:
                known = self._events.known.get(event)
                if known is not None:
                    self._events.observe(known, now)
            self._events.poll(_MANY)

    def _wait(self, begin: int, end: int | None, record: _journal.HostWait, thread: str) -> TimelineEvent:
        of = tuple([number for number in map(self._events.number, record.events) if number is not None])
        name = "wait"
        if record.queue is not None:
            name = f"finish queue {self._queue(record.queue, False).number}"
        return TimelineEvent("wait", name, begin, end, str(record.site), thread, of=of)

    def _finish(self, ended: TimelineEvent | User | Map) -> None:
        if len(self._over) >= self._limit:
            self._over.popleft()
            self._dropped += 1
        self._over.append(ended)

    def _queue(self, key: Any, out_of_order: bool) -> Queue:
        """Return what is known of a queue; an address is used again."""
        address = getattr(key, "int_ptr", key)
        known = self._queues.get(address)
        if known is None or not known.is_of(key):
            if len(self._queues) >= self._queues_at:
                self._queues = {one: queue for one, queue in self._queues.items() if queue.lives()}
                self._queues_at = 2 * len(self._queues) + _SLACK
            known = self._queues[address] = Queue(next(self._queue_numbers), key, out_of_order)
            known.is_of(key)
        return known
