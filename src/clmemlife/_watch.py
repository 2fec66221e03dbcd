"""One process under watch: begun when it has imported PyOpenCL, by the start-up hook, and reported when it ends."""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from typing import Any

from ._settings import Settings, parse_chaos, settings, unknown_words

__all__ = ["Watch", "begin"]


class Watch:
    """Follow this process from now to its end."""

    def __init__(self, wanted: Settings, *, first: bool) -> None:
        from .diagnostics.interception import sanitize

        self._wanted, self._first = wanted, first
        self._sanitizer = sanitize("record", hazards=wanted.hazards, leaks=wanted.leaks)
        self._scopes: list[Any] = []
        self._pid = os.getpid()
        self._inherited: dict[str, int] = {}
        self._announced: set[str] = set()
        self._done = False

    def start(self) -> None:
        """Begin, and arrange for the end of this process and of those that are forked from it."""
        from . import _lifecycle  # noqa: F401 - its exit hook is to run after ours
        from .diagnostics.hazards import _hangs

        wanted = self._wanted
        self._sanitizer.start()
        _hangs.announce = self._warn_of_hang
        if wanted.chaos or wanted.serialize:
            from .diagnostics import chaos

            self._scopes.append(chaos.Serializer() if wanted.serialize else chaos.Chaos(*parse_chaos(wanted.chaos)))
        if wanted.trace:
            from . import record_timeline

            self._scopes.append(record_timeline())
        for scope in self._scopes:
            scope.start()
        atexit.register(self.finish)
        _at_end_of_worker(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def finish(self) -> None:
        """End, and say what was found; once. Raises nothing: the program has ended as it ended."""
        if self._done:
            return
        self._done = True
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        try:
            for scope in self._scopes:
                scope.stop()
            self._sanitizer.stop()
            self._report()
        except Exception as error:
            say(f"clmemlife: the report failed ({type(error).__name__}: {error})")

    def _warn_of_hang(self, found: Any) -> None:
        """Say, once for each, that a wait has no end: no report may follow it."""
        if found.key not in self._announced:
            self._announced.add(found.key)
            say(f"clmemlife: {found}")

    def _report(self) -> None:
        facts = self._sanitizer.as_dict()
        if self._pid != os.getpid():  # forked: what was found before is the parent's to tell, and so are its objects
            facts["leaks"] = []
            facts["findings"] = [
                one for one in facts["findings"] if one["count"] > self._inherited.get(one["key"], 0)
            ]  # fmt: skip
            if not facts["findings"]:
                return
        say(f"clmemlife: {' '.join(sys.argv[:1]) or '-c'} (process {os.getpid()})\n{self._sanitizer.report()}")
        if self._wanted.json:
            line = {"pid": os.getpid(), "parent": os.getppid(), "arguments": list(sys.argv), **facts}
            append_line(self._wanted.json, json.dumps(line))
        for scope in self._scopes:
            if hasattr(scope, "save"):
                scope.save(self._trace_file())

    def _trace_file(self) -> str:
        stem, suffix = os.path.splitext(self._wanted.trace)
        mine = self._first and self._pid == os.getpid()
        return self._wanted.trace if mine else f"{stem}.{os.getpid()}{suffix}"

    def _forked(self) -> None:
        self._inherited = {one.key: one.count for one in self._sanitizer.findings}
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, _at_end_of_worker)  # which is after it forgets what it was to do


def begin(first: bool) -> None:
    """Watch this process; `first` is the one that was started under watch, not a child of it."""
    unknown = ", ".join(map(repr, unknown_words()))
    if unknown:
        say(f"clmemlife: CLMEMLIFE_SANITIZE asks for {unknown}, which means nothing; known are 1, hazards, leaks, none")
    Watch(settings(), first=first).start()


def say(text: str) -> None:
    """Write to standard error, whatever the program made of its name; where there is none, to nobody."""
    with suppress(Exception):
        stream: Any = sys.__stderr__
        stream.flush()
        rest = (text.rstrip("\n") + "\n").encode(stream.encoding, "backslashreplace")
        while rest:  # not through the stream: what that could not write would end the program with another exit code
            rest = rest[os.write(stream.fileno(), rest) :]


def append_line(path: str, line: str) -> None:
    """Add a line to a file that several processes write to: in one step."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def _at_end_of_worker(watch: Watch) -> None:
    """Have a worker of `multiprocessing` report: one that was forked ends without the exit handlers."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, watch.finish, exitpriority=-100)
