"""Byte histogram, entropy and CRC-32 of files of any size, through a few device buffers.

Every chunk of a file goes this way, and several are on their way at once:

    map, fill from the file, unmap -> histogram (device 1) -> migrate -> CRC-32 (device 2) -> map, read

The queues are out-of-order where the device can do that, so wait-lists alone order the steps. A second device is used
where there is one; PoCL makes two of one CPU. ``python examples/stream_file.py PATH...``; without a path it takes the
source of the library.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import xor
from pathlib import Path
from typing import BinaryIO

os.environ.setdefault("POCL_DEVICES", "pthread pthread")  # PoCL reads it once, when PyOpenCL loads it

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, MapFlags, Mapping, MemFlags, MemHandle, Migration, Out

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

BLOCK = 1 << 16  # bytes for one work-item
MODEST = 256 << 20  # bytes that are verified without being asked
LITTLE_ENDIAN_KERNELS = """
#define FROM (get_global_id(0) * BLOCK)
#define TO min(size, FROM + BLOCK)

__kernel void histogram(__global const uchar *data, ulong size, __global uint *counts) {
  uint own[4][256] = {{0}};  /* four, so that equal neighbours need not wait for each other */
  ulong i = FROM, end = TO;
  for (; i + 8 <= end; i += 8) {
    uint2 w = *(__global const uint2 *)(data + i);
    own[0][w.x & 255]++; own[1][w.x >> 8 & 255]++; own[2][w.x >> 16 & 255]++; own[3][w.x >> 24]++;
    own[0][w.y & 255]++; own[1][w.y >> 8 & 255]++; own[2][w.y >> 16 & 255]++; own[3][w.y >> 24]++;
  }
  for (; i < end; ++i) own[0][data[i]]++;
  for (int k = 0; k < 256; ++k) counts[get_global_id(0) * 256 + k] = own[0][k] + own[1][k] + own[2][k] + own[3][k];
}

__kernel void crc(__global const uchar *data, ulong size, __global const uint *t, __global uint *registers) {
  uint c = 0;
  ulong i = FROM, end = TO;
  for (; i + 8 <= end; i += 8) {
    uint2 w = *(__global const uint2 *)(data + i);
    c ^= w.x;
    c = t[1792 + (c & 255)] ^ t[1536 + (c >> 8 & 255)] ^ t[1280 + (c >> 16 & 255)] ^ t[1024 + (c >> 24)]
      ^ t[768 + (w.y & 255)] ^ t[512 + (w.y >> 8 & 255)] ^ t[256 + (w.y >> 16 & 255)] ^ t[w.y >> 24];
  }
  for (; i < end; ++i) c = t[(c ^ data[i]) & 255] ^ c >> 8;
  registers[get_global_id(0)] = c;
}
"""


def crc_tables() -> np.ndarray:
    """Return 8 tables of 256: the CRC register after a byte and 0 to 7 zero bytes."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, one >> 1 ^ np.uint32(0xEDB88320), one >> 1)
    tables = [one]
    for _ in range(7):
        tables.append(one[tables[-1] & 255] ^ tables[-1] >> 8)
    return np.stack(tables)


def times(columns: list[int], register: int) -> int:
    """Multiply a matrix over GF(2) with a register."""
    return reduce(xor, (column for bit, column in enumerate(columns) if register >> bit & 1), 0)


TABLES = crc_tables()
# What 1, 2, 4, ... zero bytes do to a register is linear, so that registers of blocks combine (zlib's crc32_combine).
ZEROS = [[int(TABLES[0][1 << bit & 255]) ^ 1 << bit >> 8 for bit in range(32)]]
while 1 << len(ZEROS) <= BLOCK:
    ZEROS.append([times(ZEROS[-1], column) for column in ZEROS[-1]])


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and have an error of reading name it as one of opening does."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        error.filename = str(path)
        raise


class Result:
    """What is known of one file so far."""

    def __init__(self) -> None:
        self.size, self.register, self.counts = 0, 0xFFFFFFFF, np.zeros(256, np.int64)

    def add(self, size: int, counts: np.ndarray, registers: np.ndarray) -> None:
        """Add a chunk: a histogram and a CRC register (begun with 0) for each of its blocks."""
        self.counts += counts.sum(axis=0, dtype=np.int64)
        for start, register in zip(range(0, size, BLOCK), registers.tolist(), strict=True):
            for bit, columns in enumerate(ZEROS):
                if min(BLOCK, size - start) >> bit & 1:
                    self.register = times(columns, self.register)
            self.register ^= register
        self.size += size

    @property
    def crc32(self) -> int:
        return self.register ^ 0xFFFFFFFF

    def verify(self, path: Path) -> bool:
        """Compute the same with zlib and NumPy."""
        crc, counts = 0, np.zeros(256, np.int64)
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                crc = zlib.crc32(piece, crc)
                counts += np.bincount(np.frombuffer(piece, np.uint8), minlength=256)
        return crc == self.crc32 and bool((counts == self.counts).all())


class Slot:
    """The device buffers of one chunk, the maps of its results, and the event after which it may be filled anew."""

    def __init__(self, stack: ExitStack, context: cl.Context, chunk: int) -> None:
        blocks = -(-chunk // BLOCK)
        self.data, self.counts, self.registers = (
            stack.enter_context(MemHandle.create_buffer(context, size, label=label))
            for label, size in (("data", chunk), ("counts", blocks * 1024), ("registers", blocks * 4))
        )
        self.maps: list[Mapping] = []
        self.free: cl.Event | None = None
        self.job: tuple[Result, int] | None = None
        stack.callback(lambda: [one.unmap() for one in self.maps])  # where an error left them open


class Streamer:
    """Devices, kernels, and a ring of slots; their memory ends with `stack`."""

    def __init__(self, stack: ExitStack, chunk: int, depth: int) -> None:
        devices = cl.choose_devices(interactive=False)  # as PYOPENCL_CTX says, else one
        if len(devices) == 1:
            devices += [one for one in devices[0].platform.get_devices(devices[0].type) if one != devices[0]]
        self.devices = devices[:2]
        self.chunk = min(chunk, *(one.max_mem_alloc_size for one in self.devices))
        context = cl.Context(self.devices)
        loose = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        queues = [cl.CommandQueue(context, one, one.queue_properties & loose) for one in self.devices]
        self.first, self.second = queues[0], queues[-1]
        program = cl.Program(context, LITTLE_ENDIAN_KERNELS).build([f"-DBLOCK={BLOCK}ul"])
        self.histogram, self.crc = cl.Kernel(program, "histogram"), cl.Kernel(program, "crc")
        flags = MemFlags.READ_ONLY | MemFlags.COPY_HOST_PTR
        self.tables = stack.enter_context(MemHandle.create_buffer(context, flags=flags, hostbuf=TABLES, label="tables"))
        self.slots = deque(Slot(stack, context, self.chunk) for _ in range(depth))

    def send(self, slot: Slot, file: BinaryIO, result: Result) -> int:
        """Fill a slot from the file and enqueue all that is to be done with it; return the bytes."""
        with Mapping(self.first, slot.data, MapFlags.WRITE_INVALIDATE_REGION, wait_for=slot.free) as chunk:
            size = file.readinto(chunk.array)
        slot.free = chunk.unmap_event
        if size:
            blocks = -(-size // BLOCK)
            results_free = [one.unmap_event for one in slot.maps]
            # Work-groups of one: PoCL keeps the tables of a whole group on one stack.
            counted = cml.enqueue_kernel(
                self.first, self.histogram, (blocks,), (1,),
                In(slot.data, 0, size), np.uint64(size), Out(slot.counts), wait_for=[slot.free, results_free],
            )  # fmt: skip
            moved = Migration(self.second, slot.data, wait_for=counted)
            slot.free = cml.enqueue_kernel(
                self.second, self.crc, (blocks,), (1,),
                In(slot.data, 0, size), np.uint64(size), In(self.tables), Out(slot.registers),
                wait_for=[moved, results_free],
            )  # fmt: skip
            slot.job, slot.maps = (result, size), []
            for queue, handle, shape, ready in (
                (self.first, slot.counts, (blocks, 256), counted), (self.second, slot.registers, blocks, slot.free),
            ):  # fmt: skip
                slot.maps.append(Mapping(queue, handle, MapFlags.READ, shape=shape, dtype=np.uint32, wait_for=ready))
        return size

    def receive(self, slot: Slot) -> int:
        """Wait for the results of a slot, if it was sent, and add them; return the bytes."""
        if slot.job is None:
            return 0
        (result, size), slot.job = slot.job, None
        with slot.maps[0] as counts, slot.maps[1] as registers:  # their arrays wait for the kernels
            result.add(size, counts.array, registers.array)
        return size

    def run(self, files: dict[Path, Result]) -> Iterator[int]:
        """Stream the files with every slot on its way; yield the bytes as chunks are done."""
        for path, result in files.items():
            with opened(path) as file:
                size = self.chunk
                while size == self.chunk:  # less is the end of the file
                    slot = self.slots[0]
                    self.slots.rotate(-1)
                    yield self.receive(slot)
                    size = self.send(slot, file, result)
        yield from map(self.receive, self.slots)


def entropy(counts: np.ndarray) -> float:
    """Return bits per byte."""
    shares = counts[counts > 0] / counts.sum()
    return float(abs((shares * np.log2(shares)).sum()))


def check(path: Path) -> int:
    """Return the size of a file that can be read and is not empty, else raise OSError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    with opened(path) as file:
        if not file.read(1):
            raise OSError(errno.EINVAL, "The file is empty", str(path))
        return os.fstat(file.fileno()).st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="files; by default the library's source")
    parser.add_argument("--chunk", type=int, default=4 << 20, help="bytes of one chunk (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=4, help="chunks on their way (default: %(default)s)")
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, help="compare with NumPy and zlib (default: up to 256 MiB)"
    )
    options = parser.parse_args()
    if options.chunk < 1 or options.depth < 1:
        parser.error("a chunk has at least one byte, and one at least is on its way")
    sources = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))
    files = {path: Result() for path in options.paths or [one for one in sources if one.stat().st_size]}
    try:
        total = sum([check(path) for path in files])
        with ExitStack() as stack:
            streamer = Streamer(stack, options.chunk, options.depth)
            bar = stack.enter_context(tqdm(total=total, unit="B", unit_scale=True, disable=None)) if tqdm else None
            begin = time.perf_counter()
            for size in streamer.run(files):
                if bar:
                    bar.update(size)
            seconds = time.perf_counter() - begin
        verify = total <= MODEST if options.verify is None else options.verify
        wrong = [path for path, result in files.items() if verify and not result.verify(path)]
    except OSError as error:
        print(f"{parser.prog}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        assert cml.live() == (), cml.live()

    print("crc32               bytes  bits/byte  file")
    for path, result in files.items():
        print(f"{result.crc32:08x}  {result.size:15,}  {entropy(result.counts):9.6f}  {path}")
    counts = sum(result.counts for result in files.values())
    often = ", ".join(f"{byte:#04x} {counts[byte] / counts.sum():.1%}" for byte in np.argsort(-counts)[:5])
    print(f"{len(files)} files, {counts.sum():,} bytes, {entropy(counts):.6f} bits/byte; most frequent: {often}")
    print(f"{counts.sum() / seconds / 1e6:,.0f} MB/s on {' and '.join(one.name.strip() for one in streamer.devices)}")
    print(f"device memory: {cml.statistics().peak_bytes:,} bytes at most, {len(cml.live())} objects alive now")
    for path in wrong:
        print(f"{parser.prog}: {path}: NumPy and zlib disagree", file=sys.stderr)
    print("not verified" if not verify else "WRONG" if wrong else "verified with NumPy and zlib")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
