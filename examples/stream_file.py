"""Byte histogram, entropy and CRC-32 of files of any size, through a few device buffers.

Every chunk of a file goes this way, and several are on their way at once (`clmemlife.stream_chunks`):

    read into pinned memory -> copy in -> histogram (device 1) -> migrate -> CRC-32 (device 2) -> copy out

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
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from io import BufferedReader
from operator import xor
from pathlib import Path

os.environ.setdefault("POCL_DEVICES", "pthread pthread")  # PoCL reads it once, when PyOpenCL loads it

import numpy as np
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, MemFlags, MemHandle, Migration, Out, Slot

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

BLOCK = 1 << 16  # bytes for one work-item
MODEST = 256 << 20  # bytes that are verified without being asked
RATED = 1 << 20  # bytes from which on a rate means something
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

__kernel void crc(__global const uchar *data, ulong size, __global const uint *t, __global uint *out, ulong at) {
  uint c = 0;
  ulong i = FROM, end = TO;
  for (; i + 8 <= end; i += 8) {
    uint2 w = *(__global const uint2 *)(data + i);
    c ^= w.x;
    c = t[1792 + (c & 255)] ^ t[1536 + (c >> 8 & 255)] ^ t[1280 + (c >> 16 & 255)] ^ t[1024 + (c >> 24)]
      ^ t[768 + (w.y & 255)] ^ t[512 + (w.y >> 8 & 255)] ^ t[256 + (w.y >> 16 & 255)] ^ t[w.y >> 24];
  }
  for (; i < end; ++i) c = t[(c ^ data[i]) & 255] ^ c >> 8;
  out[at + get_global_id(0)] = c;
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
def naming(path: Path) -> Iterator[None]:
    """Have an error of reading name the file as one of opening does."""
    try:
        yield
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


class NoDeviceError(Exception):
    """There is nothing to run on."""


class Streamer:
    """Devices, queues and kernels; what it holds ends with `stack`."""

    def __init__(self, stack: ExitStack, chunk: int, depth: int) -> None:
        try:
            devices = cl.choose_devices(interactive=False)  # as PYOPENCL_CTX says, else one
        except (cl.Error, RuntimeError) as error:
            raise NoDeviceError(error) from error
        if len(devices) == 1:
            devices += [one for one in devices[0].platform.get_devices(devices[0].type) if one != devices[0]]
        self.devices = devices[:2]
        self.chunk, self.depth = min(chunk, *(one.max_mem_alloc_size for one in self.devices)), depth
        context = cl.Context(self.devices)
        loose = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        where = (*[self.devices[0]] * 3, self.devices[-1])  # copies in, kernels, copies out; and the other kernels
        *self.queues, self.second = (
            cl.CommandQueue(context, one, *[loose] if one.queue_properties & loose else []) for one in where
        )
        program = cl.Program(context, LITTLE_ENDIAN_KERNELS).build([f"-DBLOCK={BLOCK}ul"])
        self.histogram, self.crc = cl.Kernel(program, "histogram"), cl.Kernel(program, "crc")
        flags = MemFlags.READ_ONLY | MemFlags.COPY_HOST_PTR
        self.tables = stack.enter_context(MemHandle.create_buffer(context, flags=flags, hostbuf=TABLES, label="tables"))
        self.sent: deque[tuple[Result, int]] = deque()

    def chunks(self, files: dict[Path, Result]) -> Iterator[Callable[[np.ndarray], int]]:
        """Yield, for each chunk, what reads it into pinned memory."""
        for path, result in files.items():
            with naming(path), open(path, "rb") as file:
                while file.peek(1):
                    yield partial(self.read, path, file, result)

    def read(self, path: Path, file: BufferedReader, result: Result, memory: np.ndarray) -> int:
        """Fill `memory` with the next chunk of a file; return how many bytes there were."""
        with naming(path):
            size = file.readinto(memory.data)
        self.sent.append((result, size))
        return size

    def launch(self, slot: Slot, wait_for: list[cl.Event]) -> cl.Event:
        """Enqueue what is to be done with a chunk: a histogram for each block, then a CRC register for each."""
        size, blocks = np.uint64(slot.input_bytes), -(-slot.input_bytes // BLOCK)
        slot.output_bytes = blocks * 1028
        data, counts, registers = (
            In(slot.input, 0, slot.input_bytes), Out(slot.output, 0, blocks * 1024),
            Out(slot.output, blocks * 1024, blocks * 4),
        )  # fmt: skip
        # Work-groups of one: PoCL keeps the tables of a whole group on one stack.
        counted = cml.enqueue_kernel(slot.queue, self.histogram, (blocks,), (1,), data, size, counts, wait_for=wait_for)
        moved = Migration(self.second, slot.input, wait_for=counted, via="auto", source_queue=slot.queue)
        checked = cml.enqueue_kernel(
            self.second, self.crc, (blocks,), (1,), data, size, In(self.tables), registers, np.uint64(blocks * 256),
            wait_for=moved,
        )  # fmt: skip
        return checked

    def run(self, files: dict[Path, Result]) -> Iterator[int]:
        """Stream the files and add up their results; yield the bytes as chunks are done."""
        with cml.stream_chunks(
            self.chunks(files), self.launch, queues=self.queues, depth=self.depth, chunk_bytes=self.chunk,
            output_bytes=-(-self.chunk // BLOCK) * 1028, output_dtype=np.uint32,
        ) as stream:  # fmt: skip
            for words in stream:
                result, size = self.sent.popleft()
                counts, registers = np.split(words, [words.size // 257 * 256])
                result.add(size, counts.reshape(-1, 256), registers)
                yield size


def entropy(counts: np.ndarray) -> float:
    """Return bits per byte."""
    shares = counts[counts > 0] / counts.sum()
    return float(abs((shares * np.log2(shares)).sum()))


def check(path: Path) -> int:
    """Return the size of a file that can be read and is not empty, else raise OSError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    with naming(path), open(path, "rb") as file:
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
    except NoDeviceError as error:
        print(f"{parser.prog}: no OpenCL device: {error}", file=sys.stderr)
        return 2
    finally:
        assert cml.live() == (), cml.live()

    print("crc32               bytes  bits/byte  file")
    for path, result in files.items():
        print(f"{result.crc32:08x}  {result.size:15,}  {entropy(result.counts):9.6f}  {path}")
    counts = np.sum([result.counts for result in files.values()], axis=0)
    often = ", ".join(f"{byte:#04x} {counts[byte] / counts.sum():.1%}" for byte in np.argsort(-counts)[:5])
    print(f"{len(files)} files, {counts.sum():,} bytes, {entropy(counts):.6f} bits/byte; most frequent: {often}")
    rate = f"{total / seconds / 1e6:,.0f} MB/s" if total >= RATED else f"{seconds:.3f} s, too little for a rate,"
    print(f"{rate} on {' and '.join(one.name.strip() for one in streamer.devices)}")
    print(f"device memory: {cml.statistics().peak_bytes:,} bytes at most, {len(cml.live())} objects alive now")
    for path in wrong:
        print(f"{parser.prog}: {path}: NumPy and zlib disagree", file=sys.stderr)
    print("not verified" if not verify else "WRONG" if wrong else "verified with NumPy and zlib")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
