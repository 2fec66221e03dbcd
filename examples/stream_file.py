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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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


class ZeroBytes:
    """What zero bytes do to a CRC register: linear over GF(2), so 32 columns say it (zlib's crc32_combine)."""

    def __init__(self, table: np.ndarray) -> None:
        columns = [int(table[1 << bit & 255]) ^ 1 << bit >> 8 for bit in range(32)]
        self.powers = [columns]  # 1, 2, 4, ... bytes
        while 1 << len(self.powers) <= BLOCK:
            last = self.powers[-1]
            self.powers.append([self.times(last, column) for column in last])

    @staticmethod
    def times(columns: list[int], register: int) -> int:
        return reduce(xor, (column for bit, column in enumerate(columns) if register >> bit & 1), 0)

    def append(self, register: int, nbytes: int) -> int:
        for bit, columns in enumerate(self.powers):
            register = self.times(columns, register) if nbytes >> bit & 1 else register
        return register


class Result:
    """What is known of one file so far."""

    def __init__(self) -> None:
        self.size, self.register, self.counts = 0, 0xFFFFFFFF, np.zeros(256, np.int64)

    def add(self, size: int, counts: np.ndarray, registers: np.ndarray, zeros: ZeroBytes) -> None:
        self.counts += counts.sum(axis=0, dtype=np.int64)
        for start, register in zip(range(0, size, BLOCK), registers.tolist()):
            self.register = zeros.append(self.register, min(BLOCK, size - start)) ^ register
        self.size += size

    @property
    def crc32(self) -> int:
        return self.register ^ 0xFFFFFFFF

    @property
    def entropy(self) -> float:
        """Bits per byte."""
        shares = self.counts[self.counts > 0] / max(self.size, 1)
        return float(-(shares * np.log2(shares)).sum()) + 0.0


class Slot:
    """The device buffers of one chunk, the maps of its results, and the event after which it may be filled anew."""

    def __init__(self, stack: ExitStack, context: cl.Context, chunk: int, number: int) -> None:
        def buffer(name: str, size: int) -> MemHandle:
            return stack.enter_context(MemHandle.create_buffer(context, size, label=f"{name} {number}"))

        blocks = -(-chunk // BLOCK)
        self.data, self.counts = buffer("data", chunk), buffer("counts", blocks * 1024)
        self.registers = buffer("registers", blocks * 4)
        self.maps: list[Mapping] = []
        self.finish: Callable[[], int] | None = None
        self.free: cl.Event | None = None
        stack.callback(lambda: [one.unmap() for one in self.maps])  # on an error too


class Streamer:
    """The devices, their kernels, and a ring of slots; everything ends with `stack`."""

    def __init__(self, stack: ExitStack, chunk: int, depth: int) -> None:
        chosen = cl.choose_devices(interactive=False)  # as PYOPENCL_CTX says
        self.devices = (chosen if len(chosen) > 1 else [*chosen, *chosen[0].platform.get_devices()[1:2]])[:2]
        context = cl.Context(self.devices)
        loose = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        queues = [cl.CommandQueue(context, one, one.queue_properties & loose) for one in self.devices]
        self.first, self.second = queues[0], queues[-1]
        program = cl.Program(context, LITTLE_ENDIAN_KERNELS).build([f"-DBLOCK={BLOCK}ul"])
        self.histogram, self.crc = cl.Kernel(program, "histogram"), cl.Kernel(program, "crc")
        tables = crc_tables()
        flags = MemFlags.READ_ONLY | MemFlags.COPY_HOST_PTR
        self.tables = stack.enter_context(MemHandle.create_buffer(context, flags=flags, hostbuf=tables, label="tables"))
        self.zeros = ZeroBytes(tables[0])
        chunk = min(chunk, *(one.max_mem_alloc_size for one in self.devices))
        self.slots = deque(Slot(stack, context, chunk, number) for number in range(depth))

    def send(self, slot: Slot, file: BinaryIO, result: Result) -> int:
        """Fill a slot from the file and enqueue all that is to be done with it; return the bytes, 0 at the end."""
        with Mapping(self.first, slot.data, MapFlags.WRITE_INVALIDATE_REGION, wait_for=slot.free) as chunk:
            size = file.readinto(chunk.array)
        slot.free = chunk.unmap_event
        if not size:
            return 0
        blocks = -(-size // BLOCK)
        uses, results_free = In(slot.data, 0, size), [one.unmap_event for one in slot.maps]
        counted = cml.enqueue_kernel(
            self.first, self.histogram, (blocks,), (1,), uses, np.uint64(size), Out(slot.counts, 0, blocks * 1024),
            wait_for=[chunk.unmap_event, results_free],
        )  # fmt: skip
        moved = Migration(self.second, slot.data, wait_for=counted)
        slot.free = cml.enqueue_kernel(
            self.second, self.crc, (blocks,), (1,), uses, np.uint64(size), In(self.tables),
            Out(slot.registers, 0, blocks * 4), wait_for=[moved, results_free],
        )  # fmt: skip
        counts = Mapping(
            self.first, slot.counts, MapFlags.READ, shape=(blocks, 256), dtype=np.uint32, wait_for=counted
        )
        slot.maps = [counts]
        registers = Mapping(
            self.second, slot.registers, MapFlags.READ, shape=blocks, dtype=np.uint32, wait_for=slot.free
        )
        slot.maps = [counts, registers]

        def finish() -> int:
            with counts, registers:  # their arrays are ready when the kernels are
                result.add(size, counts.array, registers.array, self.zeros)
            return size

        slot.finish = finish
        return size

    def run(self, files: dict[Path, Result]) -> Iterator[int]:
        """Stream the files, with a chunk in every slot; yield the bytes that are done, chunk by chunk."""
        for path, result in files.items():
            with open(path, "rb") as file:
                sent = 1
                while sent:
                    slot = self.slots[0]  # the one that was sent first
                    self.slots.rotate(-1)
                    if slot.finish:
                        yield slot.finish()
                    slot.finish = None
                    sent = self.send(slot, file, result)
        yield from (slot.finish() for slot in self.slots if slot.finish)


def check(path: Path) -> int:
    """Return the size of a file that can be read and is not empty."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(path, "rb") as file:
        if not file.read(1):
            raise OSError(errno.EINVAL, "the file is empty, there is nothing to compute", str(path))
        return os.fstat(file.fileno()).st_size


def verified(path: Path, result: Result) -> bool:
    """Compute the same with zlib and NumPy."""
    crc, counts = 0, np.zeros(256, np.int64)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            crc = zlib.crc32(piece, crc)
            counts += np.bincount(np.frombuffer(piece, np.uint8), minlength=256)
    return crc == result.crc32 and bool((counts == result.counts).all())


def positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="files; by default the library's source")
    parser.add_argument("--chunk", type=positive, default=4 << 20, help="bytes of one chunk (default: %(default)s)")
    parser.add_argument("--depth", type=positive, default=4, help="chunks on their way (default: %(default)s)")
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, help="compare with NumPy and zlib (default: up to 256 MiB)"
    )
    options = parser.parse_args()
    paths = options.paths or [
        path for path in sorted((Path(__file__).parents[1] / "src").rglob("*.py")) if path.stat().st_size
    ]
    try:
        total = sum([check(path) for path in paths])
        files = {path: Result() for path in paths}
        with ExitStack() as stack:
            streamer = Streamer(stack, options.chunk, options.depth)
            bar = tqdm and stack.enter_context(tqdm(total=total, unit="B", unit_scale=True, disable=None))
            begin = time.perf_counter()
            for size in streamer.run(files):
                if bar:
                    bar.update(size)
            seconds = time.perf_counter() - begin
        wrong = [path for path in paths if not verified(path, files[path])] if options.verify or (
            options.verify is None and total <= MODEST) else []
    except OSError as error:
        print(f"{parser.prog}: {error.filename or 'reading'}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
