"""RAII for OpenCL memory objects over PyOpenCL: who owns a ``cl_mem``, when it is mapped, what orders its use.

Names are loaded on first use, so that a test plugin can import this package where there is no OpenCL.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._access import In as In
    from ._access import InOut as InOut
    from ._access import Out as Out
    from ._across import enqueue_copy_across as enqueue_copy_across
    from ._callbacks import ObjectInfo as ObjectInfo
    from ._commands import enqueue_kernel as enqueue_kernel
    from ._copy import enqueue_copy as enqueue_copy
    from ._fill import enqueue_fill as enqueue_fill
    from ._handle import MemHandle as MemHandle
    from ._hostmem import aligned_empty as aligned_empty
    from ._mapping import Mapping as Mapping
    from ._mapping import MapState as MapState
    from ._meminfo import MemInfo as MemInfo
    from ._migration import Migration as Migration
    from ._site import set_site_depth as set_site_depth
    from ._slots import Slot as Slot
    from ._staging import Staging as Staging
    from ._staging import staging as staging
    from ._streaming import ChunkStream as ChunkStream
    from ._streaming import stream_chunks as stream_chunks
    from ._waitlist import wait_list as wait_list
    from .diagnostics.hazards import Finding as Finding
    from .diagnostics.hazards.checking import check_hazards as check_hazards
    from .diagnostics.hazards.checking import declare as declare
    from .diagnostics.hazards.checking import dependencies as dependencies
    from .diagnostics.hazards.checking import explain as explain
    from .diagnostics.interception import Fault as Fault
    from .diagnostics.interception import sanitize as sanitize
    from .diagnostics.leaks import LiveRecord as LiveRecord
    from .diagnostics.leaks import Report as Report
    from .diagnostics.leaks import Statistics as Statistics
    from .diagnostics.leaks import live as live
    from .diagnostics.leaks import report as report
    from .diagnostics.leaks import statistics as statistics
    from .diagnostics.leaks.tracking import track as track
    from .diagnostics.residency import Move as Move
    from .diagnostics.residency import Residency as Residency
    from .diagnostics.residency import ResidencyFinding as ResidencyFinding
    from .diagnostics.residency import record_residency as record_residency
    from .diagnostics.residency import residency as residency
    from .diagnostics.timeline import TimelineCommand as TimelineCommand
    from .diagnostics.timeline import TimelineEvent as TimelineEvent
    from .diagnostics.timeline import TimelineQueue as TimelineQueue
    from .diagnostics.timeline import record_timeline as record_timeline
    from .exceptions import *  # noqa: F403
    from .flags import MapFlags as MapFlags
    from .flags import MemFlags as MemFlags
    from .flags import MigrationFlags as MigrationFlags

__version__ = "0.1.0"

_MODULES = {
    "_across": ("enqueue_copy_across",),
    "_access": ("In", "InOut", "Out"),
    "_callbacks": ("ObjectInfo",),
    "_commands": ("enqueue_kernel",),
    "_copy": ("enqueue_copy",),
    "_fill": ("enqueue_fill",),
    "_handle": ("MemHandle",),
    "_hostmem": ("aligned_empty",),
    "_mapping": ("MapState", "Mapping"),
    "_meminfo": ("MemInfo",),
    "_migration": ("Migration",),
    "_site": ("set_site_depth",),
    "_slots": ("Slot",),
    "_staging": ("Staging", "staging"),
    "_streaming": ("ChunkStream", "stream_chunks"),
    "_waitlist": ("wait_list",),
    "diagnostics.hazards.checking": ("check_hazards", "declare", "dependencies", "explain"),
    "diagnostics.hazards": ("Finding",),
    "diagnostics.interception": ("Fault", "sanitize"),
    "diagnostics.leaks": ("LiveRecord", "Report", "Statistics", "live", "report", "statistics"),
    "diagnostics.residency": ("Move", "Residency", "ResidencyFinding", "record_residency", "residency"),
    "diagnostics.timeline": ("TimelineCommand", "TimelineEvent", "TimelineQueue", "record_timeline"),
    "diagnostics.leaks.tracking": ("track",),
    "exceptions": (
        "AlignmentError", "CallError", "ClMemLifeError", "CleanupWarning", "ContextMismatchError", "DependencyError",
        "ForkedProcessError", "HazardError", "HazardWarning", "HostAliasError", "LeakError", "LeakWarning",
        "LiveViewError", "MapConflictError", "OwnershipError", "ReleasedError", "UnmappedError", "UnorderedAccessError",
        "UnsupportedError", "ViewWarning", "ZeroCopyWarning",
    ),
    "flags": ("MapFlags", "MemFlags", "MigrationFlags"),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOME[name] not in ("exceptions", "flags"):
        importlib.import_module("._lifecycle", __name__)
    value = globals()[name] = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
