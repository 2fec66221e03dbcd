"""The command line: ``python -m clmemlife info``."""

from __future__ import annotations

import argparse
import json
import sys

from . import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m clmemlife", description="RAII for OpenCL memory objects")
    parser.add_argument("--version", action="version", version=f"clmemlife {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser(
        "info", help="versions, loader, devices and what they support; exit status 1 without any"
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    from . import _info

    facts = _info.gather()
    print(json.dumps(facts, indent=2) if options.json else _info.text(facts))
    return 0 if facts["devices"] else 1


if __name__ == "__main__":
    sys.exit(main())
