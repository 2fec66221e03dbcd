"""The documentation is true: its code runs and prints what it says, its commands are whole, its table is complete."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyopencl as cl
import pytest

import clmemlife as cml

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ON_POCL = "Portable" in cl.get_platforms()[0].name
IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
FILE = re.compile(r"\bfile=(\S+)")


class Step(NamedTuple):
    """A block: a program that is saved under a name and, mostly, run; or shell commands; and what is printed."""

    page: Path
    line: int
    file: str
    code: str
    output: str | None
    run: bool


HAZARDOUS = {
    "hazards.md", "sanitizer.md", "check-an-unmodified-program.md", "find-a-missing-event.md", "first-steps.md",
}  # fmt: skip
"""Pages that show missing events."""


def steps(page: Path) -> Iterator[Step]:
    """Give the blocks of Python, and of the shell where they say ``run``, with the text block that follows at once.

    What says ``no-run`` is only saved, if it names a file. A console block that checks ``app.py`` has its own output.
    """
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        language, info, code = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        typed, _, printed = code.partition("\n")
        if language == "console" and typed == "$ python -m clmemlife run app.py" and printed:
            yield Step(page, line, "", typed[2:], printed, True)
        named = FILE.search(info)
        run = "no-run" not in info if language == "python" else language == "sh" and "run" in info.split()
        if run or (language == "python" and named):
            after = BLOCK.match(text, block.end() + 2)
            output = after[3] if after and after[1] == "text" else None
            file = "" if language == "sh" else named[1] if named else "app.py"
            yield Step(page, line, file, code, output, run)


def needs_pocl(step: Step) -> bool:
    return "POCL_DEVICES" in step.code or "pocl" in (step.output or "")


def programs() -> Iterator[pytest.param]:
    """Give what is run in one folder: a whole page if its blocks name files, else each block alone."""
    for page in PAGES:
        found = list(steps(page))
        name = str(page.relative_to(ROOT))
        marks = pytest.mark.unordered("it shows a missing event") if page.name in HAZARDOUS else ()
        if any(step.file != "app.py" for step in found):
            yield pytest.param(found, id=name, marks=marks)
        else:
            yield from (pytest.param([step], id=f"{name}:{step.line}", marks=marks) for step in found)


@pytest.mark.parametrize("program", list(programs()))
def test_a_block_of_code_runs_and_prints_what_the_page_says(tmp_path: Path, program: list[Step]) -> None:
    written = {step.file for step in program}
    for name in {name for step in program if step.file for name in IMPORT.findall(step.code)}:
        if f"{name}.py" not in written and importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}, which the extra `examples` brings")
    environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    given = set() if any(step.page.name in HAZARDOUS for step in program) else {"CLMEMLIFE_CHECK"}
    for name in environment.keys() - given:  # what a reader has not set
        if name == "POCL_DEVICES" or name.startswith(("PYTEST_", "CLMEMLIFE_")):
            del environment[name]
    for step in program:
        where = f"{step.page.name}:{step.line}"
        command = ["env", "PYTHONWARNINGS=ignore:Non-empty compiler output:UserWarning", "bash", "-euc", step.code]
        if step.file:
            (tmp_path / step.file).write_text(step.code, encoding="utf-8")
            command = [sys.executable, "-W", "error", "-W", "ignore:Non-empty compiler output:UserWarning"]
            command += ["-W", "ignore:Creating scratch directories:UserWarning", step.file]  # Dask's, on a busy machine
        if not step.run or (not ON_POCL and needs_pocl(step)):
            continue
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment, check=False
        )
        if step.file:
            assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
            assert not done.stderr, f"{where}\n{done.stderr}"
        if step.output is not None:
            printed = done.stdout + done.stderr
            same = doctest.OutputChecker().check_output(
                step.output, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert same, f"{where} says\n{step.output}\nbut it prints\n{printed}"


def test_the_pages_have_python_blocks_with_output() -> None:
    assert sum(step.output is not None for page in PAGES for step in steps(page)) >= 2


def test_the_two_commands_are_one_line_each_and_set_up_all_they_need() -> None:
    blocks = [code for language, _, code in BLOCK.findall(README.read_text(encoding="utf-8")) if language == "sh"]
    assert len(blocks) == 2
    for block, extras, task in zip(
        blocks, ("pocl,examples", "pocl,test"), ("examples/stream_file.py", "-m pytest"), strict=True
    ):
        assert block.count("\n") == 1
        assert block.startswith(f'python3 -m venv .venv && .venv/bin/python -m pip install ".[{extras}]" && ')
        assert block.strip().endswith(task)


def test_the_call_table_names_everything_public() -> None:
    table = README.read_text(encoding="utf-8").partition("## The call table")[2].partition("\n## ")[0]
    rows = "\n".join(line for line in table.splitlines() if line.startswith("|"))
    for name in cml.__all__:
        if not (inspect.isclass(getattr(cml, name)) and issubclass(getattr(cml, name), Exception)):
            assert re.search(rf"`{name}\b", rows), f"{name} is not in the call table of the README"


def test_the_call_table_names_every_public_method() -> None:
    table = README.read_text(encoding="utf-8").partition("## The call table")[2].partition("\n## ")[0]
    for owner in (cml.MemHandle, cml.Mapping, cml.Migration):
        for name in dir(owner):
            if not name.startswith("_"):
                assert re.search(rf"[`.]{name}\b", table), f"{owner.__name__}.{name} is not in the call table"


def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "clmemlife"
    for path in package.rglob("*.py"):
        if path.name != "__init__.py":
            assert f"`{path.stem}`" in page, f"{path.relative_to(package)} is not on the architecture page"


def test_the_reference_names_everything_public() -> None:
    api = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    errors = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    for name in cml.__all__:
        kind = getattr(cml, name)
        if inspect.isclass(kind) and issubclass(kind, Exception):
            assert re.search(rf"^\| `{name}`", errors, re.MULTILINE), f"{name} is not in the table of errors"
            assert re.search(rf"^\.\. autoexception:: {name}$", errors, re.MULTILINE), f"{name} is not on errors.md"
        else:
            assert re.search(rf"^\.\. auto(class|function):: {name}$", api, re.MULTILINE), f"{name} is not on api.md"


def test_the_reference_links_every_opencl_call_of_the_call_table() -> None:
    table = README.read_text(encoding="utf-8").partition("## The call table")[2].partition("\n## ")[0]
    page = (ROOT / "docs" / "reference" / "opencl-calls.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"^\| \[`(cl\w+)`\]\(https://registry\.khronos\.org/\S+/\1\.html\)", page, re.MULTILINE))
    assert set(re.findall(r"`(cl[A-Z]\w+)`", table)) - linked == set()


def test_the_reference_names_every_environment_variable() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in set(re.findall(r"environ\w*[\[.(]+(?:get\()?[\"'](\w+)", source)):
        assert f"`{name}" in page, name


def test_the_start_page_leads_to_every_page() -> None:
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "index.md" or f"]({name})" in start, f"docs/index.md does not link to {name}"


def test_the_picture_of_the_layers_is_that_of_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))
    page = ROOT / "docs" / "explanation" / "architecture.md"
    picture = drawn["draw"](page.read_text(encoding="utf-8"))
    same = picture == page.with_suffix(".svg").read_text(encoding="utf-8")
    assert same, "the table has changed: run python docs/draw_architecture.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
