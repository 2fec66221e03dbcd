"""The short examples, one idea a file: each runs, prints what its docstring says, and leaves nothing alive."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"stream_file.py", "two_device_pipeline.py"}  # programs, in test_examples.py
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in ELSEWHERE)
NEEDS = {"image_filter.py": "matplotlib", "several_machines.py": "distributed"}  # beside what all examples need
pytestmark = pytest.mark.timeout(600)  # a limit for hangs: processes start slowly on a busy machine
each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def run(script: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["-X", "dev", "-W", "error"]
    ignored = [
        "ignore:Non-empty compiler output:UserWarning",  # some drivers chat
        "ignore:Overwriting existing generated code in linecache",  # PyOpenCL 2025.1, of its own kernels
    ]
    if script.name in NEEDS:
        pytest.importorskip(NEEDS[script.name])
        ignored.append("ignore::DeprecationWarning")  # of other packages among themselves
    if script.name == "several_machines.py":  # on a busy machine asyncio and Dask report what takes long
        options, ignored = options[2:], [*ignored, "ignore::UserWarning"]
    for warning in ignored:
        options += ["-W", warning]
    inherited = {**os.environ, "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "10 minutes"}  # on a busy machine
    if script.name == "hazard_hunt.py":  # its hazard is for its own checker
        inherited.pop("CLMEMLIFE_CHECK", None)
    return subprocess.run(
        [sys.executable, *options, script, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        env={**inherited, **environment},
        check=False,
    )


def docstring(script: Path) -> str:
    return ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""


@each
def test_it_prints_what_its_docstring_says_and_leaves_nothing_alive(script: Path) -> None:
    done = run(script)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 objects alive")
    promised = "".join(line[4:] for line in docstring(script).partition("Prints::\n\n")[2].splitlines(keepends=True))
    same = doctest.OutputChecker().check_output(
        promised + "\n", done.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert same, f"the docstring says\n{promised}\n\nbut it prints\n{done.stdout}"


@each
def test_without_a_device_it_says_so_in_one_line(script: Path, tmp_path: Path) -> None:
    done = run(script, OCL_ICD_VENDORS=str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert not done.stdout
    assert re.fullmatch(r"(no|needs an) OpenCL device.*: .*\n", done.stderr), done.stderr


@each
def test_it_is_short_and_says_what_is_to_be_learnt(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert text.count("\n") < 80
    assert "\nYou learn: " in docstring(script)


def test_the_readme_lists_every_example() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "examples").iterdir():
        if not path.name.startswith(("_", ".")):
            assert f"](examples/{path.name})" in readme, f"examples/{path.name} is not in the README"


def test_the_image_filter_saves_a_picture_of_the_edges(tmp_path: Path) -> None:
    done = run(ROOT / "examples" / "image_filter.py", tmp_path / "edges.png")
    assert done.returncode == 0, done.stderr
    image = importlib.import_module("PIL.Image")
    with image.open(tmp_path / "edges.png") as picture:
        assert picture.size == (512, 600)
        assert 0.02 < sum(picture.convert("L").histogram()[192:]) / (512 * 600) < 0.2  # white lines on black
