"""What every test needs: a private kernel cache, two devices in one context, kernels, and a clean end."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before the driver is loaded: PoCL takes its settings from the environment, once.
_cache = tempfile.TemporaryDirectory(prefix="clmemlife-pocl-")
os.environ["POCL_CACHE_DIR"] = _cache.name
os.environ.setdefault("POCL_DEVICES", "pthread pthread")
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
os.environ.setdefault("PYOPENCL_COMPILER_OUTPUT", "0")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pyopencl as cl  # noqa: E402
import pytest  # noqa: E402

import clmemlife._lifecycle  # noqa: E402, F401 - which starts the checker that the environment asks for
from clmemlife import HazardWarning, _inflight, _ledger  # noqa: E402

# Draws for each property: some everywhere, many with HYPOTHESIS_PROFILE=thorough. A driver's pace is no deadline.
for _name, _draws in (("default", 300), ("thorough", 3000)):
    hypothesis.settings.register_profile(
        _name,
        max_examples=_draws,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SOURCE = """
__kernel void setval(__global int *x, int v) { x[get_global_id(0)] = v; }
__kernel void inc(__global int *x) { x[get_global_id(0)] += 1; }
__kernel void scale(__global float *x, float a) { x[get_global_id(0)] *= a; }
__kernel void copy(__global const int *src, __global int *dst) { dst[get_global_id(0)] = src[get_global_id(0)]; }
__kernel void slow(__global int *x, int v, int iters) {
  int i = get_global_id(0);
  volatile int acc = 0;
  for (int k = 0; k < iters; ++k) { acc += k; }
  x[i] = v + (acc == -123 ? 1 : 0);
}
"""


CHECKED = "hazards" in os.environ.get("CLMEMLIFE_CHECK", "")
ON_INTEL = "Intel(R) OpenCL" in cl.get_platforms()[0].name
ON_NVIDIA = "NVIDIA" in cl.get_platforms()[0].name
NVIDIA_FAULTS = {
    "gated migration": "a migration behind a user event that is not set, or what waits for one, crashes or hangs",
    "lines to a buffer": "a copy from an array of one-dimensional images to a buffer is refused with INVALID_VALUE",
    "overlapping sub-buffers": "two sub-buffers that overlap, used on two queues, crash when they are released",
    "early count": "an unmap is counted when it is enqueued, not when it is done",
    "late notice": "that a memory object is destroyed is told after its address is used again",
    "svm argument": "a kernel takes no shared virtual memory in a context of two devices, or after another argument",
    "no overtaking": "an out-of-order queue lets no command pass one that waits",
    "thread in a wait at exit": "a user event has to be set before the process ends, or that hangs; a thread that "
    "waited for it then comes back into an interpreter that is gone",
}
"""What NVIDIA's driver (580) does otherwise: each was seen with raw PyOpenCL alone."""


FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "unordered(why): it misses an event on purpose, which CLMEMLIFE_CHECK=hazards is to leave alone"
    )
    config.addinivalue_line("markers", "alone(why): it has no meaning beside the checker of CLMEMLIFE_CHECK=hazards")
    config.addinivalue_line("markers", "needs_gil(why): it does not hold where Python runs without its lock")
    config.addinivalue_line("markers", "needs_two_devices: it has no meaning on one device")
    config.addinivalue_line(
        "markers",
        "nvidia_fault(name, run=False): it meets one of NVIDIA_FAULTS; run=True where that ends no process of ours",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("unordered") is not None:
            item.add_marker(pytest.mark.filterwarnings("ignore::clmemlife.HazardWarning"))
        alone = item.get_closest_marker("alone")
        if CHECKED and alone is not None:
            item.add_marker(pytest.mark.skip(reason=f"beside a checker: {alone.args[0]}"))
        if FREE_THREADED and (mark := item.get_closest_marker("needs_gil")) is not None:
            item.add_marker(pytest.mark.xfail(reason=f"no lock: {mark.args[0]}", run=False))
        for mark in item.iter_markers("nvidia_fault"):
            reason = f"NVIDIA's driver: {NVIDIA_FAULTS[mark.args[0]]}"
            if ON_NVIDIA:
                item.add_marker(pytest.mark.xfail(reason=reason, run=mark.kwargs.get("run", False), strict=False))


@pytest.fixture(scope="session", autouse=True)
def findings_of_processes_count() -> Iterator[None]:
    """Under CLMEMLIFE_CHECK=hazards, warn here of what the hazard checker of a process that a test runs has found."""
    run = subprocess.run

    def run_and_tell(*arguments: Any, **keywords: Any) -> subprocess.CompletedProcess[Any]:
        done = run(*arguments, **keywords)
        for text in (done.stdout, done.stderr):
            if isinstance(text, str) and (found := re.findall(r"\bHazardWarning: .*(?:\n .*)*", text)):
                warnings.warn(f"in a process: {found[0]}", HazardWarning, stacklevel=2)
        return done

    with pytest.MonkeyPatch.context() as patch:
        if CHECKED:
            patch.setattr(subprocess, "run", run_and_tell)
        yield


@pytest.fixture(scope="session")
def devices() -> list[cl.Device]:
    found = cl.get_platforms()[0].get_devices()
    if len(found) < 2 and found[0].max_compute_units > 1:
        with contextlib.suppress(cl.Error):  # a GPU is not to be divided: then both queues are of one device
            half = found[0].max_compute_units // 2
            found = found[0].create_sub_devices([cl.device_partition_property.EQUALLY, half])
    return found[:2]


@pytest.fixture(autouse=True)
def skip_without_two_devices(request: pytest.FixtureRequest) -> None:
    """Leave out what is marked `needs_two_devices` where there is one."""
    if request.node.get_closest_marker("needs_two_devices") and len(request.getfixturevalue("devices")) < 2:
        pytest.skip("there is one device only, and it is not to be divided")


@pytest.fixture(scope="session")
def alignment(devices: list[cl.Device]) -> int:
    """Of the origin of a sub-buffer, in bytes, for all devices."""
    return max(device.mem_base_addr_align for device in devices) // 8


@pytest.fixture(scope="session")
def marker_types() -> tuple[int, ...]:
    """What the event of a marker says it is: NVIDIA's driver has a number of its own in most cases."""
    return (cl.command_type.MARKER, 0x4003) if ON_NVIDIA else (cl.command_type.MARKER,)


@pytest.fixture(scope="session")
def on_intel() -> bool:
    """Say whether the device is of Intel's runtime."""
    return ON_INTEL


@pytest.fixture(scope="session")
def packs_rows() -> bool:
    """Say whether the rows of a mapped part of an image have no gaps between them."""
    return ON_NVIDIA


@pytest.fixture(scope="session")
def free_devices(devices: list[cl.Device]) -> list[cl.Device]:
    """Two devices that do not wait for one another: NVIDIA's driver orders the uses of one object on two by itself."""
    return [devices[0], devices[0 if ON_NVIDIA else -1]]


@pytest.fixture(scope="session")
def has_fault() -> Callable[[str], bool]:
    """Say whether this driver has one of `NVIDIA_FAULTS`, for a test that can leave a part out."""
    return lambda name: bool(NVIDIA_FAULTS[name]) and ON_NVIDIA


@pytest.fixture(scope="session")
def aborts_at_exit() -> Callable[[subprocess.CompletedProcess[str]], bool]:
    """Say whether a process ended as the Intel CPU runtime ends one in which a thread still waits for an event.

    The runtime lets such a wait return when its library is taken down. The thread then comes back into an interpreter
    that is gone, which ends it by ``pthread_exit``, and that must not pass through C++: ``std::terminate``. Its abort
    races with the ``_exit`` of the main thread, so that the exit code may still be 0 when the message is out. Seen with
    plain PyOpenCL 2026.1 in 28 of 30 runs, two of them with exit code 0 and the message (a daemon thread in
    ``Event.wait`` behind a user event that is never set, then the end of the script).
    """
    message = "terminate called without an active exception"
    return lambda done: ON_INTEL and (done.returncode < 0 or done.stderr.startswith(message))


@pytest.fixture(scope="session")
def context(devices: list[cl.Device]) -> cl.Context:
    return cl.Context(devices)


@pytest.fixture
def queue(context: cl.Context, devices: list[cl.Device]) -> Iterator[cl.CommandQueue]:
    made = cl.CommandQueue(context, devices[0])
    yield made
    made.finish()


@pytest.fixture
def queue2(context: cl.Context, devices: list[cl.Device]) -> Iterator[cl.CommandQueue]:
    """A queue of the second device where there is one, else a second queue of the first."""
    made = cl.CommandQueue(context, devices[-1])
    yield made
    made.finish()


@pytest.fixture
def out_of_order_queue(context: cl.Context, devices: list[cl.Device]) -> Iterator[cl.CommandQueue]:
    made = cl.CommandQueue(context, devices[0], cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    yield made
    made.finish()


@pytest.fixture(scope="session")
def program(context: cl.Context) -> cl.Program:
    return cl.Program(context, SOURCE).build()


@pytest.fixture
def kernel(program: cl.Program) -> Callable[[str], cl.Kernel]:
    """Make a kernel by name."""
    return lambda name: cl.Kernel(program, name)


@pytest.fixture
def ints() -> np.ndarray:
    return np.arange(1024, dtype=np.int32)


@pytest.fixture
def gate(context: cl.Context, queue: cl.CommandQueue, queue2: cl.CommandQueue) -> Iterator[cl.UserEvent]:
    """A user event that is pending until the test sets it, at the latest when the test is over."""
    made = cl.UserEvent(context)
    yield made
    if made.command_execution_status > 0:
        made.set_status(cl.command_execution_status.COMPLETE)


@pytest.fixture
def wait() -> Callable[..., None]:
    """Poll a condition to a deadline, then fail: ``wait(condition, what, seconds)``."""
    return wait_until


SET_GATES_LAST = """
class Gate(cl.UserEvent):  # a process with a user event that was never set hangs in NVIDIA's driver after its end
    made = []
    def __init__(self, context):
        super().__init__(context)
        self.made.append(self)
cl.UserEvent = Gate
import atexit
@atexit.register
def set_gates():
    for gate in Gate.made:
        if gate.command_execution_status > 0:
            gate.set_status(-1)
"""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Poll to a deadline, then fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.002)


def run_python(code: str, *, timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in an interpreter of its own, which may crash or hang there; names `cl`, `cml`, `np` are imported."""
    prelude = f"""
import faulthandler; faulthandler.enable()
import sys; sys.path[:0] = {sys.path!r}
import gc, os, threading, time, warnings
# Python 3.12 and later: what a child of such a fork may do is what the tests are about
warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
import numpy as np
import pyopencl as cl
devices = cl.get_platforms()[0].get_devices()
{SET_GATES_LAST if ON_NVIDIA else ""}
import clmemlife as cml
from clmemlife import In, InOut, MapFlags, Mapping, MemFlags, MemHandle, Migration, MigrationFlags, Out
SOURCE = {SOURCE!r}
context = cl.Context(devices)
queue = cl.CommandQueue(context, devices[0])
queue2 = cl.CommandQueue(context, devices[-1])
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Non-empty compiler output", UserWarning)  # PyOpenCL's, for its own caches
    program = cl.Program(context, SOURCE).build()
"""
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        cwd=Path(__file__).parent,
        check=False,
    )


@pytest.fixture
def run_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run blocks of code, one after the other, in one interpreter of its own; return how that ended."""

    def run_blocks(*blocks: str, **options: str) -> subprocess.CompletedProcess[str]:
        return run_python("\n".join(map(textwrap.dedent, blocks)), **options)  # type: ignore[arg-type]

    return run_blocks


@pytest.fixture
def run() -> Callable[..., str]:
    """Run code in a subprocess; fail unless it ends well; return what it printed."""

    def run_and_check(code: str, **options: str) -> str:
        done = run_python(code, **options)  # type: ignore[arg-type]
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "WARNING: a clean-up operation failed" not in done.stderr, done.stderr
        return done.stdout

    return run_and_check


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test gives back what it made."""
    yield
    gc.collect()
    wait_until(lambda: not _inflight.entries(), "commands are complete")
    left = _ledger.entries(), _ledger.open_maps()
    assert left == ((), ())
