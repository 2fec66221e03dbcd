"""Kernels of plain PyOpenCL: the memory objects that were last set as arguments, and how a launch uses them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyopencl as cl

from ... import _kernel_args
from ..._journal import Access
from ..._kernel_types import ASSUMED
from ...exceptions import ContextMismatchError, ReleasedError
from . import _faults, _svm
from ._kernel_text import UNCLEAR, uses
from ._places import KEY, outer_site
from ._wrapped import Wrapper, usable

ARGUMENTS = "_clmemlife_arguments"
_ONE_WAY = cl.mem_flags.READ_ONLY | cl.mem_flags.WRITE_ONLY
_CONTEXT = "_clmemlife_context"
_TEXT = "_clmemlife_text"
_SCALARS = (np.generic, int, float, cl.LocalMemory)


class Arguments:
    """The memory objects among the arguments of a kernel, by number: with the lines that set them."""

    __slots__ = ("accesses", "entries", "noted")

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Any, str]] = {}  # a `Wrapper`, a `Range` of shared virtual memory, or None
        self.accesses: tuple[Access, ...] | None = None  # of a launch, as long as no argument changes
        self.noted: tuple[Any, ...] = ()  # `Wrapper` on host memory, `Area`


def note_argument(kernel: Any, index: int, value: Any) -> None:
    """Take note of an argument that is about to be set; a released object is an error before it is a crash."""
    arguments: Arguments | None = kernel.__dict__.get(ARGUMENTS)
    if isinstance(value, _SCALARS):
        if arguments is not None and arguments.entries.pop(index, None) is not None:
            arguments.accesses = None
        return
    if arguments is None:
        arguments = kernel.__dict__[ARGUMENTS] = Arguments()
    tripwire = getattr(value, KEY, None)
    about = tripwire.about if tripwire is not None else None
    if type(about) is Wrapper and about.released is None:
        known = arguments.entries.get(index)
        if known is not None and known[0] is about:
            return
    elif isinstance(value, cl.MemoryObjectHolder):
        what = f"argument {index} of kernel {_kernel_args.name_of(kernel)!r}"
        about = usable(value, outer_site(sys._getframe(2)), what)
    elif isinstance(value, cl.SVMPointer):
        known = arguments.entries.get(index)
        if known is not None and type(known[0]) is _svm.Range and known[0].stands_for(value):
            return
        about = _svm.range_of(value, outer_site(sys._getframe(2)))
        if about is None:
            arguments.entries.pop(index, None)
            _faults.unknown("an argument in shared virtual memory whose allocation was not seen")
    elif arguments.entries.pop(index, None) is None:
        return
    else:
        about = None
    arguments.accesses = None
    if about is not None:
        where = outer_site(sys._getframe(2))
        arguments.entries[index] = about, where
        if type(about) is Wrapper:
            _check_context(kernel, index, value, about, where)


def _check_context(kernel: Any, index: int, value: Any, about: Wrapper, site: str) -> None:
    """An argument of another context is refused by some drivers; with others the kernel runs, with anything."""
    own: int | None = kernel.__dict__.get(_CONTEXT)
    if own is None:
        own = kernel.__dict__[_CONTEXT] = kernel.context.int_ptr
    if not about.context:
        about.context = value.context.int_ptr
    if about.context != own:
        _faults.report(
            "other_context",
            f"argument {index} of kernel {_kernel_args.name_of(kernel)!r} is of another context than the kernel", site,
            about.site, thing=str(about), error=ContextMismatchError,
            remedy="Make the object in the context that the program was built in (kernel.context).",
        )  # fmt: skip


def kernel(kernel: Any, site: str) -> tuple[str, tuple[Any, ...], tuple[Access, ...]]:
    """Return the name of a kernel that is about to be launched, what is to be noted, and the bytes it uses."""
    name = _kernel_args.name_of(kernel)
    arguments: Arguments | None = kernel.__dict__.get(ARGUMENTS)
    if arguments is None:
        return name, (), ()
    for index, (about, where) in arguments.entries.copy().items():
        if type(about) is not Wrapper:
            about.area.check(site)
        elif about.released is not None:
            _check_owner(name, index, about, where, site)
    if arguments.accesses is None:
        _describe(kernel, arguments, site)
    return name, arguments.noted, arguments.accesses or ()


def _describe(kernel: Any, arguments: Arguments, site: str) -> None:
    parameters = _kernel_args.parameters(kernel)
    accesses: list[Access] = []
    noted: list[Any] = []
    for index, (about, _) in sorted(arguments.entries.copy().items()):
        use = _use(kernel, index, parameters[index].mode if index < len(parameters) else ASSUMED)
        if type(about) is not Wrapper:
            accesses.append(about.access(use, site))
            noted.append(about.area)
            continue
        if about.host is not None:
            noted.append(about)
        accesses.append(about.whole(use))
        if about.flags & _ONE_WAY and use in ("write", "update"):
            _check_flags(kernel, index, about, use, site)
    arguments.accesses, arguments.noted = tuple(accesses), tuple(noted)


def _check_flags(kernel: Any, index: int, about: Wrapper, use: str, site: str) -> None:
    read_only = about.flags & cl.mem_flags.READ_ONLY
    if read_only or use == "update":
        name, does = ("READ_ONLY", "writes") if read_only else ("WRITE_ONLY", "reads and writes")
        _faults.report(
            "wrong_mem_flags",
            f"kernel {_kernel_args.name_of(kernel)!r} {does} its argument {index}, which was made {name}: what that "
            "does is undefined",
            site, about.site, thing=str(about), remedy=f"Make it with mem_flags.READ_WRITE; {name} is about kernels.",
        )  # fmt: skip


def _check_owner(name: str, index: int, about: Wrapper, where: str, site: str) -> None:
    """An argument was given back after it was set: fine only as long as somebody else owns the memory."""
    shared = about.shared
    if shared.owners or shared.parts:
        return
    watched = shared.watch()
    if watched is not None and not watched.dead and not about.pooled:
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
        fatal=not about.pooled,
    )


def _use(kernel: Any, index: int, mode: str) -> str:
    """Return what a kernel does with an argument: by its qualifiers, else by its text."""
    if mode != ASSUMED:
        return mode
    told = _told(kernel)
    use = told[index] if index < len(told) else UNCLEAR
    if use == UNCLEAR:
        _faults.unknown("an argument of which the kernel's text does not say whether it is written: taken as read")
    return use


def _told(kernel: Any) -> tuple[str, ...]:
    told: tuple[str, ...] | None = kernel.__dict__.get(_TEXT)
    if told is None:
        told = kernel.__dict__[_TEXT] = uses(_source(kernel), _kernel_args.name_of(kernel))
    return told


def _source(kernel: Any) -> str:
    """Return the text of a kernel's program, as PyOpenCL remembers it or as the driver does; "" where neither does."""
    with suppress(AttributeError, TypeError):  # the latter where PyOpenCL made the kernel without a program of its own
        if isinstance(kernel._source, str):
            return str(kernel._source)
    with suppress(AttributeError, cl.Error):
        return str(kernel.program.source or "")
    return ""


# -- hooks of Kernel ---------------------------------------------------------------------------------------------------


def sets_many(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``_set_arg_multi``, which all calls of a kernel lead to."""

    def _set_arg_multi(self: Any, indices_and_args: tuple[Any, ...]) -> None:
        if _faults.active:
            for place in range(0, len(indices_and_args), 2):
                note_argument(self, indices_and_args[place], indices_and_args[place + 1])
        original(self, indices_and_args)

    return _set_arg_multi


def sets_one(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``set_arg``."""

    def set_arg(self: Any, *arguments: Any, **keywords: Any) -> None:
        given = dict(zip(("arg_index", "arg"), arguments), **keywords)
        if _faults.active and isinstance(given.get("arg_index"), int):
            note_argument(self, given["arg_index"], given.get("arg"))
        original(self, *arguments, **keywords)

    return set_arg


def clones(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``clone``: the new kernel has the arguments of the old one."""

    def clone(self: Any) -> Any:
        known: Arguments | None = self.__dict__.get(ARGUMENTS)
        made = original(self)
        if _faults.active:
            made.__dict__[_TEXT] = _told(self)
            if known is not None:
                mine = made.__dict__[ARGUMENTS] = Arguments()
                mine.entries.update(known.entries)
        return made

    return clone
