"""A cache that never forgets, found by its leak and mended.

You learn: `track` tells what a block of code made and did not give back, with the line that made it; `report` tells
what keeps each object alive; the remedy is an owner that ends, here an `ExitStack`.

Prints::

    3 requests leave 3 buffers behind, 12288 bytes:
      table 0, made at ...leak_hunt.py:...
      table 1, made at ...leak_hunt.py:...
      table 2, made at ...leak_hunt.py:...
    table 0 is alive because of its MemHandle: entry 0 of a dict, in global 'CACHE' of module __main__
    mended: 3 requests leave 0 buffers behind
    0 objects alive
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import pyopencl as cl

import clmemlife as cml
from clmemlife import MemHandle

CACHE: dict[int, MemHandle] = {}


def table(context: cl.Context, number: int) -> MemHandle:
    if number not in CACHE:
        CACHE[number] = MemHandle.create_buffer(context, 4096, label=f"table {number}")  # for ever
    return CACHE[number]


class Tables(ExitStack):
    """The same, with an end."""

    def __init__(self, context: cl.Context) -> None:
        super().__init__()
        self.context, self.known = context, dict[int, MemHandle]()

    def __getitem__(self, number: int) -> MemHandle:
        if number not in self.known:
            buffer = MemHandle.create_buffer(self.context, 4096, label=f"table {number}")
            self.known[number] = self.enter_context(buffer)
        return self.known[number]


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")

    with cml.track("record") as scope:
        for number in range(3):
            assert table(context, number).size == 4096
    print(f"3 requests leave {len(scope.leaks)} buffers behind, {sum(leak.size for leak in scope.leaks)} bytes:")
    for leak in scope.leaks:
        print(f"  {leak.label}, made at {leak.site}")
    first = cml.report().records[0]
    print(f"{first.label} is alive because of {first.why[0]}")
    while CACHE:
        CACHE.popitem()[1].release()

    with cml.track("record") as scope, Tables(context) as tables:
        for number in range(3):
            assert tables[number].size == 4096
    print(f"mended: 3 requests leave {len(scope.leaks)} buffers behind")
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
