"""The pytest plugin, by suites that are run inside this one, each in a process of its own."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pyopencl as cl
import pytest

ON_POCL = cl.get_platforms()[0].name == "Portable Computing Language"
misses_an_event = pytest.mark.unordered("the suite that it runs misses an event, which the plugin is to tell")
PRELUDE = """
import gc, asyncio, sys, unittest
import numpy as np
import pyopencl as cl
import pytest
import clmemlife as cml
from clmemlife import InOut, MapFlags, Mapping, MemHandle
KEPT = []
"""

PLANTED = """
def test_handle(cl_context):
    KEPT.append(MemHandle.create_buffer(cl_context, 64))  # leak: handle

def test_sub_buffer(cl_context):
    with MemHandle.create_buffer(cl_context, 8192) as root:
        KEPT.append(root.sub_buffer(0, 128))  # leak: sub_buffer

def test_retained(cl_context):
    raw = cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64)
    KEPT.append(MemHandle.retain(raw))  # leak: retained

def test_open_map(cl_context, cl_queue):
    with MemHandle.create_buffer(cl_context, 64) as handle:
        KEPT.append(Mapping(cl_queue, handle, MapFlags.READ))  # leak: open_map

@pytest.mark.filterwarnings("ignore::clmemlife.LeakWarning")
def test_cycle(cl_context):
    cycle = [MemHandle.create_buffer(cl_context, 64)]  # leak: cycle
    cycle.append(cycle)

@pytest.mark.filterwarnings("ignore::clmemlife.LeakWarning")
def test_dropped(cl_context):
    MemHandle.create_buffer(cl_context, 64)  # leak: dropped

def test_traceback(cl_context):
    def fail():
        handle = MemHandle.create_buffer(cl_context, 64)  # leak: traceback
        raise ValueError
    try:
        fail()
    except ValueError as error:
        KEPT.append(error)

@pytest.fixture
def made(cl_context):
    return MemHandle.create_buffer(cl_context, 64)  # leak: fixture

def test_fixture(made):
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_parametrised(cl_context, number):
    if number == 2:
        KEPT.append(MemHandle.create_buffer(cl_context, 64))  # leak: parametrised

def test_pyopencl_object(cl_context):
    with MemHandle.create_buffer(cl_context, 64) as handle:  # leak: pyopencl_object
        KEPT.append(handle.mem)

class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def fixtures(self, cl_context):
        self.context = cl_context

    def test_unittest(self):
        KEPT.append(MemHandle.create_buffer(self.context, 64))  # leak: unittest

class TestAsync(unittest.IsolatedAsyncioTestCase):
    @pytest.fixture(autouse=True)
    def fixtures(self, cl_context):
        self.context = cl_context

    async def test_async(self):
        await asyncio.sleep(0)
        KEPT.append(MemHandle.create_buffer(self.context, 64))  # leak: async

@pytest.fixture(scope="class")
def wide(cl_context):
    KEPT.append(MemHandle.create_buffer(cl_context, 64))  # leak: wide_fixture

class TestWide:
    def test_before_the_end_of_the_wide_fixture(self, wide):
        pass

    def test_wide_fixture(self, wide):
        pass

@pytest.mark.cl_leaks(allow=1, reason="planted")
def test_allowed(cl_context):
    KEPT.append(MemHandle.create_buffer(cl_context, 64))

@pytest.mark.cl_leaks(allow=1, reason="planted")
def test_more_than_allowed(cl_context):
    KEPT.extend(MemHandle.create_buffer(cl_context, 64) for _ in range(2))  # leak: more_than_allowed

def test_failed(cl_context):
    handle = MemHandle.create_buffer(cl_context, 64)
    assert handle.released
"""

CLEAN = """
@pytest.fixture(scope="module")
def shared(cl_context):
    with MemHandle.create_buffer(cl_context, 4096, label="shared") as handle:
        yield handle

def test_buffers_and_maps(cl_queue, cl_buffer_factory, shared):
    handle = cl_buffer_factory(4096, label="mine")
    with Mapping(cl_queue, handle, MapFlags.WRITE_INVALIDATE_REGION) as mapping:
        mapping.array[:] = 7
    got = np.empty(4096, np.uint8)
    cml.enqueue_copy(cl_queue, got, handle, wait_for=mapping.unmap_event)
    assert (got == 7).all()
    with handle.sub_buffer(0, 128):
        pass

def test_two_queues_share_a_context(cl_two_queues, cl_buffer_factory):
    first, second = cl_two_queues
    assert first.context == second.context
    handle = cl_buffer_factory(64, context=first.context)
    event = cml.enqueue_fill(first, handle, b"\\1")
    cml.enqueue_fill(second, handle, b"\\2", wait_for=event).wait()

def test_out_of_order(cl_out_of_order_queue):
    assert cl_out_of_order_queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE

def test_profiling(cl_queue, cl_buffer_factory):
    event = cml.enqueue_fill(cl_queue, cl_buffer_factory(64), b"\\1")
    event.wait()
    assert event.profile.end >= event.profile.start

class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def fixtures(self, cl_queue):
        self.queue = cl_queue

    def test_unittest(self):
        with MemHandle.create_buffer(self.queue.context, 64):
            pass

class TestAsync(unittest.IsolatedAsyncioTestCase):
    @pytest.fixture(autouse=True)
    def fixtures(self, cl_queue):
        self.queue = cl_queue

    async def test_async(self):
        with MemHandle.create_buffer(self.queue.context, 64):
            await asyncio.sleep(0)
"""

NO_PLATFORM = """
import pyopencl
def nothing():
    raise pyopencl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
pyopencl.get_platforms = nothing
"""


@dataclass
class Outcome:
    """What came out of a suite: its exit status, its output, and the error text of each test."""

    status: int
    output: str
    errors: dict[str, str]
    names: list[str]


def run_suite(folder: Path, source: str, *options: str, conftest: str = "", **environment: str | None) -> Outcome:
    """Run a suite in a process of its own."""
    test_file, result = folder / "test_suite.py", folder / "result.xml"
    test_file.write_text(PRELUDE + source)
    (folder / "conftest.py").write_text(textwrap.dedent(conftest))
    variables = {**os.environ, **environment}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", f"--junitxml={result}", "-rA", "-p", "no:cacheprovider", *options,
            str(test_file),
        ],
        capture_output=True, text=True, timeout=240, check=False, cwd=folder,
        env={name: value for name, value in variables.items() if value is not None},
    )  # fmt: skip
    errors, names = {}, []
    for case in ET.parse(result).iter("testcase") if result.exists() else ():
        name = re.sub(r"\[.*", "", case.get("name"))
        names.append(case.get("name"))
        for problem in [*case.findall("error"), *case.findall("failure")]:
            errors[name] = f"{problem.get('message')}\n{problem.text}"
    return Outcome(done.returncode, done.stdout + done.stderr, errors, names)


@pytest.fixture
def suite(tmp_path):
    """Run a suite: ``suite(source, *options, conftest=..., VARIABLE=...)``."""
    return lambda source, *options, **more: run_suite(tmp_path, source, *options, **more)


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Outcome:
    return run_suite(tmp_path_factory.mktemp("planted"), PLANTED, "--cl-leak-check=error", "--strict-markers")


KINDS = re.findall(r"# leak: (\w+)", PLANTED)


def test_the_plugin_is_an_entry_point_of_pytest():
    assert [one.value for one in entry_points(group="pytest11", name="clmemlife")] == ["clmemlife.pytest_plugin"]


# -- leaks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_leak_fails_with_the_line_that_made_it(planted, kind):
    number = next(n for n, text in enumerate((PRELUDE + PLANTED).splitlines(), 1) if text.endswith(f"# leak: {kind}"))
    error = planted.errors[f"test_{kind}"]
    assert "OpenCL leak" in error
    assert re.search(rf"(created|mapped) at \S*test_suite\.py:{number}\)", error), error


def test_nothing_else_fails_in_the_planted_suite(planted):
    assert set(planted.errors) == {*(f"test_{kind}" for kind in KINDS), "test_failed"}, planted.output
    assert "OpenCL leak" not in planted.errors["test_failed"]
    assert planted.status == 1


def test_a_leak_says_what_keeps_it_and_which_wide_fixture_made_it(planted):
    assert "global 'KEPT'" in planted.errors["test_handle"]
    assert "kept by a traceback" in planted.errors["test_traceback"]
    assert "garbage collection had to do it" in planted.errors["test_cycle"]
    assert "somebody else holds a reference" in planted.errors["test_pyopencl_object"]
    assert "made by fixture 'wide'" in planted.errors["test_wide_fixture"]


def test_mode_warn_says_the_same_and_changes_no_outcome(suite):
    outcome = suite(
        PLANTED, "--cl-leak-check=warn", "-W", "error::clmemlife.LeakWarning", "-k",
        "handle or open_map or allowed or wide or failed or object",
    )  # fmt: skip
    assert set(outcome.errors) == {"test_failed"}, outcome.output
    assert outcome.output.count("LeakWarning: test_suite.py::") == 5
    assert "1 OpenCL leak at test_suite.py:" in outcome.output


@pytest.mark.parametrize(
    ("least", "options"),
    [
        (5, ("--cl-leak-check=error", "--cl-hazard-check=error", "-W", "error", "--import-mode=importlib")),
        (3, ("--cl-leak-check=error", "--cl-leak-raw", "--cl-device=all", "-k", "buffers or share or profiling")),
    ],
    ids=["strict", "raw"],
)
def test_a_clean_suite_passes(suite, least, options):
    outcome = suite(CLEAN, *options)
    assert (outcome.status, outcome.errors) == (0, {}), outcome.output
    assert len(outcome.names) >= least, outcome.output


@pytest.mark.parametrize(
    "fault",
    [
        "clmemlife._opencl.release_mem_object = lambda int_ptr: None",
        "clmemlife.MemHandle.release = lambda self: None",
        "clmemlife._openmap.OpenMap.close = lambda self, *more: setattr(self, 'unmap_event', self.map_event)",
    ],
    ids=["clReleaseMemObject", "release", "unmap"],
)
def test_a_disabled_release_in_the_library_fails_the_clean_suite(suite, fault):
    conftest = f"import clmemlife._openmap, clmemlife._opencl\nclmemlife.MemHandle\n{fault}\n"
    outcome = suite(CLEAN, "--cl-leak-check=error", "-k", "buffers_and_maps", conftest=conftest)
    assert outcome.status != 0
    assert "test_buffers_and_maps" in outcome.errors, outcome.output


def test_the_check_is_off_unless_asked_for_by_option_configuration_or_fixture(suite, tmp_path):
    source = """
def test_plain(cl_context):
    KEPT.append(MemHandle.create_buffer(cl_context, 64))

def test_with_fixture(cl_context, cl_leak_check):
    KEPT.append(MemHandle.create_buffer(cl_context, 64))
    assert len(cl_leak_check.leaks()) == 1
"""
    assert set(suite(source).errors) == {"test_with_fixture"}
    (tmp_path / "pytest.ini").write_text("[pytest]\ncl_leak_check = error\n")
    assert set(suite(source).errors) == {"test_plain", "test_with_fixture"}
    (tmp_path / "pytest.ini").write_text("[pytest]\ncl_leak_check = loud\n")
    assert "cl_leak_check must be one of off, warn, error" in suite(source).output


def test_buffers_of_raw_pyopencl_are_seen_on_request(suite):
    source = """
import pyopencl.array

def test_raw(cl_context):
    KEPT.append(cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64))

def test_array(cl_queue):
    KEPT.append(pyopencl.array.zeros(cl_queue, 16, np.float32))

def test_ended(cl_queue):
    pyopencl.array.zeros(cl_queue, 16, np.float32).get()
"""
    outcome = suite(source, "--cl-leak-check=error", "--cl-leak-raw")
    assert set(outcome.errors) == {"test_raw", "test_array"}, outcome.output
    assert "test_suite.py:" in outcome.errors["test_array"]
    assert suite(source, "--cl-leak-check=error").errors == {}


# -- hazards -----------------------------------------------------------------------------------------------------------

HAZARD = """
def collide(queues, factory):
    first, second = queues
    handle = factory(64, context=first.context)
    one = cml.enqueue_fill(first, handle, b"\\1")
    two = cml.enqueue_fill(second, handle, b"\\2")
    one.wait()
    two.wait()

def test_plain(cl_two_queues, cl_buffer_factory):
    collide(cl_two_queues, cl_buffer_factory)

@pytest.mark.cl_hazards("off")
def test_off(cl_two_queues, cl_buffer_factory):
    collide(cl_two_queues, cl_buffer_factory)

def test_with_fixture(cl_two_queues, cl_buffer_factory, cl_hazard_check):
    assert cl_hazard_check.findings == ()
    collide(cl_two_queues, cl_buffer_factory)
"""


@pytest.mark.timeout(500)  # whatever the run says: a suite that hangs is named by the limit of `run_suite`
@misses_an_event
def test_a_missing_event_fails_the_test_where_asked_for(suite):
    outcome = suite(HAZARD, "--cl-hazard-check=error")
    assert set(outcome.errors) == {"test_plain", "test_with_fixture"}, outcome.output
    assert "UnorderedAccessError" in outcome.errors["test_plain"]
    places = re.findall(r"^(\S+\.py):\d+: UnorderedAccessError$", outcome.output, re.MULTILINE)
    assert places, outcome.output
    assert all(one.startswith("test_") for one in places), "the line of the test comes last"
    assert set(suite(HAZARD).errors) == {"test_with_fixture"}


@misses_an_event
def test_mode_warn_of_the_hazard_check_only_warns(suite):
    outcome = suite(HAZARD, "--cl-hazard-check=warn", "-k", "plain or off")
    assert outcome.errors == {}, outcome.output
    assert outcome.output.count("HazardWarning:") == 1


# -- raw PyOpenCL ------------------------------------------------------------------------------------------------------

RAW = """
def fill(queue, buffer, value, wait_for=None):
    return cl.enqueue_fill_buffer(queue, buffer, np.int32(value), 0, 4096, wait_for=wait_for)

def buffer_of(queue):
    return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4096)

def test_clean(cl_two_queues):
    first, second = cl_two_queues
    buffer = buffer_of(first)
    event = fill(first, buffer, 1)
    first.flush()
    fill(second, buffer, 2, [event]).wait()

def collide(queues):
    first, second = queues
    buffer = buffer_of(first)
    one = fill(first, buffer, 1)
    two = fill(second, buffer, 2)
    one.wait()
    two.wait()

def test_missing_event(cl_two_queues):
    collide(cl_two_queues)

def test_the_same_again(cl_two_queues):
    collide(cl_two_queues)

@pytest.mark.cl_sanitize("off")
def test_off(cl_two_queues):
    collide(cl_two_queues)

@pytest.mark.cl_sanitize("warn")
def test_warned(cl_two_queues):
    collide(cl_two_queues)

def test_released(cl_queue):
    buffer = buffer_of(cl_queue)
    buffer.release()  # released
    with pytest.raises(Exception):
        fill(cl_queue, buffer, 1)

def test_after(cl_queue):
    fill(cl_queue, buffer_of(cl_queue), 1).wait()
"""


def line_in_suite(source: str, what: str) -> str:
    return str(next(n for n, text in enumerate((PRELUDE + source).splitlines(), 1) if what in text))


@misses_an_event
def test_what_raw_pyopencl_does_wrong_fails_the_test_at_hand_with_both_lines(suite):
    outcome = suite(RAW, "--cl-sanitize", "--strict-markers")
    assert set(outcome.errors) == {"test_missing_event", "test_the_same_again", "test_released"}, outcome.output
    assert "sanitizer error" in outcome.output
    for name in ("test_missing_event", "test_the_same_again"):
        assert "1 OpenCL finding\n" in outcome.errors[name]
        assert "test_suite.py:" in outcome.errors[name]
    for what in ("# released", "return cl.enqueue_fill_buffer"):
        assert f"test_suite.py:{line_in_suite(RAW, what)}" in outcome.errors["test_released"]
    assert outcome.output.count("HazardWarning: test_suite.py::test_warned") == 1
    both = suite(RAW, "--cl-sanitize", "--cl-hazard-check=error", "-k", "clean or missing or after")
    assert set(both.errors) == {"test_missing_event"}, both.output


@misses_an_event
def test_a_missing_event_is_told_once_by_the_hazard_check_where_that_is_on_or_its_marker_is_there(suite):
    source = (
        RAW
        + """
@pytest.mark.cl_hazards("off")
def test_meant(cl_two_queues, cl_queue):
    collide(cl_two_queues)

@pytest.mark.cl_hazards("off")
def test_meant_but_released(cl_two_queues, cl_queue):
    collide(cl_two_queues)
    test_released(cl_queue)
"""
    )
    chosen = ("-k", "meant or missing or clean")
    for options in ([], ["--cl-hazard-check=error"]):
        outcome = suite(source, "--cl-sanitize", *options, *chosen)
        assert set(outcome.errors) == {"test_missing_event", "test_meant_but_released"}, outcome.output
        assert "use_after_release" in outcome.errors["test_meant_but_released"]
        assert ("1 OpenCL finding" in outcome.errors["test_missing_event"]) == (not options)
    warned = suite(source, "--cl-sanitize", "--cl-hazard-check=warn", "-k", "missing")
    assert warned.errors == {}, warned.output
    assert warned.output.count("HazardWarning:") == 1


@misses_an_event
def test_the_sanitizer_is_off_unless_asked_for_and_may_only_warn(suite, tmp_path):
    suite = functools.partial(suite, CLMEMLIFE_CHECK=None)  # a checker beside it would find the same
    options = ("-k", "not released")
    assert suite(RAW, *options).errors == {}
    (tmp_path / "pytest.ini").write_text("[pytest]\ncl_sanitize = warn\n")
    outcome = suite(RAW, *options, "-W", "error::clmemlife.HazardWarning")
    assert outcome.errors == {}, outcome.output
    assert outcome.output.count("HazardWarning: test_suite.py::") == 3
    (tmp_path / "pytest.ini").write_text("[pytest]\ncl_sanitize = loud\n")
    assert "cl_sanitize must be one of off, warn, error" in suite(RAW).output


def test_the_leak_check_sees_raw_objects_under_the_sanitizer(suite):
    source = """
def test_leak(cl_context):
    KEPT.append(cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64))  # leak

def test_ended(cl_context):
    cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64).release()
"""
    outcome = suite(source, "--cl-sanitize", "--cl-leak-check=error")
    assert set(outcome.errors) == {"test_leak"}, outcome.output
    assert f"test_suite.py:{line_in_suite(source, '# leak')}" in outcome.errors["test_leak"]


@pytest.mark.parametrize("options", [[], ["--cl-sanitize", "--cl-leak-check=error", "--cl-hazard-check=error"]])
def test_a_clean_suite_passes_in_chaos_and_serialized(suite, options):
    for order in ("--cl-chaos=3", "--cl-serialize"):
        outcome = suite(CLEAN, order, *options)
        assert (outcome.status, outcome.errors) == (0, {}), outcome.output
    assert "serialized" in outcome.output


CHAOS = """
def test_latent(cl_two_queues):
    first, second = cl_two_queues
    buffer = cl.Buffer(first.context, cl.mem_flags.READ_WRITE, 4096)
    got = np.empty(1024, np.int32)
    cl.enqueue_fill_buffer(first, buffer, np.int32(0), 0, 4096).wait()
    cl.enqueue_fill_buffer(first, buffer, np.int32(7), 0, 4096)
    cl.enqueue_copy(second, got, buffer)
    assert (got == 7).all(), "the data is wrong"
"""


@misses_an_event
def test_chaos_makes_a_missing_event_a_failing_test(suite, tmp_path, free_devices):
    latent = CHAOS
    if free_devices[0] == free_devices[1]:
        latent = CHAOS.replace(
            "= cl_two_queues",
            "= (cl.CommandQueue(cl_two_queues[0].context, cl_two_queues[0].device) for _ in range(2))",
        )
    outcome = suite(latent, "--cl-chaos=5:50")
    assert set(outcome.errors) == {"test_latent"}, outcome.output
    assert "the data is wrong" in outcome.errors["test_latent"]
    assert "chaos 5:50" in outcome.output
    (tmp_path / "pytest.ini").write_text("[pytest]\ncl_chaos = 6:50\n")
    assert set(suite(latent).errors) == {"test_latent"}
    assert suite(latent, "-o", "cl_chaos=", "--cl-serialize").errors == {}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--cl-chaos=x"], "cl_chaos: 'x' is not SEED or SEED:MILLISECONDS"),
        (["--cl-chaos=1", "--cl-serialize"], "cl_chaos and cl_serialize exclude each other"),
    ],
)  # fmt: skip
def test_options_without_a_meaning_are_errors_of_usage(suite, options, problem):
    outcome = suite(CHAOS, *options)
    assert outcome.status == 4
    assert problem in outcome.output


@misses_an_event
def test_workers_of_xdist_sanitize_and_shake_as_one_process_does(suite):
    pytest.importorskip("xdist")
    outcome = suite(RAW + CHAOS, "--cl-sanitize", "--cl-chaos=3:50", "-n2", "-k", "not warned")
    expected = {"test_missing_event", "test_the_same_again", "test_released", "test_latent"}
    assert set(outcome.errors) == expected, outcome.output


def test_our_frames_are_left_out_of_the_tracebacks_of_our_errors(suite):
    source = """
def test_use(cl_queue, cl_context):
    handle = MemHandle.create_buffer(cl_context, 64)
    handle.release()
    cml.enqueue_fill(cl_queue, handle, b"\\0")
"""
    outcome = suite(source)
    assert "ReleasedError" in outcome.errors["test_use"]
    assert "clmemlife" + os.sep + "_" not in outcome.errors["test_use"]
    assert "clmemlife" + os.sep + "_" in suite(source, "--full-trace").errors["test_use"]


# -- devices -----------------------------------------------------------------------------------------------------------


def test_without_a_platform_tests_are_skipped_with_what_was_searched_and_what_helps(suite):
    options = ("--cl-leak-check=error", "--cl-hazard-check=warn", "--cl-report")
    outcome = suite(CLEAN, *options, conftest=NO_PLATFORM, OCL_ICD_VENDORS="/nowhere/vendors")
    assert (outcome.status, outcome.errors) == (0, {}), outcome.output
    assert "no OpenCL platform was found" in outcome.output
    assert "OCL_ICD_VENDORS=/nowhere/vendors" in outcome.output
    assert "/nowhere/vendors (not there)" in outcome.output
    assert "install PoCL: " in outcome.output


def test_a_required_device_that_is_missing_is_an_error(suite):
    outcome = suite(CLEAN, "--cl-require-device", conftest=NO_PLATFORM)
    assert outcome.status == 1
    assert len(outcome.errors) == 6
    assert "install PoCL: " in outcome.errors["test_profiling"]


def test_without_pyopencl_nothing_fails(tmp_path):
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['pyopencl'] = None\n")
    test_file = tmp_path / "test_suite.py"
    test_file.write_text("def test_device(cl_queue): pass\ndef test_plain(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "--cl-leak-check=error", "--cl-hazard-check=error", str(test_file)],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "PyOpenCL cannot be imported" in done.stdout


@pytest.mark.skipif(not ON_POCL, reason="two devices by POCL_DEVICES")
def test_devices_are_chosen_by_text_and_have_stable_ids(suite):
    source = "def test_device(cl_device): print('name', cl_device.name)"
    both = suite(source, "--cl-device=all", POCL_DEVICES="pthread pthread")
    assert both.names == ["test_device[pocl-cpu0]", "test_device[pocl-cpu1]"], both.output
    one = suite(source, "--cl-device=POCL-cpu1", POCL_DEVICES="pthread pthread")
    assert one.names == ["test_device[pocl-cpu1]"]
    first = suite(source, POCL_DEVICES="pthread pthread")
    assert first.names == ["test_device[pocl-cpu0]"]
    assert "pocl-cpu0 = " in first.output
    none = suite(source, "--cl-device=abacus")
    assert (none.status, none.names) == (0, ["test_device"])
    assert re.search(r"no device matches 'abacus'; there are \S+ \(", none.output), none.output


# -- good manners ------------------------------------------------------------------------------------------------------


def test_neither_pyopencl_nor_numpy_is_loaded_before_it_is_needed(tmp_path):
    test_file = tmp_path / "test_suite.py"
    test_file.write_text("import sys\ndef test_it(): assert not {'pyopencl', 'numpy'} & set(sys.modules)\n")
    for options in ((), ("--cl-leak-check=off",)):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", *options, str(test_file)],
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert "1 passed" in done.stdout, done.stdout + done.stderr
        assert "clmemlife-" in done.stdout


def test_workers_of_xdist_judge_and_report_as_one_process_does(suite):
    pytest.importorskip("xdist")
    outcome = suite(PLANTED, "--cl-leak-check=error", "--cl-report", "-n2")
    assert {f"test_{kind}" for kind in KINDS} - {"test_wide_fixture"} <= set(outcome.errors), outcome.output
    assert "slowest to free" in outcome.output


def test_the_report_lists_the_memory_of_each_test(suite):
    source = """
def test_large(cl_buffer_factory):
    cl_buffer_factory(1 << 20)
    cl_buffer_factory(1 << 20)

def test_small(cl_buffer_factory):
    cl_buffer_factory(100)

def test_none():
    pass
"""
    outcome = suite(source, "--cl-report")
    assert "2 of 3 tests made memory objects" in outcome.output
    table = outcome.output.partition("largest:")[2].splitlines()
    assert "2,097,152 bytes at most" in table[1]
    assert "2 handles" in table[1]
    assert "test_large" in table[1]
    assert "100 bytes at most" in table[2]


def test_each_run_has_a_kernel_cache_of_its_own_that_is_removed(suite):
    source = """
import os

def test_it():
    folder = os.environ["POCL_CACHE_DIR"]
    print("cache", folder, os.path.isdir(folder))
"""
    folders = [re.search(r"cache (\S+) True", suite(source, POCL_CACHE_DIR=None).output)[1] for _ in range(2)]
    assert folders[0] != folders[1]
    assert not any(Path(folder).exists() for folder in folders)
    assert "cache /kept " in suite(source, POCL_CACHE_DIR="/kept").output


def test_a_queue_that_hangs_on_a_user_event_fails_the_test_and_not_the_run(suite):
    source = """
def test_hangs(cl_context, cl_queue):
    gate = cl.UserEvent(cl_context)
    KEPT.append(gate)
    with MemHandle.create_buffer(cl_context, 64) as handle:
        cml.enqueue_fill(cl_queue, handle, b"\\0", wait_for=gate)

def test_after(cl_context):
    KEPT.pop().set_status(cl.command_execution_status.COMPLETE)
"""
    conftest = "import clmemlife._plugin_queues as queues\nqueues.FINISH_SECONDS = 0.5\n"
    outcome = suite(source, "--cl-leak-check=error", conftest=conftest)
    assert set(outcome.errors) == {"test_hangs"}, outcome.output
    assert "user event that nobody sets" in outcome.errors["test_hangs"]


# -- the example of a project that uses it -----------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[1] / "examples" / "downstream_project"


def run_example(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        capture_output=True, text=True, timeout=240, check=False, cwd=folder,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_example_project_passes_and_fails_when_a_release_is_deleted(tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    output = run_example(folder)
    assert re.search(r"= \d+ passed[ ,]", output), output
    source = (folder / "heat.py").read_text()
    assert source.count("        self._next.release()\n") == 1
    (folder / "heat.py").write_text(source.replace("        self._next.release()\n", ""))
    output = run_example(folder, "-k", "out_of_order")
    assert "1 OpenCL leak at heat.py:" in output, output


def test_the_example_project_uses_published_names_only():
    for path in [*EXAMPLE.glob("*.py"), *EXAMPLE.glob("tests/*.py")]:
        assert "clmemlife._" not in path.read_text()
