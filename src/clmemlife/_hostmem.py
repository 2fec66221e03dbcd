"""Host memory that a memory object uses: what is fit for it, who else uses it, and how long it must stay."""

from __future__ import annotations

import itertools
import math
import operator
import threading
import time
from bisect import bisect_left, insort
from typing import Any

import numpy as np
import pyopencl as cl

from . import _callbacks, _inflight, _ledger, _limits
from ._site import describe, warn_at
from .exceptions import AlignmentError, HostAliasError, ZeroCopyWarning
from .flags import MemFlags

__all__ = ["aligned_empty"]

_PAGE = 4096
_LATE_SECONDS = 0.5  # drivers may destroy an object, or say so, on a thread of their own
_USES = MemFlags.USE_HOST_PTR | MemFlags.COPY_HOST_PTR
_USES_BITS = _USES.value


class _Claim:
    """Host memory ``[start, stop)`` of one memory object; ``watch`` and ``root`` come when that exists."""

    __slots__ = ("number", "root", "start", "stop", "text", "watch")

    def __init__(self, start: int, stop: int, text: str) -> None:
        self.number = next(_numbers)
        self.start, self.stop, self.text = start, stop, text
        self.watch: _callbacks.Watch | None = None
        self.root: _ledger.Root | None = None

    @property
    def dead(self) -> bool:
        return self.watch is not None and self.watch.dead

    @property
    def released(self) -> bool:
        """Whether nobody here holds the object any more: the driver will say that it is gone."""
        return self.root is not None and not _ledger.in_use(self.root)

    @property
    def state(self) -> str:
        if self.released:
            return "was released but is still in use (by a queued command, or through another reference)"
        return "is still alive"

    def ends(self) -> bool:
        """Wait for the driver's word on an object that was released, a moment long; return whether it came."""
        deadline = time.monotonic() + _LATE_SECONDS
        over = False
        while not self.dead and self.released and not over:
            over = time.monotonic() >= deadline  # one look more, after a wait that took longer than it should
            _inflight.sweep()
            _callbacks.catch_up()
            time.sleep(0.001)
        return self.dead


class _Registry:
    """Which host memory is in use: the claims by address, looked up and entered in one step."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may come back in here
        self._claims: list[tuple[int, int, _Claim]] = []
        self._longest = 0
        self._sweep_at = 256

    def alive(self) -> int:
        return sum([not claim.dead for _, _, claim in tuple(self._claims)])

    def enter(self, claim: _Claim, allow_alias: bool) -> _Claim | None:
        """Return the oldest claim that overlaps; enter this one if there is none, or if it may."""
        with self._lock:
            if len(self._claims) >= self._sweep_at:
                self._sweep()
            found: _Claim | None = None
            first = bisect_left(self._claims, (claim.start - self._longest,))
            for _, number, other in self._claims[first : bisect_left(self._claims, (claim.stop,))]:
                if other.dead:
                    self.drop(other)
                elif other.stop > claim.start and (found is None or number < found.number):
                    found = other
            if found is None or allow_alias:
                self._longest = max(self._longest, claim.stop - claim.start)
                insort(self._claims, (claim.start, claim.number, claim))
            return found

    def drop(self, claim: _Claim) -> None:
        """Strike a claim out, if it is there."""
        with self._lock:
            place = bisect_left(self._claims, (claim.start, claim.number))
            if place < len(self._claims) and self._claims[place][2] is claim:
                del self._claims[place]

    def clear(self) -> None:
        """Forget all claims."""
        with self._lock:
            self._claims.clear()

    def _sweep(self) -> None:
        for _, _, claim in tuple(self._claims):
            if claim.dead:
                self.drop(claim)
        self._longest = max([claim.stop - claim.start for _, _, claim in tuple(self._claims)], default=0)
        self._sweep_at = 2 * len(self._claims) + 256


_numbers = itertools.count()
_registry = _Registry()


class HostMemory:
    """Contiguous host memory behind a ``hostbuf``: ``view`` is a flat array of bytes that keeps it alive."""

    __slots__ = ("_claim", "_shares", "address", "element_aligned", "nbytes", "view")

    def __init__(self, hostbuf: Any) -> None:
        if isinstance(hostbuf, np.ndarray):
            if hostbuf.dtype.hasobject:
                raise TypeError("hostbuf has elements that are Python objects; they mean nothing to a device")
            if not hostbuf.flags.forc:
                raise ValueError("hostbuf is not contiguous; use numpy.ascontiguousarray")
            flat = hostbuf if hostbuf.flags.c_contiguous else hostbuf.T
            self.view = flat.reshape(-1).view(np.uint8)
            self.element_aligned = bool(hostbuf.flags.aligned)
        else:
            try:
                self.view = np.frombuffer(memoryview(hostbuf).cast("B"), np.uint8)
            except TypeError:
                raise TypeError(f"hostbuf must be contiguous host memory, not {type(hostbuf).__name__}") from None
            self.element_aligned = True
        self.nbytes = self.view.nbytes
        self.address: int = self.view.__array_interface__["data"][0]
        self._claim: _Claim | None = None
        self._shares: _Claim | None = None

    def claim(
        self, context: cl.Context, size: int, label: str | None, site: str, *,
        allow_alias: bool, require_zero_copy: bool,
    ) -> None:  # fmt: skip
        """Take memory for an object that is to be made; refuse what it cannot use as it is, or another one uses."""
        text = f"host memory at {self.address:#x} for {describe(label, size, site)}"
        if not self.element_aligned:
            raise AlignmentError(f"{text} is not even aligned for its own elements; see clmemlife.aligned_empty")
        _callbacks.catch_up()
        claim = _Claim(self.address, self.address + size, describe(label, size, site))
        self._shares = other = _registry.enter(claim, allow_alias)
        while other is not None and not allow_alias:
            if not other.ends():
                raise HostAliasError(
                    f"{text} overlaps the host memory of {other.text}, which {other.state}; results would depend on "
                    "timing. Release that one first, use sub-buffers, or pass allow_alias=True to insist"
                )
            self._shares = other = _registry.enter(claim, allow_alias)
        self._claim = claim
        try:
            self._check_alignment(text, context, site, require_zero_copy)
        except BaseException:
            give_up(self)
            raise

    def _check_alignment(self, text: str, context: cl.Context, site: str, require_zero_copy: bool) -> None:
        needed = max(_limits.context_limits(context).alignments.values())
        if self.address % needed:
            advice = (
                f"{text} is {self.address % needed} bytes past a multiple of {needed}, which the device needs to use "
                "it without a copy; see clmemlife.aligned_empty"
            )
            if require_zero_copy:
                raise AlignmentError(advice)
            warn_at(site, advice, ZeroCopyWarning)

    def lease(
        self, int_ptr: int, label: str | None, size: int, site: str, root: _ledger.Root
    ) -> list[_callbacks.Watch]:
        """Keep the memory until the driver says that the object at `int_ptr` is gone (``USE_HOST_PTR`` only)."""
        claim, shares = self._claim, self._shares
        if claim is None:
            return []
        if shares is not None and shares.root is not None:
            number, start = shares.root.alias or (shares.root.number, 0)
            root.alias = number, start + self.address - shares.start
        watch = _callbacks.watch(int_ptr, _callbacks.ObjectInfo(label, size, site))
        claim.root, claim.watch = root, watch
        watch.lease(self.view, size)
        return [watch]


def give_up(host: HostMemory | None) -> None:
    """Let go of what was claimed, where no memory object came of it."""
    if host is not None and host._claim is not None and host._claim.watch is None:
        _registry.drop(host._claim)


def leases() -> int:
    """Return how many claims there are whose object is not known to be gone."""
    return _registry.alive()


def forget() -> None:
    """Forget all leases, in a forked child: the objects are the parent's, and no notice of them comes here."""
    global _registry
    _registry = _Registry()


def open_hostbuf(hostbuf: Any, flags: MemFlags) -> HostMemory | None:
    """Return the memory of `hostbuf`, checked against `flags`; ``None`` if there is none and none is wanted."""
    if hostbuf is None:
        if flags._value_ & _USES_BITS:
            raise ValueError(f"{flags & _USES} needs a hostbuf")
        return None
    uses = flags & _USES
    if not uses:
        raise ValueError("hostbuf was given but no flag to use it: add MemFlags.USE_HOST_PTR or MemFlags.COPY_HOST_PTR")
    host = HostMemory(hostbuf)
    if not host.nbytes:
        raise ValueError("hostbuf is empty; a memory object needs at least 1 byte")
    if uses == MemFlags.USE_HOST_PTR and not flags & MemFlags.READ_ONLY and not host.view.flags.writeable:
        raise ValueError(
            "hostbuf is read-only memory but the object is writable: make it MemFlags.READ_ONLY, or copy with "
            "MemFlags.COPY_HOST_PTR"
        )
    return host


def aligned_empty(
    shape: int | tuple[int, ...], dtype: Any = np.uint8, context_or_alignment: cl.Context | int = _PAGE
) -> np.ndarray[Any, Any]:
    """Return an uninitialised C-ordered array whose memory a device can use without a copy.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : data-type
    context_or_alignment : pyopencl.Context or int
        An alignment in bytes (a power of two), or a context: then the strictest of its devices, at least a page,
        and the memory behind the array is whole cache lines.

    Returns
    -------
    numpy.ndarray
        Ordinary memory that NumPy owns. A ``USE_HOST_PTR`` object made of it keeps it for as long as it needs it.

    Raises
    ------
    ValueError
        An alignment that is no power of two; a negative shape; elements that are Python objects.

    Notes
    -----
    Any thread. OpenCL specification: ``clCreateBuffer`` (``CL_MEM_USE_HOST_PTR``) and
    ``CL_DEVICE_MEM_BASE_ADDR_ALIGN``.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError(f"{dtype} has elements that are Python objects; they mean nothing to a device")
    if isinstance(context_or_alignment, cl.Context):
        alignment = max(_PAGE, *_limits.context_limits(context_or_alignment).alignments.values())
    else:
        alignment = operator.index(context_or_alignment)
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"an alignment must be a power of two, not {alignment}")
    shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(operator.index(n) for n in shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"the numbers of a shape must not be negative: {shape}")
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(-(-nbytes // 64) * 64 + alignment, np.uint8)
    start = -memory.__array_interface__["data"][0] % alignment
    array: np.ndarray[Any, Any] = memory[start : start + nbytes].view(dtype).reshape(shape)
    return array
