"""Blocks of an array on two workers, each with a context, a queue and handles of its own; one of them is killed.

You learn: an engine is made in the worker that uses it and ends there; arrays travel, handles stay; what a dead worker
had computed is computed again. The workers are processes here: ``Client("tcp://scheduler:8786")`` has other machines'.

Prints::

    a worker was killed, and ... results with it
    alive on the workers: ['table'] ['table']
    0 objects alive, and all blocks agree with NumPy
"""

import logging
import os
import sys

import numpy as np
import numpy.typing as npt
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, InOut, MemFlags, MemHandle

try:
    from distributed import Client, Worker, WorkerPlugin, get_worker, wait
except ImportError as missing:
    sys.exit(f"needs Dask's workers (python -m pip install distributed): {missing}")

SOURCE = "kernel void look_up(global int *x, global const int *t) { x[get_global_id(0)] = t[x[get_global_id(0)]]; }"
COPY = MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR
TABLE = np.random.default_rng(1).permutation(1000).astype(np.int32)


class Engine(WorkerPlugin):
    def setup(self, worker: Worker) -> None:
        self.context = cl.create_some_context(interactive=False)
        self.queue = cl.CommandQueue(self.context)
        self.kernel = cl.Kernel(cl.Program(self.context, SOURCE).build(), "look_up")
        self.table = MemHandle.create_buffer(self.context, flags=COPY, hostbuf=TABLE, label="table")

    def teardown(self, worker: Worker) -> None:
        self.table.release()


def look_up(block: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    engine, result = get_worker().plugins["engine"], np.empty_like(block)
    assert isinstance(engine, Engine)
    with MemHandle.create_buffer(engine.context, flags=COPY, hostbuf=block, label="block") as x:
        done = cml.enqueue_kernel(engine.queue, engine.kernel, block.shape, None, InOut(x), In(engine.table))
        cml.enqueue_copy(engine.queue, result, x, wait_for=done)
    return result


def main() -> None:
    try:
        cl.choose_devices(interactive=False)
    except cl.Error as error:
        sys.exit(f"no OpenCL device: {error}")
    data = np.random.default_rng(2).integers(0, 1000, (8, 50_000), np.int32)
    with Client(n_workers=2, dashboard_address=":0", silence_logs=logging.CRITICAL) as client:
        client.register_plugin(Engine(), name="engine")
        once = client.map(look_up, list(data))
        wait(once, timeout=300)
        address, pid = next(iter(client.run(os.getpid).items()))
        print(f"a worker was killed, and {len(client.has_what()[address])} results with it")
        os.kill(pid, 9)
        while address in client.has_what():
            pass  # until its death is known
        twice = client.map(look_up, once)
        wait(twice, timeout=300)
        np.testing.assert_array_equal(client.gather(twice), TABLE[TABLE[data]])
        client.wait_for_workers(2, timeout=300)  # somebody starts another one
        print("alive on the workers:", *client.run(lambda: [record.label for record in cml.live()]).values())
        client.unregister_worker_plugin("engine")
        print(f"{sum(map(len, client.run(cml.live).values()))} objects alive, and all blocks agree with NumPy")


if __name__ == "__main__":
    main()
