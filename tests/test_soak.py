"""The soak, with few rounds: it runs, checks its data, and ends with nothing alive. The long run is for the notes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FORGETFUL_LEDGER = """
from clmemlife import _ledger
honest = _ledger.remove
_ledger.remove = lambda entry: honest(entry) if isinstance(entry, _ledger.MapEntry) else None
"""
SOAK = Path(__file__).parent / "soak" / "soak.py"


def soak(*options: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import runpy, sys; sys.path[:0] = {sys.path!r}; sys.argv[1:] = {list(options)!r}\n{before}\n"
    return subprocess.run(
        [sys.executable, "-c", code + f"runpy.run_path({str(SOAK)!r}, run_name='__main__')"],
        capture_output=True,
        text=True,
        timeout=240,
        env=dict(os.environ),
        check=False,
    )


def test_rounds_of_create_map_compute_unmap_release_leave_nothing_and_do_not_grow():
    done = soak("--rounds", "12000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alive at the end: nothing" in done.stdout
    assert re.search(r"10000 rounds: .* MiB, .* 12000 rounds: ", done.stdout, re.DOTALL)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (FORGETFUL_LEDGER, "current_count=300"),
        ("from clmemlife import _opencl\n_opencl.release_mem_object = lambda int_ptr: None", "all leases are back"),
    ],
    ids=["handles stay in the ledger", "references are not given back"],
)
def test_a_planted_leak_makes_it_fail(fault: str, what: str):
    done = soak("--rounds", "300", "--patience", "0.5", before=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert what in done.stdout + done.stderr
