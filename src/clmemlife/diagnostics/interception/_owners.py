"""The hooks of ``from_int_ptr``: who takes over a reference that another object owns is told."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

from ... import _ledger
from ...exceptions import OwnershipError
from . import _faults, _wrapped
from ._places import caller
from ._wrapped import watch

Function = Callable[..., Any]


def wraps_pointer(original: Function) -> Function:
    """Return ``from_int_ptr`` of memory objects."""

    @functools.wraps(original)
    def from_int_ptr(*arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return original(*arguments, **keywords)
        given = dict(zip(("int_ptr_value", "retain"), arguments), **keywords)
        owner = None if given.get("retain", True) else _owner_of(given.get("int_ptr_value"))
        result = original(*arguments, **keywords)
        wrapper = watch(result, site)
        if owner is not None:
            wrapper.shared.extra += 1
            _report_two_owners(f"the object of {owner}", site, owner, str(wrapper), "memory")
        return result

    return from_int_ptr


def wraps_other(original: Function, kind: Any) -> Function:
    """Return ``from_int_ptr`` of contexts, queues and the like, of which only that is known."""

    @functools.wraps(original)
    def from_int_ptr(*arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        given = dict(zip(("int_ptr_value", "retain"), arguments), **keywords)
        if site is None or not _faults.active or given.get("retain", True):
            return original(*arguments, **keywords)
        address = given.get("int_ptr_value")
        if not any(isinstance(one, kind) and one.int_ptr == address for one in gc.get_objects()):
            return original(*arguments, **keywords)
        result = original(address, True)
        _report_two_owners(f"another {kind.__name__}", site, "", "", kind.__name__)
        return result

    return from_int_ptr


def _report_two_owners(owner: str, site: str, other: str, thing: str, what: str) -> None:
    _faults.report(
        "two_owners",
        f"from_int_ptr(..., retain=False) takes over a reference that {owner} owns: the first of the two that goes "
        f"frees the {what} under the other (the sanitizer adds the missing reference)",
        site, other, thing=thing, remedy="Pass retain=True, which takes a reference of its own.", error=OwnershipError,
    )  # fmt: skip


def _owner_of(int_ptr: Any) -> str | None:
    """Return where the object was made that owns the only references to a memory object."""
    entry = _ledger.owner_of(int_ptr) if isinstance(int_ptr, int) else None
    if entry is not None:
        return str(entry.site)
    owners = [one for one in _wrapped.alive.copy().values() if one.int_ptr == int_ptr and one.usable]
    if not owners:
        return None
    return owners[0].site
