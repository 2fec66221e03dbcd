"""The command line: ``python -m clmemlife info | run | hook``."""

from __future__ import annotations

import argparse
import json
import os
import sys

from . import __version__, _run


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"]:
        return _run.run(*_run.parse(arguments[1:]))
    parser = argparse.ArgumentParser(prog="python -m clmemlife", description="RAII for OpenCL memory objects")
    parser.add_argument("--version", action="version", version=f"clmemlife {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser(
        "info", help="versions, loader, devices and what they support; exit status 1 without any"
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("run", help="run a program as python does, and report what it does wrong with OpenCL")
    commands.add_parser("hook", help="print the folder that watches programs when it is on PYTHONPATH")
    options = parser.parse_args(arguments)
    text, status = _run.STARTUP, 0
    if options.command == "info":
        from . import _info

        facts = _info.gather()
        text = json.dumps(facts, indent=2) if options.json else _info.text(facts)
        status = 0 if facts["devices"] else 1
    try:
        print(text, flush=True)
    except BrokenPipeError:  # whoever reads has read enough, as head does; nothing is left for the exit to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
