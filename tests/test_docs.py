"""The documentation is true: its code runs and prints what it says, its commands are whole, its table is complete."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clmemlife as cml

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[pytest.param]:
    """Give each Python block that is to be run, with the text block that follows it at once: what it prints."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            language, info, code = block.groups()
            if language == "python" and "no-run" not in info:
                after = BLOCK.match(text, block.end() + 2)
                output = after[3] if after and after[1] == "text" else None
                line = text.count("\n", 0, block.start()) + 1
                yield pytest.param(code, output, id=f"{page.relative_to(ROOT)}:{line}")


@pytest.mark.parametrize(("code", "output"), list(examples()))
def test_a_python_block_runs_and_prints_what_the_page_says(tmp_path: Path, code: str, output: str | None) -> None:
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    if "check_hazards" in code:  # on purpose: not to be found by the checker of the whole run first
        environment.pop("CLMEMLIFE_CHECK", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Non-empty compiler output:UserWarning", "app.py"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    if output is not None:
        same = doctest.OutputChecker().check_output(
            output, done.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert same, f"the page says\n{output}\nbut it prints\n{done.stdout}"


def test_the_pages_have_python_blocks_with_output() -> None:
    assert sum(example.values[1] is not None for example in examples()) >= 2


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
