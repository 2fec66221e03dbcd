"""What scopes have in common: how they begin and end, who listens meanwhile, and that a forked child has none."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from .. import _journal, _opencl
from .._site import unraisable

S = TypeVar("S", bound="Scope")
R = TypeVar("R", bound="Reader")


class Scope:
    """A block in which something is looked at: ``with``, or `start` and `stop`."""

    def start(self) -> None:
        """Begin, as entering the block does."""
        raise NotImplementedError

    def stop(self) -> Any:
        """End, as leaving the block does; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.stop()
        except Exception as late:
            if error is None:
                raise
            _add(error, late)


def _add(error: BaseException, late: Exception) -> None:
    """Say in the exception of the block what its end has found."""
    if sys.version_info >= (3, 11):
        error.add_note(f"at the end of the block: {type(late).__name__}: {late}")
    else:
        unraisable(late)


class Reader(_journal.Listener, Protocol):
    """A listener of the journal that scopes are about."""

    def forget_in_child(self) -> None:
        """Take new locks in a forked child, and be done with what is the parent's."""


class Readers(Generic[R]):
    """The readers of one kind that listen, the innermost last. In a forked child there are none."""

    def __init__(self) -> None:
        self.listening: list[R] = []
        _all.append(self)

    def begin(self, reader: R) -> None:
        """Let a reader listen, once at a time."""
        if reader in self.listening:
            raise RuntimeError("this scope has begun already")
        _journal.subscribe(reader)
        self.listening.append(reader)

    def end(self, reader: R) -> bool:
        """Let it listen no more; say whether it did. Of several threads that end it one is told so."""
        try:
            self.listening.remove(reader)
        except ValueError:
            return False
        _journal.unsubscribe(reader)
        return True


_all: list[Readers[Any]] = []


def _after_fork_in_child() -> None:
    for readers in _all:
        for reader in readers.listening:
            _opencl.immortalise(reader)  # its events are the parent's: to let go of one would reach the driver
            reader.forget_in_child()
        readers.listening.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
