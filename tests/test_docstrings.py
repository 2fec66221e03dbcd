"""Docstrings are complete: sections, units, threads, ownership, and where the OpenCL specification says it."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import clmemlife as cml

README = Path(__file__).resolve().parents[1] / "README.md"
CALLS_PAGE = README.parent / "docs" / "reference" / "opencl-calls.md"
HEADING = re.compile(r"^(Parameters|Returns|Yields|Raises|Attributes|Notes|Examples)\n-{3,}\n", re.MULTILINE)
FIELD = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)( :.*)?$", re.MULTILINE)
MADE_BY_THE_LIBRARY = {"ChunkStream", "MemHandle", "Slot", "Staging"}
"""Classes that users get from a function and never make themselves."""
IN_BYTES = re.compile(r"(^|_)(size|offset|origin|region|pitches|nbytes|bytes|count|start|stop)$")
UNITS = re.compile(r"\b(bytes?|pixels|work-items|handles|how often|how many)\b", re.IGNORECASE)
NO_SIZE = {"global_size", "local_size", "map_count", "reference_count"}
FACTS = {
    "the OpenCL specification": r"OpenCL specification",
    "an OpenCL call": r"``cl[A-Z]\w+``",
    "who owns or holds what": r"\b(owns?|owned|holds?|held|keeps?|kept|belongs?|reference|lent|lets? go)\b",
    "whether it blocks": r"[Bb]lock|[Ww]ait",
}


class Documented(NamedTuple):
    """One public name: what it is, and its docstring cut into sections."""

    name: str
    thing: Any
    owner: type | None
    doc: str
    sections: dict[str, str]

    def fields(self, section: str) -> dict[str, str]:
        """Return what a section says of each name."""
        text = self.sections.get(section, "")
        heads = list(FIELD.finditer(text))
        ends = [*(head.start() for head in heads[1:]), len(text)]
        found = {}
        for head, end in zip(heads, ends, strict=False):
            for name in head[1].split(", "):
                found[name.lstrip("*")] = (head[2] or "") + text[head.end() : end]
        return found

    @property
    def code(self) -> Callable[..., Any]:
        """The function that users call."""
        return self.thing.__init__ if inspect.isclass(self.thing) else self.thing

    @property
    def called(self) -> bool:
        """Whether users call it."""
        if inspect.isclass(self.thing):
            return self.name not in MADE_BY_THE_LIBRARY and not is_record(self.thing)
        return not isinstance(self.thing, property)


def is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or issubclass(kind, (enum.Enum, Exception))


def document(name: str, thing: Any, owner: type | None = None) -> Documented:
    inner = thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing
    doc = inspect.cleandoc(inner.__doc__ or "")
    parts = HEADING.split(doc)
    return Documented(name, inner, owner, doc, {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))})


def everything() -> Iterator[Documented]:
    for name in cml.__all__:
        thing = getattr(cml, name)
        yield document(name, thing)
        if not inspect.isclass(thing) or issubclass(thing, (Exception, enum.Enum)):
            continue
        for base in reversed(thing.__mro__):
            if base.__module__.startswith("clmemlife"):
                for member, value in vars(base).items():
                    known = isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(value)
                    if known and not member.startswith("_"):
                        yield document(f"{name}.{member}", value, thing)


ALL = {one.name: one for one in everything()}
FUNCTIONS = [one for one in ALL.values() if one.called]


def table_rows() -> Iterator[tuple[list[str], str]]:
    """Give the public names and the OpenCL column of each row of the README's call table."""
    table = README.read_text(encoding="utf-8").partition("## The call table")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (`.*) \|(?:.*)\| (.*) \|$", table, re.MULTILINE):
        names, owner = [], ""
        for name in re.findall(r"`([\w.]+)`", row[0]):
            owner = name.partition(".")[0] or owner
            full = owner + name if name.startswith(".") else name
            if full in ALL:
                names.append(full)
        yield names, row[1]


CALLS = sorted(
    name
    for names, calls in table_rows()
    if set(re.findall(r"`(cl[A-Z]\w+)", calls)) - {"clFlush", "clWaitForEvents"}
    for name in names
    if not (inspect.isclass(ALL[name].thing) and is_record(ALL[name].thing))
)


def members(kind: type) -> list[str]:
    """Return the fields of a record, the members of an enumeration, the attributes of an exception."""
    if issubclass(kind, enum.Enum):
        return [member.name for member in kind if member.value]
    if issubclass(kind, Exception):
        return re.findall(r"self\.(\w+) =", inspect.getsource(kind.__init__)) if "__init__" in vars(kind) else []
    return list(getattr(kind, "_fields", ()) or [each.name for each in dataclasses.fields(kind)])


def raises(function: Callable[..., Any]) -> bool:
    """Say whether a function has a ``raise`` of its own that is not a re-raise."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def test_a_public_name_has_a_docstring_that_begins_with_a_sentence() -> None:
    bare = [one.name for one in ALL.values() if not re.match(r"[^\n].*[.:](\n\n|$)", one.doc)]
    assert bare == []


def test_each_parameter_is_described() -> None:
    wrong = []
    for one in FUNCTIONS:
        wanted, said = parameters(one.code), one.fields("Parameters")
        wrong += [f"{one.name} does not describe {name}" for name in wanted if name not in said]
        wrong += [f"{one.name} has no parameter {name}" for name in said if name not in wanted]
    assert not wrong, "\n".join(wrong)


def test_what_is_returned_is_described() -> None:
    wrong = []
    for one in FUNCTIONS:
        if not inspect.isclass(one.thing):
            returned = inspect.signature(one.thing).return_annotation not in ("None", "NoReturn")
            if returned != ("Returns" in one.sections):
                wrong.append(f"{one.name} {'lacks' if returned else 'needs no'} section Returns")
    assert not wrong, "\n".join(wrong)


def test_what_is_raised_is_described() -> None:
    wrong = []
    for one in FUNCTIONS:
        if raises(one.code) and "Raises" not in one.sections:
            wrong.append(f"{one.name} lacks section Raises")
        for error in ("DependencyError", "ContextMismatchError"):
            if "wait_for" in parameters(one.code) and error not in one.doc:
                wrong.append(f"{one.name} takes wait_for and does not name {error}")
    assert not wrong, "\n".join(wrong)


def test_each_field_and_each_member_is_described() -> None:
    wrong = []
    for one in ALL.values():
        if inspect.isclass(one.thing) and is_record(one.thing):
            said = one.fields("Attributes")
            wrong += [f"{one.name} does not describe {name}" for name in members(one.thing) if name not in said]
    assert not wrong, "\n".join(wrong)


def test_sizes_and_times_have_units() -> None:
    wrong = []
    for one in ALL.values():
        told = {**one.fields("Parameters"), **one.fields("Attributes")}
        if isinstance(one.thing, property):
            told[one.name.rpartition(".")[2]] = one.doc
        for name, text in told.items():
            if IN_BYTES.search(name) and name not in NO_SIZE and not UNITS.search(text):
                wrong.append(f"{name} of {one.name} has no unit")
            if ("seconds" in name or name == "age") and not re.search("seconds|how long", text, re.IGNORECASE):
                wrong.append(f"{name} of {one.name} has no unit of time")
    assert not wrong, "\n".join(wrong)


def test_it_is_said_what_threads_may_do() -> None:
    alone = [
        one for one in ALL.values() if one.owner is None and not (inspect.isclass(one.thing) and is_record(one.thing))
    ]
    assert [one.name for one in alone if "thread" not in one.doc] == []


def test_what_stands_for_an_opencl_call_names_its_source_whose_the_memory_is_and_whether_it_blocks() -> None:
    wrong = []
    for name in CALLS:
        for what, pattern in FACTS.items():
            if not re.search(pattern, " ".join(ALL[name].doc.split())):
                wrong.append(f"{name} does not name {what}")
    assert not wrong, "\n".join(wrong)


def test_the_opencl_calls_that_docstrings_name_are_in_the_reference() -> None:
    known = set(re.findall(r"`(cl[A-Z]\w+)`", CALLS_PAGE.read_text(encoding="utf-8")))
    named = {call: one.name for one in ALL.values() for call in re.findall(r"``(cl[A-Z]\w+)``", one.doc)}
    assert {call: name for call, name in named.items() if call not in known} == {}


def test_the_table_is_read() -> None:
    assert {"MemHandle.create_buffer", "Mapping.unmap", "enqueue_copy", "track"} <= set(CALLS)
