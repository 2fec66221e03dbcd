"""The hooks of what the host waits for, asks and sets."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from ... import _inflight, _journal
from ..._submit import plain_event
from . import _copies, _faults, _leases, _svm
from ._intercept import report_failed
from ._places import caller, outer_site

_STATUS = cl.event_info.COMMAND_EXECUTION_STATUS
_get_info = cl.Event.get_info  # as it is without hooks
_FAILED = cl.status_code.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST


def host_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the host that is a good moment to look at what goes on."""

    @functools.wraps(original)
    def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if _copies.pending or _leases.leases or _svm.busy:
            site = outer_site(sys._getframe(1))
            _copies.look_at_events()
            _leases.look_at_leases(site)
            _svm.look_at_memory(site)
        return original(self, *arguments, **keywords)

    return step


def waits(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Event.wait``, which says why a command has failed."""
    inner = host_step(original)

    @functools.wraps(original)
    def wait(self: Any) -> None:
        try:
            inner(self)
        except cl.Error as error:
            site = caller(sys._getframe(1))
            failed = error.code == _FAILED or _get_info(self, _STATUS) < 0  # some drivers do not say the latter
            if site is not None and _faults.active and failed:
                _report_failure(self, site)
            raise

    return wait


def waits_for_many(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``wait_for_events``, which says why a command has failed."""

    @functools.wraps(original)
    def wait_for_events(events: Any) -> None:
        try:
            original(events)
        except cl.Error as error:
            site = caller(sys._getframe(1))
            if site is not None and _faults.active and error.code == _FAILED:
                failed = [one for one in events if _get_info(one, _STATUS) < 0]
                _report_failure((failed or events)[0], site)
            elif site is not None and _faults.active and error.code == cl.status_code.INVALID_CONTEXT:
                _faults.report(
                    "refused_call", "a wait is refused, since its events are of several contexts", site,
                    remedy="Wait for the events of each context in a call of their own.", quietly=True,
                )  # fmt: skip
            raise

    return wait_for_events


def _report_failure(event: Any, site: str) -> None:
    root = _inflight.root_failure(event)
    where = _copies.sites.get(event.int_ptr, "")
    report_failed("has failed, or an event that it waited for", site, event if where else root)


def sets_status(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``UserEvent.set_status``, which remembers where an event was made to fail."""
    inner = host_step(original)

    @functools.wraps(original)
    def set_status(self: Any, status: Any) -> None:
        site = caller(sys._getframe(1))
        inner(self, status)
        if site is not None:
            _copies.sites[self.int_ptr] = site

    return set_status


def calls_back(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Event.set_callback``: what the function does comes after the command."""

    @functools.wraps(original)
    def set_callback(self: Any, *arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        if site is None or len(arguments) != 2 or arguments[0] != 0 or not _journal.listeners:
            return original(self, *arguments, **keywords)
        event, function = plain_event(self), arguments[1]

        def notify(status: int) -> Any:
            if status == 0:
                _journal.host(_journal.HostWait((event,), site=site))
            return function(status)

        return original(self, arguments[0], notify)

    return set_callback


def _learned(event: Any, status: int, frame: Any) -> None:
    """The program itself asked and was told that a command is complete: it may act on that."""
    if status == 0 and _journal.listeners:
        site = caller(frame)
        if site is not None and event.get_info(cl.event_info.COMMAND_TYPE) != cl.command_type.USER:
            _journal.host(_journal.HostWait((plain_event(event),), site=site))


def asks_event(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Event.get_info``."""

    @functools.wraps(original)
    def get_info(self: Any, param: Any) -> Any:
        value = original(self, param)
        if param == _STATUS and value == 0:
            _learned(self, value, sys._getframe(1))
        return value

    return get_info


def asks_event_status(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``command_execution_status`` of an event."""

    def command_execution_status(self: Any) -> Any:
        value = original(self)
        if value == 0:
            _learned(self, value, sys._getframe(1))
        return value

    return command_execution_status
