"""Heat on a square plate, step by step on an OpenCL device."""

from __future__ import annotations

from types import TracebackType

import numpy as np
import pyopencl as cl

from clmemlife import In, MapFlags, Mapping, MemHandle, Out, enqueue_kernel

SOURCE = """
__kernel void heat_step(__global const float *now, __global float *next, int n, float rate) {
  int x = get_global_id(0), y = get_global_id(1), i = y * n + x;
  if (x == 0 || y == 0 || x == n - 1 || y == n - 1) { next[i] = now[i]; return; }
  next[i] = now[i] + rate * (now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4.0f * now[i]);
}
"""


class Plate:
    """A plate of `n` by `n` cells; the border keeps its temperature. Use it in a ``with`` block."""

    def __init__(self, queue: cl.CommandQueue, temperatures: np.ndarray) -> None:
        self.n = len(temperatures)
        self._queue = queue
        self._kernel = cl.Program(queue.context, SOURCE).build().heat_step
        self._now = MemHandle.create_buffer(queue.context, temperatures.nbytes, label="now")
        self._next = MemHandle.create_buffer(queue.context, temperatures.nbytes, label="next")
        flags = MapFlags.WRITE_INVALIDATE_REGION
        with Mapping(queue, self._now, flags, shape=(self.n, self.n), dtype=np.float32) as mapping:
            mapping.array[:] = temperatures
        self._done = mapping.unmap_event

    def run(self, steps: int, rate: float = 0.1) -> None:
        """Enqueue `steps` steps; each waits for the one before."""
        n, size = np.int32(self.n), (self.n, self.n)
        for _ in range(steps):
            arguments = In(self._now), Out(self._next), n, np.float32(rate)
            self._done = enqueue_kernel(self._queue, self._kernel, size, None, *arguments, wait_for=self._done)
            self._now, self._next = self._next, self._now

    def temperatures(self) -> np.ndarray:
        """Return a copy of the temperatures now."""
        shape = (self.n, self.n)
        with Mapping(
            self._queue, self._now, MapFlags.READ, shape=shape, dtype=np.float32, wait_for=self._done
        ) as mapping:
            return mapping.copy()

    def __enter__(self) -> Plate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._now.release()
        self._next.release()
