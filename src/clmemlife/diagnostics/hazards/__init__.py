"""The hazard checker: two uses of the same bytes with no event between them.

Two uses collide if they share a byte and one of them writes. They are ordered if one *happens before* the other:

- a command comes after its wait-list, and after the command before it in an in-order queue;
- in an out-of-order queue it comes after the latest barrier; a marker or barrier without a wait-list comes after all
  that is in the queue;
- what the host has waited for (an event, a queue, a blocking command) comes before all that is enqueued later.
  Threads share this one host: how they hand work to each other is not seen;
- what hangs on a user event comes after all that the host had waited for when it set the event. Until then the
  command is judged against nothing; at the latest, the end of the scope (`Checker.close`) judges it;
- an unmap comes after its map, and from one to the other the host uses the bytes: a colliding command must come
  before the map or after the unmap.

That a command was seen complete orders nothing: it would hide the mistake behind timing. An event that was never
seen (the command of another library) may come after everything, so whoever waits for it is taken to.

Of waits that may have no end `_hangs` knows: for a user event that nobody sets, for a queue that nobody flushes.

Time is kept by `_order` and `_clocks`, the bytes by `_uses`; `_judge` asks both, record by record. All of it is pure:
queues and events are opaque hashable values.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Literal

from ..._journal import Access, Command, Flushed, HostRecord, Released
from ._findings import Finding, Party, Report
from ._judge import Judge
from ._questions import dependencies, explained
from ._uses import Uses, with_role

__all__ = ["Checker", "Finding", "Party"]

Mode = Literal["raise", "warn", "record"]


class Checker(Judge):
    """A listener of the journal that knows who uses which bytes and what orders them.

    Thread-safe. A record that arrives while the same thread is inside (a garbage collection may enqueue an unmap) is
    dealt with right after; what it finds is never raised, only warned of.

    Parameters
    ----------
    mode : {"raise", "warn", "record"}
        With "raise" the error comes out of `before`: the second command is not enqueued and leaves no trace here.
    suppress : collection of str
        Keys of findings that are not wanted.
    """

    def __init__(self, mode: Mode = "raise", suppress: Collection[str] = ()) -> None:
        if mode not in ("raise", "warn", "record"):
            raise ValueError(f"mode is {mode!r}; it must be 'raise', 'warn' or 'record'")
        super().__init__(Report(mode, frozenset([suppress] if isinstance(suppress, str) else suppress)))

    # What the journal calls

    def before(self, command: Command) -> None:
        """Judge a command that is about to be enqueued."""
        self._lock.acquire()  # `_step`, spelled out where it counts: `with` takes twice as long
        try:
            if self._inside:
                self._later.append((self._before, command))
                return
            self._inside = True
            try:
                self._before(command)
            finally:
                if self._later:
                    self._catch_up()
                self._inside = False
        finally:
            self._lock.release()

    def after(self, command: Command) -> None:
        """Take note of the event of a command."""
        self._lock.acquire()
        try:
            if self._inside:
                self._later.append((self._after, command))
                return
            self._inside = True
            try:
                self._after(command)
            finally:
                if self._later:
                    self._catch_up()
                self._inside = False
        finally:
            self._lock.release()

    def abandoned(self, command: Command) -> None:
        """Forget a command that the driver refused."""
        self._step(self._abandoned, command)

    def host(self, record: HostRecord) -> None:
        """Take note of what the host did."""
        if type(record) is Released or type(record) is Flushed:  # by a finalizer, perhaps
            self._soon(self._host, record)
        else:
            self._step(self._host, record)

    # What the user calls

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each missing edge once, with its count."""
        with self._lock:
            return self._report.findings

    def close(self) -> None:
        """Judge what still hangs on a user event, as if all were set now. A second call finds nothing new."""
        self._step(self._close, None)

    def declare(
        self,
        event: Hashable,
        reads: Iterable[Access] = (),
        writes: Iterable[Access] = (),
        *,
        queue: Hashable | None = None,
        out_of_order: bool = False,
        site: str = "?",
    ) -> None:
        """Say what the command of `event` uses. One of another library is declared right after it was enqueued,
        with its queue: then what follows in that queue is known to come after it.
        """
        accesses = self._objects.placed((*with_role(reads, reads=True), *with_role(writes)))
        self._step(self._declare, (event, accesses, queue, out_of_order, site))

    def dependencies(self, reads: Iterable[Access] = (), writes: Iterable[Access] = ()) -> list[Hashable]:
        """Return the fewest events of colliding commands that order such an access behind all of them.

        Raises
        ------
        MapConflictError
            If the host has the bytes mapped: then no event can order it.
        """
        accesses = self._objects.placed((*with_role(reads, reads=True), *with_role(writes)))
        events: list[Hashable] = self._exclusively(dependencies, self._order, self._objects, accesses)
        return events

    def explain(self, obj: int) -> str:
        """Return the recent uses of root memory object number `obj`, oldest first, as text."""
        text: str = self._exclusively(lambda: explained(self._objects.of(obj) or Uses()))
        return text

    def has_waited_for(self, event: Hashable) -> bool:
        """Say whether the host has certainly waited for a command that was seen."""
        node = self._order.nodes.get(event)
        return node is not None and not node.live()
