"""Fixtures for tests that use OpenCL, and checks that fail a test which leaks memory objects or misses an event.

PyOpenCL and NumPy are loaded when a fixture or an option needs them, not before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Container, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ._plugin_run import OPTIONS, Run, Test, hide_frames, write_summary

if TYPE_CHECKING:
    import pyopencl as cl

    from ._handle import MemHandle
    from ._plugin_leaks import LeakChecker
    from .diagnostics.hazards.checking import check_hazards

_run = pytest.StashKey[Run]()
_test = pytest.StashKey[Test]()
_CHECKS = {"cl_leak_check", "cl_hazard_check"}


# -- options -----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and an ini name for each that belongs into a project's configuration."""
    group = parser.getgroup("clmemlife", "OpenCL memory objects (clmemlife)")
    for name, option, kind, default in OPTIONS:
        words = "--" + name.replace("_", "-")
        group.addoption(words, **option)
        if kind:
            parser.addini(name, f"as {words}", type=kind, default=default)  # type: ignore[arg-type]


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and give PoCL a kernel cache that only this run uses."""
    config.addinivalue_line("markers", "cl_leaks(allow=N, reason=...): this test may leave N memory objects or maps")
    for name, what in (("cl_hazards", "hazard check"), ("cl_sanitize", "sanitizer")):
        config.addinivalue_line("markers", f"{name}(mode): 'off', 'warn' or 'error' of the {what} for this test")

    run = config.stash[_run] = Run(lambda name: config.getoption(name) or (name != "cl_report" and config.getini(name)))
    for problem in run.problems():
        raise pytest.UsageError(problem)
    if "POCL_CACHE_DIR" not in os.environ:
        folder = os.environ["POCL_CACHE_DIR"] = tempfile.mkdtemp(prefix="clmemlife-pocl-")

        def remove() -> None:
            os.environ.pop("POCL_CACHE_DIR", None)
            shutil.rmtree(folder, ignore_errors=True)

        config.add_cleanup(remove)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop to listen."""
    if _run in config.stash:
        config.stash[_run].close()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what the tests run on, where an option says that OpenCL is used."""
    run = config.stash[_run]
    return run.header() if run.asked else None


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say it now, where only the fixtures of the collected tests told."""
    run = config.stash[_run]
    return run.header() if run.devices is not None and not run.said else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List the memory of the tests."""
    if config.stash[_run].report:
        write_summary(terminalreporter)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Follow raw PyOpenCL before test modules are imported, on request."""
    run = collector.config.stash[_run]
    if run.intercepts:
        run.intercept()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Leave our frames out of what is shown of our errors."""
    if call.excinfo is not None:
        hide_frames()


# -- a test ------------------------------------------------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Look at each test only where one of them asks for a check."""
    run = config.stash[_run]
    if run.report or run.checks or any(not _CHECKS.isdisjoint(getattr(item, "fixturenames", ())) for item in items):
        _checks(config)


def _checks(config: pytest.Config) -> _Checks:
    found: _Checks | None = config.pluginmanager.get_plugin("clmemlife-checks")
    if found is None:
        found = _Checks(config.stash[_run])
        config.pluginmanager.register(found, "clmemlife-checks")
    return found


class _Checks:
    """The hooks around each test."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def begin(self, item: pytest.Item, fixtures: Container[str]) -> Test:
        """Begin to follow what a test makes; `fixtures` are those it uses."""
        markers = map(item.get_closest_marker, ("cl_leaks", "cl_hazards", "cl_sanitize"))
        test = item.stash[_test] = self._run.plan(fixtures, *markers)
        test.begin(self._run, item.nodeid)
        return test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Begin before the fixtures of the test run."""
        self.begin(item, getattr(item, "fixturenames", ()))
        return (yield from self._noting(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note that the test raised: its traceback keeps its local names alive, so that it cannot be judged."""
        return (yield from self._noting(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Judge when all fixtures of the test have ended."""
        try:
            result = yield from self._noting(item)
        except BaseException:
            self._end(item)
            raise
        text = self._end(item)
        if text:
            pytest.fail(text, pytrace=False)
        return result

    def _noting(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except BaseException:
            if _test in item.stash:
                item.stash[_test].failed = True
            raise

    def _end(self, item: pytest.Item) -> str:
        test = item.stash.get(_test, None)
        return "" if test is None else test.end(self._run, item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hand the figures of a test on; an attribute of the report also comes back from the workers of xdist."""
        report = yield
        test = item.stash.get(_test, None)
        if call.when == "teardown" and test is not None and test.figures is not None:
            report.cl_figures = list(test.figures)  # type: ignore[attr-defined]
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        """Count what a fixture of a wide scope makes to the fixture, not to the test that came first."""
        checker = self._run.checker
        if checker is None or fixturedef.scope == "function":
            return (yield)
        with checker.fixture(id(fixturedef), fixturedef.argname):
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Have what it made judged."""
        if self._run.checker is not None:
            self._run.checker.fixture_finished(id(fixturedef))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use a device once for each chosen device."""
    if "cl_device" in metafunc.fixturenames:
        ids = [one.id for one in metafunc.config.stash[_run].find().devices]
        if ids:
            metafunc.parametrize("cl_device", ids, ids=ids, indirect=True, scope="session")


# -- fixtures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cl_device(request: pytest.FixtureRequest) -> cl.Device:
    """One of the chosen devices; without any, the test is skipped (an error with ``--cl-require-device``)."""
    run = request.config.stash[_run]
    devices = {one.id: one.device for one in run.find().devices}
    if devices:
        return devices[getattr(request, "param", next(iter(devices)))]
    if run.require:
        pytest.fail(run.problem(), pytrace=False)
    pytest.skip(run.problem())


@pytest.fixture(scope="session")
def cl_context(cl_device: cl.Device) -> cl.Context:
    """Return a context of the device."""
    import pyopencl as cl

    return cl.Context([cl_device])


@pytest.fixture
def cl_queue(cl_context: cl.Context, cl_device: cl.Device) -> Iterator[cl.CommandQueue]:
    """Yield an in-order queue, with profiling where the device has it."""
    yield from _queues((cl_context, cl_device, False), single=True)


@pytest.fixture
def cl_out_of_order_queue(cl_context: cl.Context, cl_device: cl.Device) -> Iterator[cl.CommandQueue]:
    """Yield an out-of-order queue; the test is skipped where the device has none."""
    yield from _queues((cl_context, cl_device, True), single=True)


@pytest.fixture
def cl_two_queues(cl_device: cl.Device) -> Iterator[tuple[cl.CommandQueue, cl.CommandQueue]]:
    """Yield two queues of one context (``queue.context``), of two devices where that is possible."""
    import pyopencl as cl

    from ._plugin_queues import pair_of

    devices = pair_of(cl_device)
    context = cl.Context(devices if devices[0] != devices[1] else devices[:1])
    yield from _queues(*((context, one, False) for one in devices))


def _queues(*wanted: tuple[cl.Context, cl.Device, bool], single: bool = False) -> Iterator[Any]:
    from ._plugin_queues import finish, make_queue

    made = tuple(make_queue(context, device, out_of_order=loose) for context, device, loose in wanted)
    if None in made:
        pytest.skip(f"{wanted[0][1].name.strip()} has no out-of-order queues")
    yield made[0] if single else made
    problem = finish(*made)
    if problem:
        pytest.fail(problem, pytrace=False)


@pytest.fixture
def cl_buffer_factory(cl_context: cl.Context) -> Iterator[Callable[..., MemHandle]]:
    """Yield a function that takes what `MemHandle.create_buffer` takes after the context; it releases what it made."""
    from . import MemHandle

    with ExitStack() as stack:

        def make(*args: Any, context: cl.Context = cl_context, **kwargs: Any) -> MemHandle:
            return stack.enter_context(MemHandle.create_buffer(context, *args, **kwargs))

        yield make


@pytest.fixture
def cl_leak_check(request: pytest.FixtureRequest) -> LeakChecker:
    """Return the leak checker, and fail the test if it leaks; ``leaks()`` tells what is alive now."""
    _test_of(request, "cl_leak_check")
    return request.config.stash[_run].check_leaks()


@pytest.fixture
def cl_hazard_check(request: pytest.FixtureRequest) -> check_hazards | None:
    """Return the hazard checker of this test, whose `findings` may be read; it raises at the command at fault."""
    return _test_of(request, "cl_hazard_check").check_hazards()


def _test_of(request: pytest.FixtureRequest, fixture: str) -> Test:
    """Return what is known of the test at hand, which may have asked for the fixture while it runs."""
    test: Test | None = request.node.stash.get(_test, None)
    return _checks(request.config).begin(request.node, (fixture,)) if test is None else test
