"""What the sanitizer has to say of plain PyOpenCL programs: data first, the text is derived from it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..._site import warn_at
from ...exceptions import ClMemLifeError, HazardError, HazardWarning
from ..hazards._findings import Finding


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake of a program.

    Attributes
    ----------
    kind : str
        A stable word, such as ``use_after_release`` or ``read_after_write``.
    message : str
        What happened, in a sentence.
    site, other_site : str
        ``file:line`` of the mistake, and of what it collides with ("" where there is none).
    object : str
        The memory object: size and the line that made it.
    remedy : str
        What to write instead, in PyOpenCL's words.
    count : int
        How often it happened.
    """

    kind: str
    message: str
    site: str
    other_site: str = ""
    object: str = ""
    remedy: str = ""
    count: int = 1

    @property
    def key(self) -> str:
        """The same for the same mistake, in every run."""
        return f"{self.kind} {self.site} {self.other_site}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON.

        Returns
        -------
        dict
            The attributes and the `key`.
        """
        return {**asdict(self), "key": self.key}

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        lines = [f"{self.kind} at {self.site}{times}", f"  {self.message}"]
        lines += [f"  {self.object}"] if self.object else []
        lines += [f"  {self.remedy}"] if self.remedy else []
        return "\n".join(lines)


_RAW_WORDS = {
    "unmap": "event that MemoryMap.release returned at {0} (or call .wait() on it first)",
    "map": "event that the map returned at {0}",
}


OF_THE_CHECKER = frozenset({
    "read_after_write", "write_after_read", "write_after_write", "undefined_content", "wait_cycle", "pool_block_in_use",
    "never_flushed",
})  # fmt: skip
"""The kinds that `from_hazard` gives."""


def from_hazard(finding: Finding, former: Mapping[str, Collection[str]]) -> Fault:
    """Return what the hazard checker found in the words of plain PyOpenCL.

    `former` has the lines that used earlier blocks of a pool, by the line that got the block.
    """
    second, first = finding.second, finding.first
    thing = f"memory object of {finding.size} bytes, created at {finding.site}" if finding.size else ""
    if finding.label:
        thing = f"{finding.label!r}, {thing}"
    kind, remedy = finding.hazard, finding.advice
    if kind.startswith(("read_", "write_")):
        event = _RAW_WORDS.get(first.kind, "event returned at {0}").format(first.site)
        remedy = f"At {second.site} pass wait_for=[{event}], or wait for it on the host before."
        if first.site in former.get(finding.site, ()):
            kind = "pool_block_in_use"
            remedy = (
                f"Order the queue of {second.site} behind the event of {first.site}, or give the block back "
                "to the pool only when that is complete; a pool orders nothing."
            )
    elif kind == "unflushed_wait":
        kind = "never_flushed"
        remedy = f"Call queue.flush() between {first.site} and {second.site}, on the queue of the former."
    if second.kind == "svm_free" and finding.hazard.startswith("write_"):
        text = f"shared virtual memory is freed while {first} may still be using it: nothing orders the two"
        remedy = f"Wait for the event returned at {first.site} before, or call enqueue_release(queue, wait_for=[it])."
        return Fault("freed_in_use", text, second.site, first.site, thing, remedy, finding.count)
    told = [line.strip() for line in str(finding).splitlines()[1:3]]
    return Fault(kind, "; ".join(told), second.site, first.site, thing, remedy, finding.count)


class Faults:
    """The faults of one scope, each once, and what is done with a new one."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.unknown: Counter[str] = Counter()
        self.commands = self.objects = self.maps = 0
        self._found: dict[str, Fault] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        """Take a new lock, at the begin and in a forked child."""
        self._lock = threading.RLock()  # a finalizer may report in the middle of a report

    @property
    def found(self) -> tuple[Fault, ...]:
        with self._lock:
            return tuple(self._found.values())

    def add(self, fault: Fault) -> bool:
        """Count a fault; return whether it is new."""
        with self._lock:
            known = self._found.get(fault.key)
            self._found[fault.key] = fault if known is None else replace(known, count=known.count + 1)
            return known is None


active: tuple[Faults, ...] = ()
"""The scopes that listen; replaced, never changed."""


def report(
    kind: str,
    message: str,
    site: str,
    other_site: str = "",
    *,
    thing: str = "",
    remedy: str = "",
    error: type[ClMemLifeError] | None = None,
    fatal: bool = False,
    quietly: bool = False,
) -> None:
    """Tell all scopes of a fault; `error` is raised where a scope wants that, or if it is `fatal` to go on."""
    fault = Fault(kind, message, site, other_site, thing, remedy)
    raises = fatal
    for faults in active:
        new = faults.add(fault)
        if faults.mode == "raise":
            raises = True
        elif faults.mode == "warn" and new and not quietly:
            warn_at(site, str(fault), HazardWarning)
    if raises and not quietly:
        if error is None or issubclass(error, HazardError):
            raise (error or HazardError)(str(fault), fault)
        raise error(str(fault))


def unknown(reason: str) -> None:
    """Count something that cannot be known."""
    for faults in active:
        faults.unknown[reason] += 1
