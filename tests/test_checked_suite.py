"""The library's own tests and its example, under the hazard checker: none of them misses an event.

All of them can be run so: ``CLMEMLIFE_CHECK=hazards python -m pytest``. Warnings are errors, so a finding fails the
test that has it, or that runs the process that has it. Here the part that enqueues most; the example has a test of its
own in ``test_examples.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OTHERS = ["cacheprovider", "benchmark", "xdist"]
"""Plugins that this run has no use for; some warn, which is an error, when they meet each other."""
FILES = ["test_commands.py", "test_copy.py", "test_mapping.py", "test_migration.py", "test_cases_commands.py"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"-pno:{plugin}" for plugin in OTHERS), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**inherited, "CLMEMLIFE_CHECK": "hazards", "HYPOTHESIS_PROFILE": "default"},
        cwd=TESTS.parent,
        check=False,
    )


@pytest.mark.timeout(300)  # whatever the run says: a process that hangs is named by the limit of `run`
def test_the_tests_of_commands_copies_maps_and_migrations_have_no_finding() -> None:
    done = run(*(str(TESTS / name) for name in FILES))
    assert done.returncode == 0, done.stdout[-6000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 200


@pytest.mark.unordered("in the tests that it runs")
def test_a_test_that_misses_an_event_or_runs_what_does_would_fail(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    test = tmp_path / "test_planted.py"
    test.write_text(
        '''
import numpy as np
import pytest
import clmemlife as cml

FILLS = """
with cml.MemHandle.create_buffer(context, 64) as field:
    cml.enqueue_fill(queue, field, np.int32(1))
    cml.enqueue_fill(queue2, field, np.int32(2))
"""

def test_two_fills(context, queue, queue2):
    exec(FILLS)

def test_process(run):
    run(FILLS)

@pytest.mark.unordered("on purpose")
def test_on_purpose(context, queue, queue2, run):
    exec(FILLS)
    run(FILLS)
''',
        encoding="utf-8",
    )
    done = run("-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(tmp_path), str(test))
    assert done.returncode == 1
    assert "HazardWarning: write-after-write" in done.stdout
    assert "HazardWarning: in a process: HazardWarning: write-after-write" in done.stdout
    assert "2 failed, 1 passed" in done.stdout
