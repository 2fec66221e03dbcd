"""Kernels of plain PyOpenCL: the memory objects that were last set as arguments, and how a launch uses them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from .. import _foreign, _kernel_args
from .._journal import Access
from .._kernel_types import ASSUMED
from ..exceptions import ReleasedError
from . import _faults, _svm
from ._places import caller
from ._wrapped import Wrapper, usable

ARGUMENTS = "_clmemlife_arguments"
_WRITES = "_clmemlife_writes"
Argument = tuple[Any, str]  # a `Wrapper` or SVM range, and where it was set


def note_argument(kernel: Any, index: int, value: Any, site: str) -> None:
    """Take note of an argument that is about to be set; a released object is an error before it is a crash."""
    arguments = kernel.__dict__.get(ARGUMENTS)
    if isinstance(value, cl.MemoryObjectHolder):
        if arguments is None:
            arguments = kernel.__dict__[ARGUMENTS] = {}
        arguments[index] = usable(value, site, f"argument {index} of kernel {_name(kernel)!r}"), site
    elif isinstance(value, cl.SVMPointer):
        if arguments is None:
            arguments = kernel.__dict__[ARGUMENTS] = {}
        arguments[index] = _svm.range_of(value), site
    elif arguments:
        arguments.pop(index, None)


def _name(kernel: Any) -> str:
    return _kernel_args.name_of(kernel)


def kernel(kernel: Any, site: str) -> tuple[str, list[Wrapper], tuple[Access, ...]]:
    """Return the name of a kernel that is about to be launched, the objects that it uses, and their bytes."""
    name = _kernel_args.name_of(kernel)
    arguments: dict[int, Argument] = kernel.__dict__.get(ARGUMENTS) or {}
    if not arguments:
        return name, [], ()
    parameters = _kernel_args.parameters(kernel)
    wrappers, accesses = [], []
    for index, (about, where) in arguments.items():
        if type(about) is not Wrapper:
            if about is not None:
                accesses.append(about.access(ASSUMED, site))
            continue
        if about.released is not None:
            _check_owner(name, index, about, where, site)
        wrappers.append(about)
        mode = parameters[index].mode if index < len(parameters) else ASSUMED
        accesses.append(about.whole(mode))
    return name, wrappers, tuple(accesses)


def _check_owner(name: str, index: int, about: Wrapper, where: str, site: str) -> None:
    """An argument was given back after it was set: fine only as long as somebody else owns the memory."""
    if about.shared.owners:
        return
    watched = _foreign.watch_of(about.root)
    foreign = about.shared.shown and watched is not None and not watched.dead
    if foreign:
        _faults.unknown("a kernel argument whose address was given away, and may be owned by others")
        return
    _faults.report(
        "argument_owner_gone",
        f"argument {index} of kernel {name!r}, set at {where}, was given back by {about.released_by} at "
        f"{about.released}; a kernel holds no reference to its arguments",
        site,
        about.released or "",
        thing=str(about),
        remedy=f"Keep the object that was set at {where} until the kernel has been launched at {site}.",
        error=ReleasedError,
        fatal=watched is None or watched.dead or about.kind == "sub-buffer",
    )


def certainly_writes(kernel: Any, index: int) -> bool:
    """Say whether the text of a kernel assigns to what an argument points to."""
    known: dict[int, bool] | None = kernel.__dict__.get(_WRITES)
    if known is None:
        known = kernel.__dict__[_WRITES] = {}
    if index not in known:
        known[index] = _text_writes(kernel, index)
    return known[index]


_ASSIGNMENT = r"\s*(?:=(?!=)|[-+*/%&|^]=|<<=|>>=|\+\+|--)"


def _text_writes(kernel: Any, index: int) -> bool:
    try:
        source = kernel.program.source or ""
    except (AttributeError, cl.Error):
        return False
    text = _kernel_args.plain_text(source)
    heads = list(re.finditer(rf"\bkernel\b[^;{{}}]*?\b{re.escape(_name(kernel))}\s*\(", text))
    if len(heads) != 1:
        return False
    parameters = list(_kernel_args._split(text, heads[0].end()))
    if index >= len(parameters):
        return False
    words = re.findall(r"[A-Za-z_]\w*", parameters[index])
    begin = text.find("{", heads[0].end())
    depth, end = 0, begin
    for end in range(begin, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            break
    name = re.escape(words[-1]) if words else "?"
    body = text[begin:end]
    indexed = rf"\b{name}\s*\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]{_ASSIGNMENT}"
    return bool(re.search(rf"{indexed}|\*\s*{name}\b{_ASSIGNMENT}", body))


# -- hooks of Kernel ---------------------------------------------------------------------------------------------------


def sets_many(original: Callable[..., Any]) -> Callable[..., Any]:
    def _set_arg_multi(self: Any, indices_and_args: tuple[Any, ...]) -> None:
        site = caller(sys._getframe(1))
        if site is not None:
            for place in range(0, len(indices_and_args), 2):
                note_argument(self, indices_and_args[place], indices_and_args[place + 1], site)
        original(self, indices_and_args)

    return _set_arg_multi


def sets_one(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_arg(self: Any, *arguments: Any, **keywords: Any) -> None:
        site = caller(sys._getframe(1))
        given = dict(zip(("arg_index", "arg"), arguments), **keywords)
        if site is not None and isinstance(given.get("arg_index"), int):
            note_argument(self, given["arg_index"], given.get("arg"), site)
        original(self, *arguments, **keywords)

    return set_arg
