"""The example runs as a user runs it, on files of every awkward size, and says clearly what it cannot do."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

ROOT = Path(__file__).resolve().parents[1]
STREAM_FILE = ROOT / "examples" / "stream_file.py"
STRICT = ["-X", "dev", "-W", "error", "-W", "ignore:Non-empty compiler output:UserWarning"]  # some drivers chat
ROW = re.compile(r"^([0-9a-f]{8}) +([0-9,]+) +([0-9.]+)  (.*)$", re.MULTILINE)


def stream_file(
    *arguments: object, script: Path = STREAM_FILE, stderr: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *STRICT, script, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )


def results(done: subprocess.CompletedProcess) -> dict[str, tuple[int, int, float]]:
    """Return what was printed for each file: CRC-32, bytes, bits per byte."""
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not done.stderr
    assert "0 objects alive now" in done.stdout
    return {
        path: (int(crc, 16), int(size.replace(",", "")), float(bits))
        for crc, size, bits, path in ROW.findall(done.stdout)
    }


def write(path: Path, size: int) -> Path:
    path.write_bytes(np.random.default_rng(size).integers(0, 251, size, np.uint8).tobytes())
    return path


def refused(done: subprocess.CompletedProcess, message: str) -> None:
    """Check that there is one line, that it says what is wrong, and that the exit code is 2."""
    assert done.returncode == 2, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr.splitlines() == [f"stream_file.py: {message}"]
    assert not done.stdout


def test_without_a_path_it_streams_the_source_of_the_library(tmp_path: Path) -> None:
    for name in ("examples", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)  # nobody edits the copy meanwhile
    done = stream_file(script=tmp_path / "examples" / STREAM_FILE.name)
    found = results(done)
    sources = [path for path in (tmp_path / "src").rglob("*.py") if path.stat().st_size]
    assert set(found) == {str(path) for path in sources}
    for path in sources:
        assert found[str(path)][:2] == (zlib.crc32(path.read_bytes()), path.stat().st_size)
    assert done.stdout.endswith("\nverified with NumPy and zlib\n")


@pytest.mark.parametrize("chunk", [1000, 1 << 16, 100_000])
def test_sizes_around_a_chunk_are_right_in_one_run(tmp_path: Path, chunk: int) -> None:
    sizes = [1, 7, 8, 9, chunk - 1, chunk, chunk + 1, 5 * chunk, 7 * chunk + 13]
    files = [write(tmp_path / f"{size} bytes", size) for size in sizes]
    found = results(stream_file("--chunk", chunk, "--depth", 3, *files))
    assert list(found) == list(map(str, files))
    for size, path in zip(sizes, files, strict=True):
        assert found[str(path)][:2] == (zlib.crc32(path.read_bytes()), size)


@pytest.mark.parametrize("devices", ["pthread", "pthread pthread"])
@pytest.mark.parametrize("depth", [1, 5])
def test_the_number_of_devices_and_slots_changes_no_result(tmp_path: Path, devices: str, depth: int) -> None:
    path = write(tmp_path / "data", 3_000_017)
    done = stream_file("--chunk", 200_000, "--depth", depth, path, POCL_DEVICES=devices)
    assert results(done)[str(path)][0] == zlib.crc32(path.read_bytes())
    if cl.get_platforms()[0].name == "Portable Computing Language":
        used = next(line for line in done.stdout.splitlines() if "MB/s" in line)
        assert len(used.split(" and ")) == len(devices.split())


def test_wait_lists_alone_order_all_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 300_000)
    done = stream_file("--chunk", 50_000, "--depth", 3, path, CLMEMLIFE_CHECK="hazards")  # -W error: no finding
    assert results(done)[str(path)][0] == zlib.crc32(path.read_bytes())


@pytest.mark.unordered("an event is taken out")
@pytest.mark.parametrize(
    ("edge", "without", "hazard"),
    [
        ("counts, wait_for=wait_for", "counts", "read_after_write object='stream input'"),
        ("slot.input, wait_for=counted,", "slot.input,", "write_after_read object='stream input'"),
        ("            wait_for=moved,\n", "", "read_after_write object='stream input'"),
        ("return checked", "return counted", "read_after_write object='stream output'"),
    ],
)
def test_each_of_its_wait_lists_is_needed(tmp_path: Path, edge: str, without: str, hazard: str) -> None:
    path, script = write(tmp_path / "data", 300_000), tmp_path / "without.py"
    text = STREAM_FILE.read_text(encoding="utf-8")
    assert edge in text
    script.write_text(text.replace(edge, without), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, "--no-verify", "--chunk", "50000", "--depth", "3", path],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "CLMEMLIFE_CHECK": "hazards"},
        check=False,
    )
    assert f"[hazard={hazard}" in done.stderr


def test_the_checksum_is_the_one_of_standard_tools(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 1_234_567)
    crc, size, _ = results(stream_file(path))[str(path)]
    packed = subprocess.run(["gzip", "-c", path], stdout=subprocess.PIPE, check=True).stdout
    assert np.frombuffer(packed[-8:], "<u4").tolist() == [crc, size]  # the end of a gzip file: RFC 1952
    if shutil.which("crc32"):
        printed = subprocess.run(["crc32", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert int(printed.split()[0], 16) == crc


@pytest.mark.parametrize(
    ("content", "bits"), [(b"a" * 70_000, 0.0), (b"ab" * 70_000, 1.0), (bytes(range(256)) * 300, 8.0)]
)
def test_entropy_is_in_bits_per_byte(tmp_path: Path, content: bytes, bits: float) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    assert results(stream_file(path))[str(path)][2] == bits


def test_a_file_larger_than_the_memory_of_the_device_needs_only_a_few_buffers(tmp_path: Path) -> None:
    path, size = tmp_path / "sparse", (1 << 30) + 12_345
    with open(path, "wb") as file:
        file.truncate(size)
    crc, zeros = 0, bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        crc = zlib.crc32(zeros[: size - start], crc)
    done = stream_file(path, POCL_MEMORY_LIMIT="1")  # GiB
    assert results(done)[str(path)] == (crc, size, 0.0)
    peak = re.search(r"device memory: ([0-9,]+) bytes at most", done.stdout)
    assert peak is not None
    assert int(peak[1].replace(",", "")) < 32 << 20
    assert "not verified" in done.stdout  # so much only when it is asked for


def test_one_file_named_twice_is_streamed_once(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 5000)
    assert "\n1 files, 5,000 bytes" in stream_file(path, path).stdout


def test_no_verify_says_that_nothing_was_verified(tmp_path: Path) -> None:
    done = stream_file("--no-verify", write(tmp_path / "data", 5000))
    assert done.returncode == 0
    assert done.stdout.endswith("\nnot verified\n")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nothing"
    refused(stream_file(STREAM_FILE, path), f"{path}: No such file or directory")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    refused(stream_file(tmp_path), f"{tmp_path}: Is a directory")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    refused(stream_file(write(tmp_path / "empty", 0)), f"{tmp_path / 'empty'}: The file is empty")


def test_without_a_driver_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = stream_file(OCL_ICD_VENDORS=str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"stream_file.py: no OpenCL device: .+\n", done.stderr)
    assert "--chunk" not in done.stderr


def test_a_rate_is_told_where_there_is_enough_to_rate(tmp_path: Path) -> None:
    assert re.search(r"^[0-9,]+ MB/s on ", stream_file(write(tmp_path / "much", 2 << 20)).stdout, re.MULTILINE)
    little = stream_file(write(tmp_path / "little", 10)).stdout
    assert "MB/s" not in little
    assert re.search(r"^[0-9.]+ s, too little for a rate, on ", little, re.MULTILINE)


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused(stream_file(tmp_path / "fifo"), f"{tmp_path / 'fifo'}: Not a regular file")


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        path = write(tmp_path / "data", 100)
        path.chmod(0)
        refused(stream_file(path), f"{path}: Permission denied")
    else:  # permissions are nothing to root
        refused(stream_file("/proc/self/mem"), "/proc/self/mem: Input/output error")


def test_a_chunk_of_nothing_is_a_usage_error() -> None:
    done = stream_file("--chunk", 0)
    assert done.returncode == 2
    assert "at least one byte" in done.stderr


def altered(change: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run the example with a change made to its names."""
    code = f"""
import sys; sys.path.insert(0, {str(STREAM_FILE.parent)!r}); sys.argv = {["stream_file.py", *map(str, arguments)]!r}
import stream_file
{change}
sys.exit(stream_file.main())
"""
    command = [sys.executable, *STRICT, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_an_error_in_the_middle_leaves_nothing_alive(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 50_000)
    change = """
class Failing:
    reads = 0
    def readinto(self, array):
        self.reads += 1
        if self.reads == 6:
            raise OSError(5, "Input/output error")
        array[:] = bytes(array.nbytes)
        return array.nbytes
    def read(self, size): return b"x"
    def peek(self, size): return b"x"
    def fileno(self): return 0
    def __enter__(self): return self
    def __exit__(self, *error): pass
stream_file.open = lambda path, mode: Failing()
"""
    refused(altered(change, "--chunk", 1000, "--depth", 4, path), f"{path}: Input/output error")


@pytest.mark.parametrize(
    ("good", "bad"), [("c ^= w.x;", "c ^= w.y;"), ("own[0][w.x & 255]++;", ""), ("(c ^ data[i]) & 255", "c & 255")]
)
def test_verification_finds_a_kernel_that_is_wrong(tmp_path: Path, good: str, bad: str) -> None:
    path = write(tmp_path / "data", 100_003)
    change = f"""
assert {good!r} in stream_file.LITTLE_ENDIAN_KERNELS
stream_file.LITTLE_ENDIAN_KERNELS = stream_file.LITTLE_ENDIAN_KERNELS.replace({good!r}, {bad!r})
"""
    done = altered(change, path)
    assert done.returncode == 1
    assert done.stdout.endswith("\nWRONG\n")
    assert done.stderr == f"stream_file.py: {path}: NumPy and zlib disagree\n"


def test_a_terminal_gets_a_progress_bar(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 500_000)
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with open(reader, "rb", buffering=0) as terminal:
        with open(writer, "wb", buffering=0) as stderr:
            assert stream_file(path, stderr=stderr.fileno()).returncode == 0
        shown = b""
        with suppress(OSError):  # the end of a terminal on Linux
            while piece := terminal.read(4096):
                shown += piece
    assert b"100%" in shown
