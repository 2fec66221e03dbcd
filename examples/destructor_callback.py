"""A function that is called when the runtime has destroyed a memory object, and not a moment before.

You learn: releasing a handle gives one reference back, and the object lives on while a part of it does; functions given
to `on_destroy` run on a thread of their own, the one given last first; they are told what is gone, never given it.

Prints::

    released, but a part of it is alive: called 0 times
    pool of 8192 bytes is gone: forget its name
    pool of 8192 bytes is gone: tell the others
    0 objects alive
"""

from __future__ import annotations

import sys
import threading

import pyopencl as cl

import clmemlife as cml
from clmemlife import MemHandle


def main() -> None:
    try:
        context = cl.create_some_context(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    calls: list[str] = []
    all_told = threading.Event()

    def tell_the_others(gone: cml.ObjectInfo) -> None:
        calls.append(f"{gone.label} of {gone.size} bytes is gone: tell the others")
        all_told.set()

    def forget_its_name(gone: cml.ObjectInfo) -> None:
        calls.append(f"{gone.label} of {gone.size} bytes is gone: forget its name")

    pool = MemHandle.create_buffer(context, 8192, label="pool")
    pool.on_destroy(tell_the_others)
    pool.on_destroy(forget_its_name)
    with pool.sub_buffer(0, 4096, label="part"):
        pool.release()
        print(f"released, but a part of it is alive: called {len(calls)} times")

    if not all_told.wait(timeout=10):
        sys.exit("the runtime did not say within 10 seconds that the object is gone")
    print("\n".join(calls))
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
