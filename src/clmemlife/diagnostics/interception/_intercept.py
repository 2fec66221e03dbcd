"""The hooks: PyOpenCL's entry points, replaced while a sanitizer listens, and put back.

What enqueues is hooked in ``pyopencl._cl``, where all of PyOpenCL's own functions lead to, so that warnings of those
still name the caller's line and names taken out of ``pyopencl`` before count as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pyopencl as cl

from ... import _inflight, _journal
from ..._submit import describe_queue, describe_waits
from ...exceptions import ClMemLifeError, DependencyError, status_name
from . import _copies, _faults, _leases, _mapped, _refused, _svm, _watched, _wrapped
from ._places import caller
from ._uses_of import Bound, Entry, Plan

outside: Any = SimpleNamespace(rewrite_waits=None, after_enqueue=None)
"""The module that has the hooks of chaos runs, once it is loaded."""
_STATUS = cl.event_info.COMMAND_EXECUTION_STATUS
_get_info = cl.Event.get_info  # as it is without hooks


def bind(names: Sequence[str], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Bound:
    bound = dict(zip(names, arguments))
    if keywords:
        bound.update(keywords)
    return bound


def understood(describe: Callable[[Bound, str], Any], bound: Bound, site: str, what: str) -> Any:
    """Return what a call does; ``None`` for arguments that PyOpenCL refuses, or that only it understands."""
    try:
        return describe(bound, site)
    except ClMemLifeError:
        raise
    except Exception as error:
        _faults.unknown(f"{what} that could not be read ({type(error).__name__})")
        return None


def rewritten(
    names: Sequence[str], arguments: tuple[Any, ...], keywords: dict[str, Any], queue: Any, waits: list[Any], what: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with the wait-list that a chaos run wants."""
    if outside.rewrite_waits is None:
        return arguments, keywords
    waits = outside.rewrite_waits(queue, list(waits), what)
    place = names.index("wait_for")
    if place < len(arguments):
        return (*arguments[:place], waits, *arguments[place + 1 :]), keywords
    return arguments, {**keywords, "wait_for": waits}


def enqueues(name: str, entry: Entry, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that enqueues as `original` does, and publishes what that means."""
    names, describe = entry
    what = f"a call of {name}"

    @functools.wraps(original)
    def enqueue(*arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return original(*arguments, **keywords)
        bound = bind(names, arguments, keywords)
        queue = bound.get("queue")
        if not isinstance(queue, cl.CommandQueue):
            return original(*arguments, **keywords)  # which says what is wrong
        plan = understood(describe, bound, site, what) or Plan("foreign", name)
        if _mapped.everything:
            _mapped.check(plan.accesses, plan.kind, site)
        if plan.host is not None:
            _watched.used(plan.host, site)
        waits = checked_waits(bound.get("wait_for"), site)
        if "wait_for" in names and not plan.blocking:
            arguments, keywords = rewritten(names, arguments, keywords, queue, waits, plan.name or plan.kind)
        return published(queue, plan, waits, site, None, original, arguments, keywords)

    return enqueue


def checked_waits(wait_for: Any, site: str) -> list[Any]:
    """Return a wait-list as a list; a failed event in it is an error, since some drivers never return from it."""
    if not wait_for:
        return []
    waits = list(wait_for)
    for event in waits:
        if isinstance(event, cl.Event):
            status = _get_info(event, _STATUS)
            if status < 0:
                root = _inflight.root_failure(event)
                error = functools.partial(DependencyError, event, status, root_event=root)
                report_failed(f"waits for an event that has failed with {status_name(status)}", site, event, error)
    return waits


def report_failed(text: str, site: str, event: Any, error: Any = None) -> None:
    where = _copies.sites.get(event.int_ptr, "")
    try:
        _faults.report(
            "failed_dependency",
            f"a command {text}" + (f" (of {where})" if where else "") + ": it never runs, and some drivers hang",
            site, where,
            remedy="Look at event.command_execution_status before you pass the event on; enqueue nothing behind it.",
            error=ClMemLifeError, fatal=error is not None,
        )  # fmt: skip
    except ClMemLifeError as found:
        if error is None:
            raise
        raise error(message=str(found)) from None


def described(
    plan: Plan, place: tuple[Any, bool], waits: list[Any], site: str, mapping: int | None
) -> _journal.Command:
    """Return the record of a command."""
    key, out_of_order = place
    if waits:  # of copies that blocked, the events are known to be complete
        waits = [one for one in waits if getattr(one, _copies.CLONE, one) is not None]
    events, gates, opened = describe_waits(waits) if waits else ((), (), ())
    return _journal.Command(
        plan.kind, key, plan.name, out_of_order, plan.accesses, events, gates, opened, site, plan.blocking, mapping,
        plan.undefined, raw=True,
    )  # fmt: skip


def published(
    queue: Any, plan: Plan, waits: list[Any], site: str, mapping: int | None, original: Callable[..., Any],
    arguments: tuple[Any, ...], keywords: dict[str, Any], place: tuple[Any, bool] | None = None,
) -> Any:  # fmt: skip
    """Publish a command, enqueue it, and keep what must be kept."""
    if _copies.pending:
        _copies.look_at_events()
    if _leases.leases:
        _leases.look_at_leases(site)
    if _svm.busy:
        _svm.look_at_memory(site)
    for faults in _faults.active:
        faults.commands += 1
        faults.maps += plan.kind == "map"
    if _wrapped.pools:
        for access in plan.accesses:
            if access.obj in _wrapped.pools:
                _wrapped.pools[access.obj].add(site)
    record = None
    if _journal.listeners:
        record = described(plan, place or describe_queue(queue), waits, site, mapping)
        _journal.before(record)
    try:
        result = original(*arguments, **keywords)
    except BaseException as error:
        if record is not None:
            _journal.abandoned(record)
        if isinstance(error, cl.Error):
            explain(error, plan, site, queue, (*arguments, *keywords.values()))
        raise
    event = result[1] if type(result) is tuple else result
    plain = _copies.known_event(event, plan.blocking, site)
    if record is not None:
        _journal.after(record, plain)
    for owner in plan.borrowed:
        _copies.pending.append((owner, plain, site))
    if not plan.blocking:
        for wrapper in plan.wrappers:
            wrapper.enqueued(plain, site)
    if outside.after_enqueue is not None and isinstance(event, cl.Event):
        outside.after_enqueue(queue, event)
    return result


def explain(error: cl.Error, plan: Plan, site: str, queue: Any, given: tuple[Any, ...]) -> None:
    """Say more of an error of the driver."""
    if error.code == cl.status_code.INVALID_CONTEXT:
        things = [one for each in given for one in (each if isinstance(each, (list, tuple)) else (each,))]
        _refused.other_context(queue, things, site)
    elif plan.kind == "migrate" and not plan.accesses:
        _refused.nothing_to_migrate(error, site)
    elif plan.kind in ("enqueue_copy", "enqueue_fill", "map"):
        _refused.command(error, plan.wrappers, plan.asked, site)
