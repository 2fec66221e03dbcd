"""Create, map, compute, unmap, release, over and over; then tell how much the process grew.

``python tests/soak/soak.py [--rounds N] [--raw]``; the exit code is 0 if the process grew by less than 2 MiB after
the first 10^4 rounds and nothing is alive at the end. Every tenth buffer uses host memory (a lease) and has a
destructor callback. ``--raw`` runs the same loop in PyOpenCL alone, to tell the driver's growth from ours.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import pyopencl as cl

import clmemlife as cml

SOURCE = "__kernel void scale(__global float *x, float a) { x[get_global_id(0)] *= a; }"
ELEMENTS = 1024
WARM_UP = 10_000
STEP = 100_000
EVERY = 10
LIMIT_BYTES = 2 << 20


def process_bytes() -> int:
    """Return the resident size; where the system does not tell it, the peak so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.001)


class Soak:
    """The loop over this library."""

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self.context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
        self.queue = cl.CommandQueue(self.context)
        self.kernel = cl.Kernel(cl.Program(self.context, SOURCE).build(), "scale")
        self.expected = self.called = 0

    def count(self, info: cml.ObjectInfo) -> None:
        self.called += 1

    def round(self, number: int) -> None:
        if number % EVERY:
            field = cml.MemHandle.create_buffer(self.context, 4 * ELEMENTS)
        else:
            storage = cml.aligned_empty(ELEMENTS, np.float32, self.context)
            field = cml.MemHandle.create_buffer(self.context, flags=cml.MemFlags.USE_HOST_PTR, hostbuf=storage)
            field.on_destroy(self.count)
            self.expected += 1
            del storage
        with field:
            value = number % 1000
            with cml.Mapping(
                self.queue, field, cml.MapFlags.WRITE_INVALIDATE_REGION, shape=ELEMENTS, dtype=np.float32
            ) as m:
                m.array[:] = value
            done = cml.enqueue_kernel(
                self.queue, self.kernel, (ELEMENTS,), None, cml.InOut(field), np.float32(2), wait_for=m.unmap_event
            )
            with cml.Mapping(
                self.queue, field, cml.MapFlags.READ, shape=ELEMENTS, dtype=np.float32, wait_for=done
            ) as m:
                if m.array[0] != 2 * value or m.array[-1] != 2 * value:
                    raise SystemExit(f"wrong data in round {number}: {m.array[0]}, {m.array[-1]}, not {2 * value}")

    def settle(self) -> None:
        """Let all that has been released come to its end, so that figures can be compared."""
        self.queue.finish()
        gc.collect()
        wait_until(lambda: cml.statistics().leased_bytes == 0, "all leases are back", self.patience_seconds)
        wait_until(lambda: self.called == self.expected, "all callbacks have run", self.patience_seconds)

    def left(self) -> str:
        now = cml.statistics()
        alive = now.current_count, now.current_bytes, now.pending_bytes, now.leased_bytes
        return "" if not cml.live() and alive == (0, 0, 0, 0) else f"{cml.live()}, {now}"


class RawSoak(Soak):
    """The same in PyOpenCL alone, which has neither leases nor callbacks: the array is kept by hand."""

    def round(self, number: int) -> None:
        flags = cl.mem_flags
        if number % EVERY:
            field = cl.Buffer(self.context, flags.READ_WRITE, 4 * ELEMENTS)
        else:
            storage = cml.aligned_empty(ELEMENTS, np.float32, self.context)
            field = cl.Buffer(self.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=storage)
        waits = None
        for flag in (cl.map_flags.WRITE_INVALIDATE_REGION, cl.map_flags.READ):
            array, event = cl.enqueue_map_buffer(
                self.queue, field, flag, 0, (ELEMENTS,), np.float32, wait_for=waits, is_blocking=False
            )
            event.wait()
            memory_map = array.base
            if flag == cl.map_flags.WRITE_INVALIDATE_REGION:
                array[:] = number % 1000
            elif array[0] != 2 * (number % 1000):
                raise SystemExit(f"wrong data in round {number}")
            done = memory_map.release(self.queue)
            if flag == cl.map_flags.WRITE_INVALIDATE_REGION:
                self.kernel.set_args(field, np.float32(2))
                waits = [cl.enqueue_nd_range_kernel(self.queue, self.kernel, (ELEMENTS,), None, wait_for=[done])]
        done.wait()
        field.release()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--raw", action="store_true", help="PyOpenCL alone")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for what ends on other threads")
    options = parser.parse_args()
    soak = (RawSoak if options.raw else Soak)(options.patience)
    device = soak.context.devices[0]
    print(f"{device.platform.name}, {device.name.strip()}, pid {os.getpid()}", flush=True)
    first = process_bytes()
    after_warm_up = first
    started = time.monotonic()
    for number in range(1, options.rounds + 1):
        soak.round(number)
        if number == WARM_UP or number % STEP == 0 or number == options.rounds:
            soak.settle()
            now = process_bytes()
            if number <= WARM_UP:
                after_warm_up = now
            print(
                f"{number:>9} rounds: {now / 2**20:8.2f} MiB, {(now - after_warm_up) / 1024:+8.0f} KiB since the first "
                f"{min(WARM_UP, options.rounds)}, {(time.monotonic() - started) / number * 1e6:.0f} us each",
                flush=True,
            )
    left = soak.left()
    grown = process_bytes() - after_warm_up
    print(f"alive at the end: {left or 'nothing'}; growth {grown / 1024:+.0f} KiB")
    return 0 if not left and grown < LIMIT_BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
