"""The page on the error contract names a test for each promise, and each of them exists; and the tests it lacked."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import InOut, MapFlags, Mapping, MemHandle, _ledger

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "explanation" / "error-contract.md"
REFERENCE = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@functools.cache
def names_in(file: str) -> set[str]:
    path = TESTS / file
    if not path.exists():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def missing_tests(text: str) -> list[str]:
    return [f"{file}::{name}" for file, name in REFERENCE.findall(text) if name not in names_in(file)]


def bare_promises(text: str) -> list[str]:
    """Return the list items outside the last section that name no test."""
    promised, _, rest = text.partition("## What is not guaranteed")
    assert rest
    items = re.findall(r"^- .*?(?=^- |^#|\Z)", promised, re.MULTILINE | re.DOTALL)
    return [one.strip().splitlines()[0] for one in items if not REFERENCE.search(one)]


def test_every_test_that_the_page_names_exists():
    text = PAGE.read_text(encoding="utf-8")
    assert len(REFERENCE.findall(text)) > 50
    assert missing_tests(text) == []


def test_every_promise_names_a_test():
    assert bare_promises(PAGE.read_text(encoding="utf-8")) == []


def test_the_checks_of_the_page_find_what_is_missing():
    text = (
        "- A promise.\n  `test_error_contract.py::test_every_promise_names_a_test`,\n"
        "  `test_error_contract.py::test_of_nobody`, `test_no_file.py::test_x`\n- Another,\n  in two lines.\n"
        "## What is not guaranteed\n- This.\n"
    )
    assert missing_tests(text) == ["test_error_contract.py::test_of_nobody", "test_no_file.py::test_x"]
    assert bare_promises(text) == ["- Another,"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_the_body_unmaps_releases_and_comes_through(context, queue, interrupt):
    with (
        pytest.raises(interrupt),
        MemHandle.create_buffer(context, 4096) as handle,
        Mapping(queue, handle, MapFlags.WRITE) as mapping,
    ):
        mapping.array[:] = 1
        raise interrupt
    assert handle.released
    assert mapping.unmap_event is not None
    assert _ledger.open_maps() == ()


def test_a_failed_command_lets_go_of_what_it_used(context, queue, kernel, gate, wait):
    handle = MemHandle.create_buffer(context, 4096)
    event = cml.enqueue_kernel(queue, kernel("setval"), (1024,), None, InOut(handle), np.int32(1), wait_for=gate)
    queue.flush()
    handle.release()
    assert cml.statistics().pending_bytes == 4096
    gate.set_status(cl.status_code.OUT_OF_RESOURCES)
    wait(lambda: event.command_execution_status < 0, "the command has failed")
    assert cml.statistics().pending_bytes == 0


def test_at_exit_a_whole_is_destroyed_though_only_a_part_of_it_was_left(run):
    out = run("""
        root = MemHandle.create_buffer(context, 1 << 16, label="root")
        part = root.sub_buffer(1 << 15, 4096, label="part")
        root.on_destroy(lambda info: print("gone:", info.label, flush=True))
        part.on_destroy(lambda info: print("gone:", info.label, flush=True))
        root.release()
    """)
    assert sorted(out.split("\n")) == ["", "gone: part", "gone: root"]
