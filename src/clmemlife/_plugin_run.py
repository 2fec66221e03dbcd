"""What the pytest plugin knows of one run and of one test. No pytest here, and no PyOpenCL before it is needed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._discovery import Found
    from ._plugin_leaks import Figures, LeakChecker
    from ._plugin_sanitize import Sanitizer
    from .diagnostics.hazards.checking import check_hazards

MODES = ("off", "warn", "error")
_LISTED = 10

OPTIONS: tuple[tuple[str, dict[str, Any], str, Any], ...] = (
    ("cl_device", {"action": "append", "metavar": "TEXT",
     "help": "test on devices whose id, name or platform contains TEXT (repeatable; 'all'); default: the first device"},
     "linelist", []),
    ("cl_leak_check", {"choices": MODES, "help": "memory objects and maps that a test leaves behind"}, "string", "off"),
    ("cl_leak_raw", {"action": "store_true", "help": "the leak check also sees buffers of raw PyOpenCL code"},
     "bool", False),
    ("cl_hazard_check", {"choices": MODES, "help": "uses of the same bytes that no event orders"}, "string", "off"),
    ("cl_sanitize", {"action": "store_const", "const": "error",
     "help": "raw PyOpenCL code is checked too; what is found fails the test"}, "string", "off"),
    ("cl_chaos", {"metavar": "SEED[:MS]", "help": "hold commands back, as far as the declared events allow"},
     "string", ""),
    ("cl_serialize", {"action": "store_true", "help": "finish after each command"}, "bool", False),
    ("cl_require_device", {"action": "store_true", "help": "a missing device is an error, not a skip"}, "bool", False),
    ("cl_report", {"action": "store_true", "help": "memory of each test in the summary"}, "", None),
)  # fmt: skip
"""Name, option, and the type and default of the configuration value that says the same."""


class Run:
    """The options of one run, and what was made at first use."""

    def __init__(self, value: Callable[[str], Any]) -> None:  # dataclasses take a fifth of what the plugin may add
        self.leaks, self.hazards, self.sanitize = (
            value(f"cl_{one}") for one in ("leak_check", "hazard_check", "sanitize")
        )
        self.chaos, self.serialize = value("cl_chaos"), value("cl_serialize")
        self.raw, self.require, self.report = value("cl_leak_raw"), value("cl_require_device"), value("cl_report")
        self.texts: list[str] = value("cl_device")
        self.checker: LeakChecker | None = None
        self.sanitizer: Sanitizer | None = None
        self.devices: Found | None = None
        self.said = False

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the options."""
        for name, mode in (
            ("cl_leak_check", self.leaks), ("cl_hazard_check", self.hazards), ("cl_sanitize", self.sanitize)
        ):  # fmt: skip
            if mode not in MODES:
                yield f"{name} must be one of {', '.join(MODES)}, not {mode!r}"
        if self.chaos:
            from ._settings import parse_chaos  # nothing is loaded for suites that do not use it

            try:
                parse_chaos(self.chaos)
            except ValueError as error:
                yield f"cl_chaos: {error}"
        if self.chaos and self.serialize:
            yield "cl_chaos and cl_serialize exclude each other"

    @property
    def intercepts(self) -> bool:
        """Whether commands of raw PyOpenCL are to be intercepted."""
        return self.sanitize != "off" or bool(self.chaos) or self.serialize

    @property
    def asked(self) -> bool:
        """Whether an option says that OpenCL is used."""
        return bool(self.texts) or self.require or self.report or self.checks or self.intercepts

    @property
    def checks(self) -> bool:
        """Whether each test is checked."""
        return (self.leaks, self.hazards, self.sanitize) != ("off", "off", "off") or self.intercepts

    def find(self) -> Found:
        """Return the chosen devices, looked for once."""
        if self.devices is None:
            from . import _discovery

            self.devices = _discovery.choose(_discovery.find(), self.texts)
        return self.devices

    def problem(self) -> str:
        """Return why there is no device, what was searched and what to do."""
        from . import _discovery

        return _discovery.explain(self.find().problem)

    def header(self) -> str:
        """Return one line on platform, device, driver and loader."""
        from . import __version__, _discovery

        self.said = True
        found = self.find()
        what = "; ".join(_discovery.describe(one) for one in found.devices) or found.problem
        where = f"; loader {_discovery.loader()}" if found.devices else ""
        more = f", sanitizer {self.sanitize}" if self.sanitize != "off" else ""
        more += f", chaos {self.chaos}" if self.chaos else ", serialized" if self.serialize else ""
        return f"clmemlife {__version__}: {what}{where}; leak check {self.leaks}, hazard check {self.hazards}{more}"

    def intercept(self) -> None:
        """Begin to follow raw PyOpenCL; where there is none, there is nothing to follow."""
        if self.sanitizer is None:
            try:
                from ._plugin_sanitize import Sanitizer
            except ImportError:
                return
            self.sanitizer = Sanitizer(self.sanitize != "off", self.chaos, self.serialize)

    def check_leaks(self) -> LeakChecker:
        """Return the leak checker, made at first use."""
        if self.checker is None:
            from ._plugin_leaks import LeakChecker

            self.checker = LeakChecker(raw=self.raw or self.sanitizer is not None)
        return self.checker

    def plan(self, fixtures: Container[str], leaks_marker: Any, hazards_marker: Any, sanitize_marker: Any) -> Test:
        """Return what is to be done for a test that uses `fixtures` and has these markers (or ``None``)."""
        leaks, allowed = self.leaks, 0
        hazards = _mode_of(hazards_marker, "cl_hazards") or self.hazards
        sanitize = _mode_of(sanitize_marker, "cl_sanitize") or self.sanitize
        if leaks == "off" and "cl_leak_check" in fixtures:
            leaks = "error"
        if hazards_marker is None and hazards == "off" and "cl_hazard_check" in fixtures:
            hazards = "error"
        if leaks_marker is not None:
            allowed = leaks_marker.kwargs.get("allow", *leaks_marker.args[:1] or (1,))
        return Test(leaks, hazards, sanitize, allowed, hazards_told=hazards_marker is not None or hazards != "off")

    def close(self) -> None:
        """Stop to listen."""
        if self.checker is not None:  # first: it may have hooked what the other has hooked
            self.checker.close()
        if self.sanitizer is not None:
            self.sanitizer.close()


class Test:
    """One test: its modes, how many leaks it may have, and what came out.

    `hazards_told` says that the hazard check or its marker has the word on missing events, not the sanitizer.
    """

    __test__ = False

    def __init__(self, leaks: str, hazards: str, sanitize: str, allowed: int, *, hazards_told: bool) -> None:
        self.leaks, self.hazards, self.sanitize, self.allowed = leaks, hazards, sanitize, allowed
        self._hazards_told = hazards_told
        self.failed = False
        self.checker: check_hazards | None = None
        self.figures: Figures | None = None

    def begin(self, run: Run, nodeid: str) -> None:
        """Begin to follow what it makes."""
        if run.sanitizer is not None:
            run.sanitizer.begin(nodeid)
        if self.leaks != "off" or run.report:
            run.check_leaks().begin()
        if self.hazards != "off":
            self.check_hazards()

    def check_hazards(self) -> check_hazards | None:
        """Start the hazard checker once; without PyOpenCL there is nothing to check."""
        if self.checker is None:
            try:
                from . import check_hazards
            except ImportError:
                return None
            checker = check_hazards("warn" if self.hazards == "warn" else "raise")
            checker.start()
            self.checker = checker
        return self.checker

    def end(self, run: Run, nodeid: str) -> str:
        """Return what it is to fail with, or nothing; in mode ``warn`` only warn."""
        try:
            if self.checker is not None:
                self.checker.stop()
        finally:
            texts = self._sanitized(run, nodeid), self._judge(run, nodeid)
        return "\n".join(filter(None, texts))

    def _sanitized(self, run: Run, nodeid: str) -> str:
        if run.sanitizer is None:
            return ""
        from .exceptions import HazardWarning

        found = run.sanitizer.end(hazards=not self._hazards_told)
        if self.sanitize == "error":
            return findings_text(found)
        for one in found if self.sanitize == "warn" else ():
            warn_always(f"{nodeid}: {one}", one.site, HazardWarning)
        return ""

    def _judge(self, run: Run, nodeid: str) -> str:
        if run.checker is None or (self.leaks == "off" and not run.report):
            return ""
        leaks, self.figures = run.checker.end(judge=not self.failed)
        if self.leaks == "off" or len(leaks) <= self.allowed:
            return ""
        from ._plugin_leaks import leaks_text
        from .exceptions import LeakWarning

        text = leaks_text(leaks, self.allowed)
        if self.leaks == "error":
            return text
        for leak in leaks:
            warn_always(f"{nodeid}: {leaks_text([leak], 0)}", leak.record.site, LeakWarning)
        return ""


def _mode_of(marker: Any, name: str) -> str:
    if marker is None:
        return ""
    mode: str = marker.kwargs.get("mode", *marker.args[:1] or ("off",))
    if mode not in MODES:
        raise ValueError(f"{name}({mode!r}): give one of {', '.join(MODES)}")
    return mode


def findings_text(found: Sequence[Any]) -> str:
    """Return the message of a test in which the sanitizer found something."""
    if not found:
        return ""
    head = f"{len(found)} OpenCL finding{'s' if len(found) > 1 else ''}"
    return "\n".join([head, *("  " + str(one).replace("\n", "\n  ") for one in found)])


def warn_always(text: str, site: str, category: type[Warning]) -> None:
    """Warn at `site`, also where warnings are errors: a mode that only warns changes no outcome."""
    from ._site import warn_at

    with warnings.catch_warnings():
        warnings.simplefilter("always", category)
        warn_at(site, text, category)


def hide_frames() -> None:
    """Leave our frames out of the tracebacks of our own errors: they are about the line that called us."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __package__ and module is not None:
            vars(module).setdefault("__tracebackhide__", _is_ours)


def _is_ours(excinfo: Any) -> bool:
    from .exceptions import ClMemLifeError

    return isinstance(excinfo.value, ClMemLifeError)


def write_summary(reporter: Any) -> None:
    """List the memory of the tests: the slowest to free, and the largest."""
    from ._plugin_leaks import Figures

    rows = [
        (report.nodeid, Figures(*report.cl_figures))
        for reports in reporter.stats.values()
        for report in reports
        if hasattr(report, "cl_figures")
    ]
    used = [row for row in rows if row[1].total_count]
    reporter.section("OpenCL memory (clmemlife)")
    reporter.line(f"{len(used)} of {len(rows)} tests made memory objects")
    for title, field in (("slowest to free", "free_seconds"), ("largest", "peak_bytes")):
        reporter.line(f"{title}:")
        for nodeid, one in sorted(used, key=lambda row, name=field: getattr(row[1], name), reverse=True)[:_LISTED]:  # type: ignore[misc]
            reporter.line(
                f"  {one.free_seconds * 1e3:8.1f} ms  {one.peak_bytes:>14,} bytes at most  {one.total_count:>6} handles"
                f"  {one.total_bytes:>14,} bytes made  {nodeid}"
            )
