"""Two devices, one after the other: while the second works on a chunk, the next one is already on its way to it.

    fill -> decay (first device) -> migrate -> smooth (second device) -> read

Each chunk has a buffer of its own until it is read. Nothing waits but wait-lists: a migration is enqueued as early as
its data can be ready, on a queue of its own, and waited for as late as the kernel that needs it (that is a prefetch).
``python examples/two_device_pipeline.py`` prints when each command ran; ``--timeline`` draws it.
"""

from __future__ import annotations

import argparse
import os
from collections import deque

os.environ.setdefault("POCL_DEVICES", "pthread pthread")  # read when PyOpenCL loads the driver

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, InOut, MemHandle, Migration, Out

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

Events = dict[tuple[str, int], cl.Event]  # by step and chunk


def expected(chunk: np.ndarray, rounds: int) -> np.ndarray:
    def decayed(v: np.ndarray) -> np.ndarray:
        for _ in range(rounds):
            v = v * np.float32(0.5) + np.float32(1)
        return v

    padded = np.pad(decayed(chunk), 1, "edge")
    return decayed((padded[:-2] + padded[1:-1] + padded[2:]) / np.float32(3))


def run(context: cl.Context, chunks: list[np.ndarray], rounds: int, depth: int) -> tuple[list[np.ndarray], Events]:
    """Send the chunks through; return the results, and the events by step and chunk."""
    first, second = context.devices[0], context.devices[-1]
    profiled = cl.command_queue_properties.PROFILING_ENABLE
    copies, work, arrivals, work2, reads = (
        cl.CommandQueue(context, one, profiled) for one in (first, first, second, second, second)
    )
    program = cl.Program(context, SOURCE).build()
    decay, smooth = cl.Kernel(program, "decay"), cl.Kernel(program, "smooth")
    times, size = np.int32(rounds), (chunks[0].size,)
    results, events = [np.empty_like(chunk) for chunk in chunks], {}
    flying: deque[tuple[MemHandle, MemHandle, cl.Event]] = deque()
    for number, chunk in enumerate(chunks):
        if len(flying) == depth:
            retire(*flying.popleft())
        x = MemHandle.create_buffer(context, chunk.nbytes, label=f"chunk {number}")
        y = MemHandle.create_buffer(context, chunk.nbytes, label=f"result {number}")
        filled = cml.enqueue_copy(copies, x, chunk, is_blocking=False)
        decayed = cml.enqueue_kernel(work, decay, size, None, InOut(x), times, wait_for=filled)
        moved = Migration(arrivals, x, wait_for=decayed, via="auto", source_queue=copies)
        smoothed = cml.enqueue_kernel(work2, smooth, size, None, In(x), Out(y), times, wait_for=moved)
        read = cml.enqueue_copy(reads, results[number], y, is_blocking=False, wait_for=smoothed)
        for step, event in zip(STEPS, (filled, decayed, moved.event, smoothed, read), strict=True):
            events[step, number] = event
        flying.append((x, y, read))
    while flying:
        retire(*flying.popleft())
    return results, events


def retire(x: MemHandle, y: MemHandle, read: cl.Event) -> None:
    read.wait()
    x.release()
    y.release()


STEPS = ("fill", "decay", "migrate", "smooth", "read")


def timeline(events: Events, width: int = 72) -> str:
    """Draw when each command ran: a row for each step, chunks as digits."""
    spans = {key: (event.profile.start, event.profile.end) for key, event in events.items()}
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
    with cml.check_hazards(), cml.track("raise"), cml.record_timeline() as recorded:
        results, events = run(context, chunks, wanted.rounds, wanted.depth)
    for chunk, result in zip(chunks, results, strict=True):
        np.testing.assert_allclose(result, expected(chunk, wanted.rounds), rtol=1e-5)
    if wanted.timeline:
        (recorded.save if wanted.timeline.endswith(".json") else recorded.plot)(wanted.timeline)
    print(timeline(events))
    print(f"{wanted.chunks} chunks are right, {len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
