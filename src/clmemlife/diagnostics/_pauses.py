"""Commands that take a while and do nothing, on queues of their own: what holds other commands back.

They need no thread and no interpreter lock to come to an end, as user events would: a destructor or a driver that waits
with the lock held, a process that ends, a thread that dies, all find them over in milliseconds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from .. import _opencl

_SOURCE = """
__kernel void pause(ulong n, __global ulong *nowhere) {  // no compiler foresees k, so that none leaves the loop out
    ulong k = n + 1;
    for (ulong i = 0; i < n; i++) k = (k ^ (k >> 29)) * 0x5851F42D4C957F2DUL + 0x14057B7EF767814FUL;
    if (k == n) *nowhere = k;
}
"""
_STEPS = 1 << 18  # about 0.5 ms on the processors of 2020, some 10 ms on a GPU of that time
_TRIES = 5  # the shortest counts: in the others the machine did something else too, or loaded the kernel
_PATIENCE = 2.0  # seconds
_MOST = 3  # at once on a device


class Pauses:
    """The pauses on one device of one context. Not for several threads at once."""

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._context, self._device = context, device
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some compilers always say something
            self._kernel = cl.Kernel(cl.Program(context, _SOURCE).build(devices=[device]), "pause")
        _opencl.set_kernel_arg(self._kernel, 1, None)
        self._lanes: list[tuple[cl.CommandQueue, cl.Event]] = []
        self._most = max(1, min(_MOST, device.max_compute_units // 2))
        self._steps_per_second = max(_STEPS / self._measure() for _ in range(_TRIES))

    def enqueue(self, seconds: float, waits: Sequence[cl.Event]) -> cl.Event | None:
        """Return the event of a pause that begins when `waits` are complete; nothing where enough are under way."""
        lane = self._lane()
        if lane is None:
            return None
        return self._enqueue(lane, int(seconds * self._steps_per_second), list(waits) or None)

    def settle(self, seconds: float = 1.0) -> None:
        """Let what is under way come to an end, for so long at most."""
        deadline = time.monotonic() + seconds
        while any(pending(event) for _, event in self._lanes) and time.monotonic() < deadline:
            time.sleep(0.0001)

    def _measure(self) -> float:
        began = time.perf_counter()
        event = self._enqueue(self._lane(), _STEPS, None)
        while pending(event):
            if time.perf_counter() - began > _PATIENCE:
                raise TimeoutError("the device runs nothing")
        return time.perf_counter() - began

    def _lane(self) -> cl.CommandQueue | None:
        """Return a queue of which nothing is under way."""
        for number, (queue, event) in enumerate(self._lanes):
            if not pending(event):
                del self._lanes[number]
                return queue
        return cl.CommandQueue(self._context, self._device) if len(self._lanes) < self._most else None

    def _enqueue(self, queue: Any, steps: int, waits: list[cl.Event] | None) -> cl.Event:
        _opencl.set_kernel_arg_buf(self._kernel, 0, np.uint64(steps))
        event: cl.Event = _opencl.enqueue_nd_range_kernel(queue, self._kernel, (1,), (1,), None, waits)
        self._lanes.append((queue, event))
        _opencl.flush(queue)
        return event


def pending(event: cl.Event) -> bool:
    """Say whether a command is neither complete nor has failed."""
    return bool(event.command_execution_status > 0)
