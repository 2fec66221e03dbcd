"""What scopes have in common: how they end, and who of them listens."""

from __future__ import annotations

import sys
import threading

import pyopencl as cl
import pytest

import clmemlife as cml
from clmemlife import _journal, _ledger
from clmemlife.diagnostics._scope import Readers

SCOPES = [cml.check_hazards, cml.record_residency, cml.record_timeline, cml.sanitize, cml.track]


each_kind = pytest.mark.parametrize("kind", SCOPES, ids=lambda kind: kind.__name__)


def fail_at_the_end(scope, error=RuntimeError):
    """Let the end of a scope fail once all is done."""
    stop = scope.stop

    def fail():
        stop()
        raise error("the end")

    scope.stop = fail


@each_kind
def test_an_end_that_fails_does_not_mask_the_exception_of_the_block_and_is_told_with_it(kind, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda record: told.append(str(record.exc_value)))
    with pytest.raises(KeyError, match="mine") as caught, kind() as scope:
        fail_at_the_end(scope)
        raise KeyError("mine")
    notes = getattr(caught.value, "__notes__", ())
    assert (told or list(notes)) in (["the end"], ["at the end of the block: RuntimeError: the end"])


@each_kind
def test_an_end_that_fails_says_so_after_a_block_that_did_not(kind):
    with pytest.raises(RuntimeError, match="the end"), kind() as scope:
        fail_at_the_end(scope)


@each_kind
def test_an_interrupt_at_the_end_is_not_lost(kind):
    with pytest.raises(KeyboardInterrupt), kind() as scope:
        fail_at_the_end(scope, KeyboardInterrupt)
        raise KeyError("mine")


@each_kind
def test_nothing_of_a_scope_listens_before_and_after(kind):
    before = _journal.listeners, _ledger.observers
    with kind() as scope:
        assert (_journal.listeners, _ledger.observers) != before
        scope.stop()
        scope.stop()
        assert (_journal.listeners, _ledger.observers) == before
    assert (_journal.listeners, _ledger.observers) == before


@pytest.mark.parametrize(
    "kind", [cml.check_hazards, cml.record_residency, cml.sanitize], ids=lambda kind: kind.__name__
)
def test_a_scope_that_has_begun_does_not_begin_once_more(kind):
    before, hooked = _journal.listeners, cl.Event.wait
    with kind() as scope, pytest.raises(RuntimeError, match="has begun already"):
        scope.start()
    assert (_journal.listeners, cl.Event.wait) == (before, hooked)
    with scope:  # and may, when it has ended
        assert len(_journal.listeners) == len(before) + 1


def test_a_scope_whose_judging_fails_listens_no_more(monkeypatch):
    scope = cml.track()
    monkeypatch.setattr(scope, "_judge", lambda: 1 / 0)
    before = _ledger.observers
    with pytest.raises(ZeroDivisionError), scope:
        pass
    assert _ledger.observers == before


class Reader:
    def before(self, command): ...

    after = abandoned = host = before

    def forget_in_child(self): ...


def test_of_several_threads_that_end_a_reader_one_is_told_that_it_listened():
    readers, reader = Readers(), Reader()
    readers.begin(reader)
    told = []
    together = threading.Barrier(4)

    def end():
        together.wait()
        told.append(readers.end(reader))

    threads = [threading.Thread(target=end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False, False, False, True]
    assert reader not in _journal.listeners
