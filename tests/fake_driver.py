"""A driver that records and fails, put over the entry points of the library, and what it finds out of balance.

Every entry of `_opencl.ENTRY_POINTS` is wrapped in place. Objects that the library creates get references more, the
*guards*, so that their ``CL_MEM_REFERENCE_COUNT`` can be asked for when everybody else has let go of them, and a
release too many is found instead of crashing the driver.
"""

from __future__ import annotations

import gc
import inspect
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyopencl as cl

import clmemlife as cml
from clmemlife import _callbacks, _foreign, _hostmem, _inflight, _ledger, _opencl
from clmemlife.exceptions import CallError

CREATE = ("create_buffer", "create_image", "get_sub_region")
ORIGINAL = {name: getattr(_opencl, name) for name in _opencl.ENTRY_POINTS}
GUARDS = 2
RAW = {name for name, call in ORIGINAL.items() if inspect.isfunction(call) and "CallError" in call.__code__.co_names}


def error_for(name: str, status: int) -> Exception:
    """Return what the entry point `name` raises when its OpenCL call returns `status`."""
    routine = _opencl.ENTRY_POINTS[name].partition(",")[0]
    if name in RAW:
        return CallError(routine, status)
    if status == cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE:
        kind = cl.MemoryError
    elif status <= cl.status_code.INVALID_VALUE:
        kind = cl.LogicError
    else:
        kind = cl.RuntimeError
    return kind(cl._cl._ErrorRecord(msg="injected", code=status, routine=routine))  # type: ignore[no-any-return]


class Plan:
    """Fail call number `k`; with `stays`, also every later call of the same name.

    Attributes
    ----------
    name : str
        The entry point that was failed, empty if there were fewer calls.
    errors : list of Exception
        What was raised in place of the calls.
    refused : list of int
        Addresses whose release was refused.
    calls : list of str
        All entry points that were called.
    """

    def __init__(self, k: int, status: int, stays: bool) -> None:
        self.name = ""
        self.errors: list[Exception] = []
        self.refused: list[int] = []
        self.calls: list[str] = []
        self._k, self._status, self._stays = k, status, stays
        self._thread = threading.get_ident()

    def step(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Count one call, and raise if it is its turn."""
        if threading.get_ident() != self._thread:
            return
        self.calls.append(name)
        if len(self.calls) == self._k:
            self.name = name
        elif not (self._stays and name == self.name):
            return
        if name == "release_mem_object":
            self.refused.append(arguments[0])
        self.errors.append(error_for(name, self._status))
        raise self.errors[-1]


class Snapshot(NamedTuple):
    """All that an operation that failed must leave as it was."""

    references: dict[int, int]
    balance: dict[int, int]
    handles: list[int]
    users: dict[int, tuple[int, int]]
    maps: list[int]
    in_flight: list[int]
    statistics: tuple[int, ...]
    leases: int
    notices: int


class FakeDriver:
    """Record every call of the library, fail those that a plan says, and keep the books.

    Attributes
    ----------
    balance : Counter
        ``clRetainMemObject`` less ``clReleaseMemObject`` by address, as far as the library made the calls itself
        (references of PyOpenCL objects end in their destructors).
    patience_seconds : float
        How long to wait for drivers that let go of things on threads of their own.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.balance: Counter[int] = Counter()
        self.patience_seconds = 5.0
        self._plan: Plan | None = None
        self._guards: list[tuple[int, int]] = []
        for name, original in ORIGINAL.items():
            monkeypatch.setattr(_opencl, name, self._wrapped(name, original))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            takes_over = name in ("wrap_mem_object", "wrap_event") and arguments[1] is False
            if self._plan is not None and not takes_over:  # that reaches no driver
                self._plan.step(name, arguments)
            result = original(*arguments, **keywords)
            if name in CREATE:
                self.guard(result)
            elif name == "retain_mem_object":
                self.balance[arguments[0]] += 1
            elif name == "release_mem_object":
                self.balance[arguments[0]] -= 1
            return result

        return call

    @contextmanager
    def failing(self, k: int, status: int, *, stays: bool = False) -> Iterator[Plan]:
        """Fail the `k`-th call made by this thread within the block."""
        plan = self._plan = Plan(k, status, stays)
        try:
            yield plan
        finally:
            self._plan = None
            for error in plan.errors:
                error.__traceback__ = None  # its frames would keep what the operation had in hand

    def guard(self, mem: Any) -> None:
        """Keep the object of a fresh wrapper, beyond the end of that."""
        self._guards.append((mem.int_ptr, mem.reference_count - 1 + GUARDS))
        for _ in range(GUARDS):
            ORIGINAL["retain_mem_object"](mem.int_ptr)

    def guards(self) -> int:
        """Return how many objects are guarded now."""
        return len(self._guards)

    def repay(self, refused: list[int]) -> None:
        """Make up for releases that were refused: only that reference may be left."""
        for address in refused:
            ORIGINAL["release_mem_object"](address)
            self.balance[address] -= 1

    def snapshot(self) -> Snapshot:
        """Return where everything is now."""
        now = cml.statistics()
        entries = _ledger.entries()
        return Snapshot(
            {address: references(address) for address, _ in self._guards},
            {address: count for address, count in self.balance.items() if count},
            [entry.number for entry in entries],
            {address: (root.users, len(root.maps)) for address, root in self._roots()},
            [entry.number for entry in _ledger.open_maps()],
            sorted(entry[0].int_ptr for entry in _inflight.entries()),
            (now.current_bytes, now.current_count, now.pending_bytes, now.leased_bytes),
            _hostmem.leases(),
            _callbacks.outstanding() - _foreign.watched(),
        )

    def _roots(self) -> list[tuple[int, _ledger.Root]]:
        found = ((address, _ledger.find_root(address)) for address, _ in self._guards)
        return [(address, root) for address, root in found if root is not None]

    def settled(self) -> Snapshot:
        """Return where everything is when nothing moves any more: drivers let go of things on threads of their own."""
        deadline = time.monotonic() + 10.0
        last, same = self.snapshot(), 0
        while same < 3:
            time.sleep(0.001)
            now = self.snapshot()
            last, same = now, same + 1 if now == last else 0
            assert time.monotonic() < deadline, f"does not come to rest: {now}"
        return last

    def expect(self, before: Snapshot) -> None:
        """Fail unless everything is as it was, at the latest when patience ends."""
        deadline = time.monotonic() + self.patience_seconds
        while (now := self.snapshot()) != before:
            gc.collect()
            if time.monotonic() > deadline:
                differences = [
                    f"{name}: {one} before, {other} now"
                    for name, one, other in zip(before._fields, before, now, strict=True)
                    if one != other
                ]
                raise AssertionError("not as it was; " + "; ".join(differences))
            time.sleep(0.001)

    def let_go(self, first: int = 0) -> None:
        """Fail unless nobody but the guards holds the objects guarded since; take the guards away, parts first."""
        problems = []
        deadline = time.monotonic() + self.patience_seconds
        while len(self._guards) > first:
            address, expected = self._guards.pop()
            _inflight.sweep()
            while references(address) > expected and time.monotonic() < deadline:
                gc.collect()
                _inflight.sweep()
                time.sleep(0.001)
            count = references(address)
            if count != expected:
                problems.append(f"{count - expected:+d} references to the object at {address:#x}")
            if self.balance[address] > 0:
                problems.append(f"{self.balance[address]} retains without a release of the object at {address:#x}")
            del self.balance[address]
            for _ in range(GUARDS + min(0, count - expected)):  # a release too many has taken one of them
                ORIGINAL["release_mem_object"](address)
        assert not problems, "; ".join(problems)


def references(address: int) -> int:
    """Return ``CL_MEM_REFERENCE_COUNT``, without the one that asking takes."""
    mem = cl.MemoryObject.from_int_ptr(address, True)
    return int(mem.reference_count) - 1


def attempt(act: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return the result or the error of `act`; an error without the frames that keep things alive."""
    try:
        return act(), None
    except Exception as error:
        seen: BaseException | None = error
        while seen is not None:
            traceback.clear_frames(seen.__traceback__)
            seen.__traceback__ = None
            seen = seen.__cause__ or seen.__context__
        return None, error
