"""`Migration`: bring memory objects to a device, or to the host, ahead of their use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pyopencl as cl

from . import _waitlist
from ._across import can_stage, pays, staged
from ._handle import MemHandle
from ._submit import check_queue, check_usable, marker, migrate, whole
from .flags import MigrationFlags, require

__all__ = ["Migration"]


class Migration:
    """Enqueue the migration of memory objects and stand for its event.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
        The objects go to its device, or to the host with ``MigrationFlags.HOST``.
    handles : MemHandle or iterable of MemHandle
        Their memory objects are held until the event is complete. One that is named twice, or with its parent, is
        migrated once.
    flags : MigrationFlags
    wait_for
        See `wait_list`.
    via : {"driver", "staged", "auto"}
        How the bytes travel: by ``clEnqueueMigrateMemObjects``; or as chunks through pinned host memory into a
        temporary buffer on `queue` (as large as the largest object) and from there into the object; or, with
        "auto", staged where a `source_queue` is given, neither device shares the host's memory, and it is 4 MiB or
        more, else by the driver. Where there are no bytes to carry (to the host, ``CONTENT_UNDEFINED``, one device)
        and for images over buffers, the driver's call is used in any case; the property `via` says what was done.
    source_queue : pyopencl.CommandQueue, optional
        A queue of the device where the objects are now; `back` goes there.

    Raises
    ------
    TypeError, ValueError
        No handles; flags that are no `MigrationFlags`; "staged" without a `source_queue`.
    MapConflictError
        An object is mapped.
    DependencyError, ContextMismatchError, ReleasedError
    pyopencl.Error
        A step was refused. The content of the objects is intact; where it has to be put back, the exception has an
        ``event`` that is complete when it is.

    Notes
    -----
    Does not block, except that the first staged one allocates pinned memory, and that NVIDIA's driver waits in the call
    for what an object that is on another device waits for. Any thread. With no handles at all the event is that of a
    marker. OpenCL specification: ``clEnqueueMigrateMemObjects``, "Migrating Memory Objects".
    """

    __slots__ = ("_event", "_flags", "_handles", "_queue", "_source_queue", "_via", "_wanted")

    def __init__(
        self,
        queue: cl.CommandQueue,
        handles: MemHandle | Iterable[MemHandle],
        flags: MigrationFlags = MigrationFlags(0),
        *,
        wait_for: Any = None,
        via: str = "driver",
        source_queue: cl.CommandQueue | None = None,
    ) -> None:
        check_queue(queue)
        if source_queue is not None:
            check_queue(source_queue)
        flags = require(flags, MigrationFlags)
        if via not in ("driver", "staged", "auto"):
            raise ValueError(f"via must be 'driver', 'staged' or 'auto', not {via!r}")
        if via == "staged" and source_queue is None:
            raise ValueError("via='staged' reads the objects on source_queue; give one, of the device where they are")
        self._handles = _as_handles(handles)
        self._queue, self._flags, self._source_queue, self._via = queue, flags, source_queue, via
        chosen = _without_parts(self._handles)
        event = None
        if source_queue is not None and via != "driver" and can_stage(source_queue, queue, chosen, flags):
            auto = via == "auto"
            if not auto or pays(source_queue, queue, chosen):
                event = staged(source_queue, queue, chosen, wait_for, auto=auto)
        self._wanted, self._via = via, "driver" if event is None else "staged"
        self._event = self._by_driver(chosen, wait_for) if event is None else event

    def _by_driver(self, chosen: list[MemHandle], wait_for: Any) -> cl.Event:
        queue, flags = self._queue, self._flags
        mems: list[Any] = []
        uses = []
        for handle in chosen:
            mems.append(handle._share())
            check_usable(handle, queue)
            uses.append(whole(handle, reads=not flags & MigrationFlags.CONTENT_UNDEFINED, writes=True))
        if not mems:
            return marker(queue, wait_for, "Migration")
        return migrate(queue, mems, flags, uses, _waitlist.prepare(queue, wait_for))

    @property
    def event(self) -> cl.Event:
        """Complete when the objects are there."""
        return self._event

    @property
    def handles(self) -> tuple[MemHandle, ...]:
        """What was asked to be migrated, in that order."""
        return self._handles

    @property
    def device(self) -> cl.Device | None:
        """The device they go to; ``None`` for the host."""
        return None if self._flags & MigrationFlags.HOST else self._queue.device

    @property
    def via(self) -> str:
        """How the bytes travel: "driver" or "staged"."""
        return self._via

    def wait(self) -> None:
        """Block until the objects are there.

        Raises
        ------
        DependencyError
            The migration failed.

        Notes
        -----
        OpenCL specification: ``clWaitForEvents``.
        """
        try:
            self._event.wait()
        except cl.Error as error:
            raise _waitlist.failure(self._event, repr(self), error) from error

    def back(self, *, wait_for: Any = None) -> Migration:
        """Migrate the same objects to the device of `source_queue`, after this migration and `wait_for`.

        Parameters
        ----------
        wait_for
            See `wait_list`.

        Returns
        -------
        Migration
            A new one, which holds the same memory objects.

        Raises
        ------
        ValueError
            There is no `source_queue`.
        MapConflictError, DependencyError, ContextMismatchError, ReleasedError, pyopencl.Error
            As for a `Migration`.

        Notes
        -----
        Does not block. OpenCL specification: ``clEnqueueMigrateMemObjects``.
        """
        if self._source_queue is None:
            raise ValueError("a migration knows its way back only with source_queue=...; give one, or migrate anew")
        return Migration(
            self._source_queue,
            self._handles,
            wait_for=[self._event, wait_for],
            via="driver" if self.device is None else self._wanted,
            source_queue=self._queue,
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied: it stands for one command")

    def __repr__(self) -> str:
        where = "the host" if self.device is None else self.device.name.strip()
        names = ", ".join(handle.label or "unlabelled" for handle in self._handles)
        return f"<Migration of {names or 'nothing'} to {where} via {self._via}>"


def _as_handles(handles: Any) -> tuple[MemHandle, ...]:
    if isinstance(handles, MemHandle):
        return (handles,)
    found = tuple(handles) if isinstance(handles, Iterable) and not isinstance(handles, (str, bytes)) else (handles,)
    for one in found:
        if not isinstance(one, MemHandle):
            raise TypeError(f"a Migration takes MemHandles, not {type(one).__name__}; see MemHandle.retain")
    return found


def _without_parts(handles: tuple[MemHandle, ...]) -> list[MemHandle]:
    """Return one handle for each object, and none for a part of an object that goes as a whole."""
    wholes = {one._entry.root for one in handles if one._entry.int_ptr == one._entry.root.int_ptr}
    chosen: dict[int, MemHandle] = {}
    for one in handles:
        entry = one._alive()
        if entry.int_ptr == entry.root.int_ptr or entry.root not in wholes:
            chosen.setdefault(entry.int_ptr, one)
    return list(chosen.values())
