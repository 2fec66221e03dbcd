"""Raw PyOpenCL against this library: migration, copies across, streams, maps; one command, both sides in one run.

``python tests/benchmarks/bench_transfers.py [--largest BYTES] [--platform NAME] [--json FILE] [--plot FILE]``

All data is compared in full, outside of the time that is measured. Figures are the best of several rounds, in GB/s
(10^9 bytes); a row of one device is left out where a second one is needed and missing.
"""

# ruff: noqa: B023 - functions made in a loop are called in the same round

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("POCL_DEVICES", "pthread pthread")
os.environ.setdefault("PYOPENCL_COMPILER_OUTPUT", "0")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, MapFlags, Mapping, MemFlags, MemHandle, Migration, Out

MIB = 1 << 20
KERNELS = """
__kernel void add_one(__global const uint *x, __global uint *y, int rounds) {
  size_t i = get_global_id(0);
  uint v = x[i];
  for (int k = 0; k < rounds; ++k) v = v * 1664525u + 1013904223u;
  y[i] = rounds ? v : v + 1;
}
__kernel void touch(__global uint *x) { x[get_global_id(0)] += 1; }
"""


def best(rounds: int, run: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    """Return the shortest time of `run` in seconds."""
    times = []
    for _ in range(rounds):
        before()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def size_text(nbytes: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if nbytes >= step:
            return f"{nbytes / step:g} {unit}"
    return f"{nbytes} B"


class Bench:
    def __init__(self, platform: str, largest: int) -> None:
        found = [one for one in cl.get_platforms() if platform.lower() in one.name.lower()]
        self.devices = found[0].get_devices()[:2]
        self.context = cl.Context(self.devices)
        self.program = cl.Program(self.context, KERNELS).build()
        self.queues = [cl.CommandQueue(self.context, one) for one in (self.devices[0], self.devices[-1])]
        self.largest = largest
        self.data = np.random.default_rng(1).integers(0, 1 << 32, max(largest, 512 * MIB) // 4, np.uint32)
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, nbytes: int, **figures: Any) -> None:
        row = {"what": what, "nbytes": nbytes, **figures}
        self.rows.append(row)
        text = "  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"{what:<14} {size_text(nbytes):>8}  {text}", flush=True)

    def sizes(self, smallest: int = 4096) -> list[int]:
        found = []
        while smallest <= self.largest:
            found.append(smallest)
            smallest *= 4
        return found

    def check(self, queue: cl.CommandQueue, handle: MemHandle, added: int) -> None:
        out = np.empty(handle.size // 4, np.uint32)
        cl.enqueue_copy(queue, out, handle.mem)
        out -= np.uint32(added)
        assert np.array_equal(out, self.data[: out.size])

    def migration(self) -> None:
        one, two = self.queues
        touch = cl.Kernel(self.program, "touch")
        for nbytes in self.sizes():
            slow = nbytes >= 64 * MIB
            with MemHandle.create_buffer(self.context, nbytes) as field:
                added = 0

                def at_home(field: MemHandle = field, count: int = nbytes // 4) -> None:
                    nonlocal added
                    cl.enqueue_copy(one, field.mem, self.data[:count])
                    touch(one, (count,), None, field.mem)
                    one.finish()
                    added = 1

                def raw(field: MemHandle = field) -> None:
                    cl.enqueue_migrate_mem_objects(two, [field.mem], 0).wait()

                figures = {}
                for name, run in (
                    ("raw", raw),
                    ("staged", lambda field=field: Migration(two, field, via="staged", source_queue=one).wait()),
                    ("auto", lambda field=field: Migration(two, field, via="auto", source_queue=one).wait()),
                ):
                    at_home()
                    run()
                    touch(two, (nbytes // 4,), None, field.mem).wait()
                    self.check(two, field, added + 1)
                    figures[name] = nbytes / best(1 if slow and name == "raw" else 4, run, at_home) / 1e9
                via = Migration(two, field, via="auto", source_queue=one).via
            self.add("migration", nbytes, **figures, times=figures["staged"] / figures["raw"], auto_is=via)

    def across(self) -> None:
        one, two = self.queues
        for nbytes in self.sizes():
            slow = nbytes >= 64 * MIB
            with (
                MemHandle.create_buffer(self.context, nbytes) as src,
                MemHandle.create_buffer(self.context, nbytes) as to,
            ):
                cl.enqueue_copy(one, src.mem, self.data[: nbytes // 4])
                figures = {}
                for name, run in (
                    ("raw", lambda src=src, to=to: cl.enqueue_copy(two, to.mem, src.mem).wait()),
                    ("across", lambda src=src, to=to: cml.enqueue_copy_across(one, two, to, src).wait()),
                ):
                    # The next copy from `src` finds it on the first device, as a program would have it.
                    home = lambda src=src: (cl.enqueue_copy(one, src.mem, self.data[: nbytes // 4]), one.finish())  # noqa: E731
                    cl.enqueue_fill_buffer(two, to.mem, np.uint8(0), 0, nbytes).wait()
                    home()
                    run()
                    self.check(two, to, 0)
                    figures[name] = nbytes / best(1 if slow and name == "raw" else 4, run, home) / 1e9
            self.add("copy across", nbytes, **figures, times=figures["across"] / figures["raw"])

    def pinned(self, nbytes: int) -> np.ndarray:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self.context, flags, nbytes)
        how = cl.map_flags.READ | cl.map_flags.WRITE
        return cl.enqueue_map_buffer(self.queues[0], buffer, how, 0, (nbytes,), np.uint8)[0]

    def stream(self, total: int, chunk: int, depth: int, rounds: int, name: str) -> None:
        """Measure a stream; and copy in, kernel, copy out alone, and all of it in PyOpenCL, in the same chunks.

        ``in+out`` is both copies at once, with nothing between them; ``raw`` has wait-lists and a limit as the stream
        has; ``ahead`` is the same, enqueued at once. ``stream`` is from an open stream to its last result, ``whole``
        includes that its memory comes and goes.
        """
        into, kernels, out = (cl.CommandQueue(self.context, self.devices[0]) for _ in range(3))
        kernel = cl.Kernel(self.program, "add_one")
        count, items = total // chunk, (chunk // 4,)
        hosts = [self.pinned(chunk) for _ in range(2 * depth)]
        flags = cl.mem_flags.READ_WRITE
        here = [cl.Buffer(self.context, flags, chunk) for _ in range(depth)]
        there = [cl.Buffer(self.context, flags, chunk) for _ in range(depth)]
        arg = np.int32(rounds)

        def alone(queue: cl.CommandQueue, enqueue: Callable[[int], Any]) -> float:
            def run() -> None:
                held = [enqueue(number % depth) for number in range(count)]
                queue.finish()
                del held

            return total / best(3, run) / 1e9

        bound = {
            "in": alone(into, lambda k: cl.enqueue_copy(into, here[k], hosts[k], is_blocking=False)),
            "kernel": alone(kernels, lambda k: kernel(kernels, items, None, here[k], there[k], arg)),
            "out": alone(out, lambda k: cl.enqueue_copy(out, hosts[depth + k], there[k], is_blocking=False)),
        }

        def launch(slot: cml.Slot, wait_for: list[cl.Event]) -> cl.Event:
            return cml.enqueue_kernel(
                slot.queue, kernel, items, None, In(slot.input), Out(slot.output), arg, wait_for=wait_for
            )

        def both() -> None:
            held = []
            for number in range(count):
                k = number % depth
                held.append(cl.enqueue_copy(into, here[k], hosts[k], is_blocking=False))
                held.append(cl.enqueue_copy(out, hosts[depth + k], there[k], is_blocking=False))
            into.finish()
            out.finish()

        bound["in+out"] = total / best(3, both) / 1e9

        def by_hand(window: int) -> None:
            held: list[tuple[cl.Event, cl.Event, cl.Event]] = []
            for number in range(count):
                k = number % depth
                before = held[number - depth] if number >= depth else None
                if number >= window:
                    held[number - window][2].wait()
                copied = cl.enqueue_copy(
                    into, here[k], hosts[k], is_blocking=False, wait_for=None if before is None else [before[1]]
                )
                into.flush()
                waits = [copied] if before is None else [copied, before[2]]
                done = kernel(kernels, items, None, here[k], there[k], arg, wait_for=waits)
                kernels.flush()
                read = cl.enqueue_copy(out, hosts[depth + k], there[k], is_blocking=False, wait_for=[done])
                out.flush()
                held.append((copied, done, read))
            out.finish()

        bound["raw"] = total / best(5, lambda: by_hand(depth)) / 1e9
        bound["ahead"] = total / best(5, lambda: by_hand(count)) / 1e9
        opened: list[float] = []

        def run(chunks: Any = None) -> None:
            # Filling pinned memory is the producer's own time: here it is filled already.
            source = iter([lambda memory: None] * count) if chunks is None else chunks
            with cml.stream_chunks(
                source, launch, queues=[into, kernels, out], depth=depth, chunk_bytes=chunk, output_dtype=np.uint32
            ) as stream:
                into.finish()
                start = time.perf_counter()
                for number, result in enumerate(stream):
                    last = time.perf_counter()
                    if chunks is not None:
                        want = self.data[number * items[0] :][: items[0]].copy()
                        for _ in range(rounds):
                            want *= np.uint32(1664525)
                            want += np.uint32(1013904223)
                        want += np.uint32(not rounds)
                        assert np.array_equal(result, want)
                opened.append(last - start)

        if rounds < 8:
            run(self.data[: min(total, 64 * chunk) // 4])
        run()
        opened.clear()
        whole = total / best(5, run) / 1e9
        speed = total / min(opened) / 1e9
        self.add(
            name, total, chunk=size_text(chunk), depth=depth, **bound, stream=speed, whole=whole,
            percent_of_slowest=100 * speed / min(bound[one] for one in ("in", "kernel", "out")),
            percent_of_raw=100 * speed / bound["raw"],
        )  # fmt: skip

    def streams(self) -> None:
        long = self.long_kernel(4 * MIB)
        for total in (one for one in (256 * MIB, 1024 * MIB, 4096 * MIB) if one <= self.largest):
            for chunk in (2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB):
                self.stream(total, chunk, 3, 0, "stream")
            for chunk in (4 * MIB, 8 * MIB):
                self.stream(total, chunk, 3, long, "long kernel")

    def long_kernel(self, chunk: int) -> int:
        """Return how many rounds make the kernel take about twice as long as a copy."""
        queue, kernel, rounds = self.queues[0], cl.Kernel(self.program, "add_one"), 64
        memory, host = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 2 * chunk), self.pinned(chunk)
        copy = best(5, lambda: cl.enqueue_copy(queue, memory, host, is_blocking=False).wait())
        half = memory.get_sub_region(0, chunk), memory.get_sub_region(chunk, chunk)
        while True:
            arg = np.int32(rounds)
            if best(3, lambda arg=arg: kernel(queue, (chunk // 4,), None, *half, arg).wait()) > 2 * copy:
                return rounds
            rounds *= 2

    def maps(self) -> None:
        queue = self.queues[0]
        touch = cl.Kernel(self.program, "touch")
        for nbytes in self.sizes(64 << 10):
            if nbytes > 1 << 30:
                break
            out = np.empty(nbytes // 4, np.uint32)
            out[:] = 1
            figures = {}
            for kind, flags in (
                ("", MemFlags.READ_WRITE),
                ("pinned ", MemFlags.READ_WRITE | MemFlags.ALLOC_HOST_PTR),
                ("zero-copy ", MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR),
            ):
                own = cml.aligned_empty(nbytes, np.uint8, self.context) if flags & MemFlags.USE_HOST_PTR else None
                with MemHandle.create_buffer(self.context, nbytes, flags, hostbuf=own) as field:
                    cl.enqueue_copy(queue, field.mem, self.data[: nbytes // 4])
                    kernel = lambda field=field: touch(queue, (nbytes // 4,), None, field.mem).wait()  # noqa: E731

                    def raw(field: MemHandle = field) -> None:
                        array, _ = cl.enqueue_map_buffer(
                            queue, field.mem, cl.map_flags.READ, 0, (nbytes // 4,), np.uint32
                        )
                        array.base.release(queue).wait()

                    def mapped(field: MemHandle = field) -> None:
                        with Mapping(queue, field, MapFlags.READ, shape=nbytes // 4, dtype=np.uint32) as mapping:
                            mapping.array
                        mapping.unmap_event.wait()

                    for name, run in (("map raw", raw), ("map", mapped)):
                        figures[kind + name] = nbytes / best(3, run, kernel) / 1e9
                    figures[kind + "copy"] = (
                        nbytes / best(3, lambda field=field: cml.enqueue_copy(queue, out, field), kernel) / 1e9
                    )
            self.add("map", nbytes, **figures)

    def facts(self) -> dict[str, str]:
        device = self.devices[0]
        return {
            "device": f"{len(self.devices)} x {device.name.strip()}",
            "driver": f"{device.platform.name} {device.driver_version}",
            "pyopencl": f"PyOpenCL {cl.VERSION_TEXT}",
            "date": time.strftime("%Y-%m-%d"),
        }


def plot(rows: list[dict[str, Any]], facts: dict[str, str], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, sides = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for side, what, ours in ((sides[0], "migration", "staged"), (sides[1], "copy across", "across")):
        chosen = [row for row in rows if row["what"] == what]
        sizes = [row["nbytes"] / MIB for row in chosen]
        for name, label in (("raw", "PyOpenCL (the driver)"), (ours, f"clmemlife, {ours}")):
            side.loglog(sizes, [row[name] for row in chosen], marker="o", label=label)
        side.set(title=what, xlabel="MiB", ylabel="GB/s")
        side.grid(alpha=0.3)
        side.legend()
    figure.suptitle(", ".join(facts.values()), fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=lambda text: int(float(text)), default=256 * MIB, help="bytes")
    parser.add_argument("--platform", default="", help="part of the platform's name")
    parser.add_argument("--only", default="migration across streams maps", help="which parts")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--plot", help="draw migration and copies across into this file (needs matplotlib)")
    wanted = parser.parse_args()
    bench = Bench(wanted.platform, wanted.largest)
    print(*bench.facts().values(), sep=", ")
    with cml.staging(bench.context):
        for part in wanted.only.split():
            if len(bench.devices) < 2 and part in ("migration", "across"):
                print(f"{part}: needs two devices")
                continue
            getattr(bench, part)()
    if wanted.json:
        Path(wanted.json).write_text(json.dumps({"facts": bench.facts(), "rows": bench.rows}, indent=1))
    if wanted.plot:
        plot(bench.rows, bench.facts(), wanted.plot)
    left = cml.statistics()
    assert (left.current_count, left.staging_bytes) == (0, 0), left


if __name__ == "__main__":
    main()
