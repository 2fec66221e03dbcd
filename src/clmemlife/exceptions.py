"""Every error and warning of the library, in one tree.

Bad arguments are plain ``TypeError`` and ``ValueError``; ``pyopencl.Error`` passes through untouched.
This module imports nothing of the package and nothing of PyOpenCL, so that tests and plugins can name
an error without loading a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = [
    "AlignmentError",
    "CallError",
    "ClMemLifeError",
    "CleanupWarning",
    "ContextMismatchError",
    "DependencyError",
    "ForkedProcessError",
    "HazardError",
    "HazardWarning",
    "HostAliasError",
    "LeakError",
    "LeakWarning",
    "LiveViewError",
    "MapConflictError",
    "OwnershipError",
    "ReleasedError",
    "UnmappedError",
    "UnorderedAccessError",
    "UnsupportedError",
    "ViewWarning",
    "ZeroCopyWarning",
]


class ClMemLifeError(Exception):
    """Base class of all errors that this library raises of its own."""


def status_name(code: int) -> str:
    """Return the name of an OpenCL status code, for example ``INVALID_MEM_OBJECT``."""
    import pyopencl as cl

    return str(cl.status_code.to_string(code, "unknown status %d"))


class CallError(ClMemLifeError):
    """A raw OpenCL call of ours (one that PyOpenCL does not wrap) failed.

    Attributes
    ----------
    routine : str
        Name of the OpenCL call.
    code : int
        The negative status code it returned.
    detail : str
        What was asked for, where that is known.
    """

    def __init__(self, routine: str, code: int, detail: str = "") -> None:
        super().__init__(routine, code, detail)
        self.routine = routine
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        text = f"{self.routine} failed: {status_name(self.code)} ({self.code})"
        return f"{text}: {self.detail}" if self.detail else text


class OwnershipError(ClMemLifeError):
    """``adopt`` was asked to own a memory object that a handle of this process already owns."""


class ReleasedError(ClMemLifeError):
    """A handle was used after this code released it."""


class UnmappedError(ReleasedError):
    """The array of a mapping was asked for after the unmap."""


class AlignmentError(ClMemLifeError, ValueError):
    """A sub-buffer origin or a host pointer is not aligned as the device requires."""


class ContextMismatchError(ClMemLifeError, ValueError):
    """Objects of different OpenCL contexts were put together in one call."""


class DependencyError(ClMemLifeError):
    """An event that a command was to wait for has failed.

    Attributes
    ----------
    event : pyopencl.Event
        The failed event.
    status : int
        Its negative execution status.
    root_event : pyopencl.Event
        The event it failed from, where that is on record; else `event` itself.
    """

    def __init__(
        self, event: cl.Event | None, status: int, message: str = "", root_event: cl.Event | None = None
    ) -> None:
        super().__init__(event, status, message, root_event)
        self.event = event
        self.status = status
        self.root_event = event if root_event is None else root_event

    def __str__(self) -> str:
        return str(self.args[2]) or f"the event failed: {status_name(self.status)} ({self.status})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, self.status, str(self))  # events mean nothing in another process


class HostAliasError(ClMemLifeError):
    """Two live memory objects would use overlapping host memory."""


class LiveViewError(ClMemLifeError):
    """Views of a mapped array outlive its map (raised only on request, after unmapping)."""


class HazardError(ClMemLifeError):
    """Two accesses to the same bytes collide.

    Attributes
    ----------
    finding : object
        The finding as data; the message is derived from it. ``None`` where the message is all.
    """

    def __init__(self, message: str, finding: Any = None) -> None:
        super().__init__(message)
        self.finding = finding


class MapConflictError(HazardError):
    """Overlapping maps of which one writes, or a command on a region that is mapped."""


class UnorderedAccessError(HazardError):
    """Two uses of the same bytes with no event between them."""


class LeakError(ClMemLifeError):
    """Memory objects or maps are still alive where none should be.

    Attributes
    ----------
    records : tuple
        One frozen record for each leaked object.
    """

    def __init__(self, message: str, records: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)


class ForkedProcessError(ClMemLifeError):
    """A handle of the parent process was used in a forked child."""


class UnsupportedError(ClMemLifeError, NotImplementedError):
    """The device, the driver or this library cannot do what was asked."""


class LeakWarning(ResourceWarning):
    """A handle or mapping was collected without ``release``; it has been released first."""


class HazardWarning(RuntimeWarning):
    """Two uses of the same bytes with no event between them (in mode ``warn``)."""


class CleanupWarning(RuntimeWarning):
    """A clean-up step failed where nothing can be raised."""


class ViewWarning(RuntimeWarning):
    """Views of a mapped array outlive its map."""


class ZeroCopyWarning(RuntimeWarning):
    """Host memory is not aligned for use without a copy."""
