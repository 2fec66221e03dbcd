"""What the pytest plugin knows of one run and of one test. No pytest here, and no PyOpenCL before it is needed."""

from __future__ import annotations

import warnings
from collections.abc import Container
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._discovery import Found
    from ._plugin_leaks import Figures, LeakChecker
    from .diagnostics.checking import check_hazards

MODES = ("off", "warn", "error")
_LISTED = 10


class Run:
    """The options of one run, and what was made at first use."""

    def __init__(
        self, leaks: str, hazards: str, raw: bool, require: bool, report: bool, texts: list[str]
    ) -> None:  # dataclasses take a fifth of the time that the plugin may add
        self.leaks, self.hazards = leaks, hazards
        self.raw, self.require, self.report, self.texts = raw, require, report, texts
        self.checker: LeakChecker | None = None
        self.devices: Found | None = None
        self.said = False

    @property
    def asked(self) -> bool:
        """Whether an option says that OpenCL is used."""
        return bool(self.texts) or self.require or self.report or (self.leaks, self.hazards) != ("off", "off")

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
        return f"clmemlife {__version__}: {what}{where}; leak check {self.leaks}, hazard check {self.hazards}"

    def check_leaks(self) -> LeakChecker:
        """Return the leak checker, made at first use."""
        if self.checker is None:
            from ._plugin_leaks import LeakChecker

            self.checker = LeakChecker(raw=self.raw)
        return self.checker

    def plan(self, fixtures: Container[str], leaks_marker: Any, hazards_marker: Any) -> Test:
        """Return what is to be done for a test that uses `fixtures` and has these markers (or ``None``)."""
        leaks, hazards, allowed = self.leaks, self.hazards, 0
        if leaks == "off" and "cl_leak_check" in fixtures:
            leaks = "error"
        if hazards == "off" and "cl_hazard_check" in fixtures:
            hazards = "error"
        if leaks_marker is not None:
            allowed = leaks_marker.kwargs.get("allow", *leaks_marker.args[:1] or (1,))
        if hazards_marker is not None:
            hazards = hazards_marker.kwargs.get("mode", *hazards_marker.args[:1] or ("off",))
            if hazards not in MODES:
                raise ValueError(f"cl_hazards({hazards!r}): give one of {', '.join(MODES)}")
        return Test(leaks, hazards, allowed)

    def close(self) -> None:
        """Stop to listen."""
        if self.checker is not None:
            self.checker.close()


class Test:
    """One test: its modes, how many leaks it may have, and what came out."""

    __test__ = False

    def __init__(self, leaks: str, hazards: str, allowed: int) -> None:
        self.leaks, self.hazards, self.allowed = leaks, hazards, allowed
        self.failed = False
        self.checker: check_hazards | None = None
        self.figures: Figures | None = None

    def begin(self, run: Run) -> None:
        """Begin to follow what it makes."""
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
            text = self._judge(run, nodeid)
        return text

    def _judge(self, run: Run, nodeid: str) -> str:
        if run.checker is None or (self.leaks == "off" and not run.report):
            return ""
        leaks, self.figures = run.checker.end(judge=not self.failed)
        if self.leaks == "off" or len(leaks) <= self.allowed:
            return ""
        from ._plugin_leaks import leaks_text

        text = leaks_text(leaks, self.allowed)
        if self.leaks == "error":
            return text
        for leak in leaks:
            warn_always(f"{nodeid}: {leaks_text([leak], 0)}", leak.record.site)
        return ""


def warn_always(text: str, site: str) -> None:
    """Warn at `site`, also where warnings are errors: a mode that only warns changes no outcome."""
    from ._site import warn_at
    from .exceptions import LeakWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", LeakWarning)
        warn_at(site, text, LeakWarning)


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
