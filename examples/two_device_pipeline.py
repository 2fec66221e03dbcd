"""Two devices, one after the other: while the second works on a chunk, the next one is already on its way to it.

    fill -> decay (first device) -> migrate -> smooth (second device) -> read

A chunk has buffers and pinned host memory of its own until its result is taken; then the next one gets them. Wait-lists
alone order the commands: a migration is enqueued as early as its data can be ready, on a queue of its own, and waited
for as late as the kernel that needs it (that is a prefetch). ``python examples/two_device_pipeline.py`` prints when
each command ran; ``--timeline`` draws it.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from contextlib import ExitStack

os.environ.setdefault("POCL_DEVICES", "pthread pthread")  # read when PyOpenCL loads the driver

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, InOut, MapFlags, Mapping, MemFlags, MemHandle, Migration, MigrationFlags, Out

SOURCE = """
__kernel void decay(__global float *x, int rounds) {
  float v = x[get_global_id(0)];
  for (int k = 0; k < rounds; ++k) v = v * 0.5f + 1.0f;
  x[get_global_id(0)] = v;
}
__kernel void smooth(__global const float *x, __global float *y, int rounds) {
  int i = get_global_id(0), n = get_global_size(0);
  float v = (x[max(i - 1, 0)] + x[i] + x[min(i + 1, n - 1)]) / 3;
  for (int k = 0; k < rounds; ++k) v = v * 0.5f + 1.0f;
  y[i] = v;
}
"""

Spans = dict[tuple[str, int], tuple[int, int]]  # begin and end by step and chunk, nanoseconds


def expected(chunk: np.ndarray, rounds: int) -> np.ndarray:
    def decayed(v: np.ndarray) -> np.ndarray:
        for _ in range(rounds):
            v = v * np.float32(0.5) + np.float32(1)
        return v

    padded = np.pad(decayed(chunk), 1, "edge")
    return decayed((padded[:-2] + padded[1:-1] + padded[2:]) / np.float32(3))


class Slot:
    """What a chunk under way needs: buffers, and pinned memory to copy from and to, without which copies are slow."""

    def __init__(self, stack: ExitStack, queue: cl.CommandQueue, chunk: np.ndarray) -> None:
        def buffer(label: str, flags: MemFlags = MemFlags.READ_WRITE) -> MemHandle:
            return stack.enter_context(MemHandle.create_buffer(queue.context, chunk.nbytes, flags, label=label))

        def pinned(label: str) -> np.ndarray:
            memory, both = buffer(label, MemFlags.READ_WRITE | MemFlags.ALLOC_HOST_PTR), MapFlags.READ | MapFlags.WRITE
            return stack.enter_context(Mapping(queue, memory, both, shape=chunk.shape, dtype=chunk.dtype)).array

        self.x, self.y, self.source, self.result = buffer("x"), buffer("y"), pinned("source"), pinned("result")
        self.number = 0
        self.decayed: cl.Event | None = None
        self.smoothed: cl.Event | None = None
        self.read: cl.Event | None = None

    def take(self, results: list[np.ndarray]) -> None:
        """Wait for the result, if there is one, and keep a copy."""
        if self.read is not None:
            self.read.wait()
            results.append(self.result.copy())


class Pipeline:
    """The queues, and what is enqueued for a chunk."""

    def __init__(self, context: cl.Context, rounds: int) -> None:
        first, second = context.devices[0], context.devices[-1]
        profiled = cl.command_queue_properties.PROFILING_ENABLE
        self.copies, self.work, self.arrivals, self.work2, self.reads = (
            cl.CommandQueue(context, one, profiled) for one in (first, first, second, second, second)
        )
        program = cl.Program(context, SOURCE).build()
        self.decay, self.smooth = cl.Kernel(program, "decay"), cl.Kernel(program, "smooth")
        self.rounds = np.int32(rounds)
        self.events: dict[tuple[str, int], cl.Event] = {}

    def begin(self, slot: Slot, number: int, chunk: np.ndarray) -> None:
        """Fill a buffer and have the first device work on it."""
        slot.number, size = number, (chunk.size,)
        slot.source[:] = chunk
        # It is the second device's: without this the driver would carry the old content back, only to have it replaced.
        empty = Migration(self.copies, slot.x, MigrationFlags.CONTENT_UNDEFINED, wait_for=slot.smoothed)
        filled = cml.enqueue_copy(self.copies, slot.x, slot.source, is_blocking=False, wait_for=empty)
        slot.decayed = cml.enqueue_kernel(
            self.work, self.decay, size, None, InOut(slot.x), self.rounds, wait_for=filled
        )
        self.events["fill", number], self.events["decay", number] = filled, slot.decayed

    def go_on(self, slot: Slot) -> None:
        """Bring it to the second device, have that work on it, and read the result."""
        moved = Migration(self.arrivals, slot.x, wait_for=slot.decayed, via="auto", source_queue=self.copies)
        slot.smoothed = cml.enqueue_kernel(
            self.work2, self.smooth, slot.source.shape, None, In(slot.x), Out(slot.y), self.rounds,
            wait_for=[moved, slot.read],
        )  # fmt: skip
        slot.read = cml.enqueue_copy(self.reads, slot.result, slot.y, is_blocking=False, wait_for=slot.smoothed)
        for step, event in zip(STEPS[2:], (moved.event, slot.smoothed, slot.read), strict=True):
            self.events[step, slot.number] = event


def run(
    context: cl.Context, chunks: list[np.ndarray], rounds: int, depth: int, recorded: cml.record_timeline | None = None
) -> tuple[list[np.ndarray], Spans]:
    """Send the chunks through; return the results, and when each command ran."""
    pipeline = Pipeline(context, rounds)
    results: list[np.ndarray] = []
    with ExitStack() as stack:
        slots = [Slot(stack, pipeline.copies, chunks[0]) for _ in range(depth)]
        begun: deque[Slot] = deque()
        if recorded is not None:
            stack.enter_context(recorded)  # from here on: the maps of pinned memory would be all there is to see
        for number, chunk in enumerate(chunks):
            slot = slots[number % depth]
            slot.take(results)
            pipeline.begin(slot, number, chunk)
            begun.append(slot)
            # The next chunk comes first: a driver may let the call of a migration wait until its data is ready.
            while len(begun) > min(1, depth - 1):
                pipeline.go_on(begun.popleft())
        while begun:
            pipeline.go_on(begun.popleft())
        for number in range(len(chunks), len(chunks) + depth):
            slots[number % depth].take(results)
    # No event is kept: on some drivers it keeps the memory of its command.
    return results, {key: (one.profile.start, one.profile.end) for key, one in pipeline.events.items()}


STEPS = ("fill", "decay", "migrate", "smooth", "read")


def timeline(spans: Spans, width: int = 72) -> str:
    """Draw when each command ran: a row for each step, chunks as digits."""
    begin = min(start for start, _ in spans.values())
    scale = width / max(1, max(end for _, end in spans.values()) - begin)
    lines = []
    for step in STEPS:
        row = [" "] * (width + 1)
        for (name, number), (start, end) in spans.items():
            if name == step:
                left, right = int((start - begin) * scale), int((end - begin) * scale)
                row[left : max(right, left + 1)] = str(number % 10) * max(right - left, 1)
        lines.append(f"{step:>8} |{''.join(row).rstrip()}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--elements", type=int, default=1 << 18, help="of a chunk")
    parser.add_argument("--rounds", type=int, default=200, help="how much the kernels do for each element")
    parser.add_argument("--depth", type=int, default=3, help="chunks under way at once")
    parser.add_argument("--timeline", metavar="FILE", help="a picture (.svg, .png), or a trace for Perfetto (.json)")
    wanted = parser.parse_args()
    if min(wanted.chunks, wanted.elements, wanted.depth) < 1 or not 0 <= wanted.rounds < 1 << 31:
        parser.error("there is one chunk at least, of one element, one under way; and rounds are 0 or more")
    try:
        context = cl.Context(cl.choose_devices(interactive=False)[0].platform.get_devices()[:2])
    except cl.Error as error:
        parser.exit(2, f"{parser.prog}: no OpenCL device: {error}\n")
    random = np.random.default_rng(1)
    chunks = [random.random(wanted.elements, np.float32) for _ in range(wanted.chunks)]
    recorded = cml.record_timeline()
    with cml.track("raise"), cml.check_hazards():
        results, spans = run(context, chunks, wanted.rounds, wanted.depth, recorded)
    for chunk, result in zip(chunks, results, strict=True):
        np.testing.assert_allclose(result, expected(chunk, wanted.rounds), rtol=1e-5)
    if wanted.timeline:
        (recorded.save if wanted.timeline.endswith(".json") else recorded.plot)(wanted.timeline)
    print(timeline(spans))
    print(f"{wanted.chunks} chunks are right, {len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
