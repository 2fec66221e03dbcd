"""``python -m clmemlife run``: a program as ``python`` runs it, in a process that the start-up hook watches.

The interpreter is started anew in this very process, so everything about the program is what it is without us: process
number, arguments, ``__main__``, standard streams, tracebacks, exit code, signals. Only where the exit code is to depend
on what was found does the program become a child of this process, which passes signals on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from typing import Any

from ._settings import VARIABLES, Settings, parse_chaos

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_startup")
"""The folder that has to stand on ``PYTHONPATH``."""

FOUND = 3
"""The exit code of a program that ended with 0, where something was found and ``--strict`` is given."""

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def parse(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """Return the options of ``run``, and what follows them: the words that ``python`` is to get."""
    parser = ArgumentParser(
        prog="python -m clmemlife run", allow_abbrev=False,
        usage="%(prog)s [options] (PROGRAM | -m NAME | -c CODE) [arguments ...]",
        description="Run a program as python does, and report what it does wrong with OpenCL.",
        epilog="PROGRAM is what python takes: a file, a folder, an archive, or - for standard input.",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write what was found to FILE, one line for each process")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline to FILE, for Perfetto or chrome://tracing")
    parser.add_argument("--strict", action="store_true", help=f"findings make exit code {FOUND} of exit code 0")
    parser.add_argument("--no-hazards", action="store_true", help="do not look for missing events")
    parser.add_argument("--no-leaks", action="store_true", help="do not list what is alive at the end")
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--chaos", metavar="SEED[:MS]", type=_seed,
        help="hold commands back for up to MS milliseconds (default 10), as far as the declared events allow",
    )  # fmt: skip
    order.add_argument("--serialize", action="store_true", help="finish after each command")
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        if arguments[place] in ("-", "-m", "-c", "--module"):
            break
        place += 2 if arguments[place] in ("--json", "--trace", "--chaos") else 1
    options, words = parser.parse_args(arguments[:place]), arguments[place:]
    if words[:1] == ["--module"]:
        words[0] = "-m"
    if len(words) < (2 if words[:1] in (["-m"], ["-c"]) else 1):
        parser.error("say what to run: PROGRAM, -m NAME or -c CODE")
    return options, words


def _seed(text: str) -> str:
    parse_chaos(text)
    return text


def run(options: Namespace, words: list[str]) -> int:
    """Run the program; return its exit code if this process outlives it."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        sys.stderr.write("clmemlife run: it needs the start-up hook of Python, which -E, -I and -S turn off\n")
        return 2
    command = [sys.executable, *interpreter_options(), *words]
    with contextlib.ExitStack() as stack:
        try:
            environment = _environment(options, stack)
        except OSError as error:
            sys.stderr.write(f"clmemlife run: {error.filename}: {error.strerror}\n")
            return 2
        sys.stdout.flush()
        sys.stderr.flush()
        if not options.strict and os.name == "posix":
            os.execve(sys.executable, command, environment)
        code = _supervise(command, environment)
        return FOUND if not code and options.strict and _anything_found(environment["CLMEMLIFE_JSON"]) else code


def interpreter_options() -> list[str]:
    """Return the options that this interpreter was given before ``-m clmemlife``."""
    found: list[str] = []
    for word in sys.orig_argv[1:]:
        if re.fullmatch(r"-[bBdhiOPqRsuvx?]*m(clmemlife)?", word):
            single = word[: word.index("m")]
            return [*found, single] if single != "-" else found
        found.append(word)
    return []


def _environment(options: Namespace, stack: contextlib.ExitStack) -> dict[str, str]:
    """Return the environment of the program: what is to be done, for it and for the Python processes it starts."""
    json_file = options.json or ""
    if not json_file and options.strict:
        json_file = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="clmemlife-")), "found")
    files = []
    for file in (json_file, options.trace or ""):
        if file:
            open(file, "w").close()  # now, while it can be an error
        files.append(file and os.path.abspath(file))
    wanted = Settings(not options.no_hazards, not options.no_leaks, options.chaos or "", options.serialize, *files)
    found = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, os.environ.get("PYTHONPATH"))))
    return {**found, **wanted.variables(), "CLMEMLIFE_FIRST": "1"}


def _anything_found(path: str) -> bool:
    with open(path, encoding="utf-8") as lines:
        return any(json.loads(line)["findings"] for line in lines)


def _supervise(command: list[str], environment: dict[str, str]) -> int:
    """Run the program as a child that gets the signals that are meant for it, and end as it ends."""
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: Any) -> None:
        if child is not None and not (number in (signal.SIGINT, _QUIT) and _sent_by_terminal()):
            child.send_signal(number)

    before = {}
    for name in _FORWARDED:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, forward)
    child = subprocess.Popen(command, env=environment)
    code = child.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # those that cannot be caught need no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


_QUIT = getattr(signal, "SIGQUIT", None)


def _sent_by_terminal() -> bool:
    """Say whether a key of the terminal sends its signals to this process and the child alike."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
