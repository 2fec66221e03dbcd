"""Workers on other machines, stood in for by processes: what travels, what does not, and what a dead worker costs.

One cluster of `examples/several_machines.py`'s engines serves all tests here: it takes seconds to start.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyopencl as cl
import pytest

import clmemlife as cml

pytestmark = pytest.mark.timeout(600)  # a limit for hangs: processes start slowly on a busy machine
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

PROGRAM = """
import json, logging, os, signal, sys, time

sys.path.insert(0, sys.argv[1])  # the workers get it too
import numpy as np
import pyopencl as cl
from distributed import Client, as_completed, get_worker

import clmemlife as cml
import several_machines as example

LIMIT = 250  # seconds


class Engine(example.Engine):
    "As in the example, and tells when it has ended."

    def teardown(self, worker):
        super().teardown(worker)
        with open(f"{sys.argv[2]}/{os.getpid()}", "w") as file:
            file.write(str(len(cml.live())))


def own_handle(_):
    return get_worker().plugins["engine"].table


def twice(handle):
    raise AssertionError("a handle has arrived")


def slow(block):
    time.sleep(0.05)
    return example.look_up(block)


def failed_event(_):
    queue = get_worker().plugins["engine"].queue
    failed = cl.UserEvent(queue.context)
    failed.set_status(-5)
    with cml.MemHandle.create_buffer(queue.context, 64) as buffer:
        cml.enqueue_fill(queue, buffer, np.int32(0), wait_for=failed)


def error_of(call):
    try:
        call()
    except Exception as error:
        cause = error.__cause__
        return [type(error).__name__, str(error), str(cause) if cause else ""]


def main():
    seen = {}
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0", silence_logs=logging.CRITICAL) as client:
        client.register_plugin(Engine(), name="engine")
        workers = client.run(os.getpid)
        seen["processes"] = len({os.getpid(), *workers.values()})
        context = cl.create_some_context(interactive=False)
        with cml.MemHandle.create_buffer(context, 64, label="mine") as handle:
            seen["argument"] = error_of(lambda: client.submit(twice, handle).result(LIMIT))
        seen["result"] = error_of(lambda: client.submit(own_handle, 0).result(LIMIT))
        seen["failed event"] = error_of(lambda: client.submit(failed_event, 0).result(LIMIT))

        data = np.random.default_rng(3).integers(0, 1000, (40, 1000), np.int32)
        once = client.map(slow, list(data))
        for number, _ in enumerate(as_completed(once, timeout=LIMIT)):
            if number == 5:
                address, victim = next(iter(workers.items()))
                os.kill(victim, signal.SIGKILL)  # at work, and with results that nobody else has
        deadline = time.monotonic() + LIMIT
        while address in client.has_what():
            assert time.monotonic() < deadline, "the death of a worker is not noticed"
            time.sleep(0.01)
        seen["right"] = bool((np.stack(client.gather(once)) == example.TABLE[data]).all())
        client.wait_for_workers(2, timeout=LIMIT)
        seen["new worker"] = victim not in client.run(os.getpid).values()
        seen["records"] = [[record.label for record in records] for records in client.run(cml.live).values()]
        seen["last workers"] = sorted(client.run(os.getpid).values())
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program saw, and what was left in each worker whose engine has ended."""
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("workers")
    script = folder / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    ended = folder / "ended"
    ended.mkdir()
    done = subprocess.run(
        [sys.executable, script, EXAMPLES, ended],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        env={
            **os.environ,
            "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "10 minutes",
        },  # else it is given up in 15 s
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["ended"] = {int(path.name): int(path.read_text()) for path in ended.iterdir()}
    return found


def test_each_worker_has_an_engine_in_a_process_of_its_own(seen: dict[str, Any]) -> None:
    assert seen["processes"] == 3


def test_a_handle_as_an_argument_is_a_type_error_with_advice(seen: dict[str, Any]) -> None:
    kind, text, cause = seen["argument"]
    assert kind == "TypeError"
    assert "'mine' (64 bytes, created at" in text + cause
    assert "create a new buffer in the worker" in text + cause


def test_a_handle_as_a_result_is_a_type_error_with_advice(seen: dict[str, Any]) -> None:
    kind, text, cause = seen["result"]
    assert kind == "TypeError"
    assert "create a new buffer in the worker" in text + cause


def test_an_error_of_a_task_reaches_the_client_with_its_text(seen: dict[str, Any]) -> None:
    assert seen["failed event"][0] == "DependencyError"
    assert "OUT_OF_RESOURCES (-5)" in seen["failed event"][1]


def test_what_a_killed_worker_had_computed_is_computed_again(seen: dict[str, Any]) -> None:
    assert seen["right"]
    assert seen["new worker"]


def test_the_client_sees_what_is_alive_on_each_worker(seen: dict[str, Any]) -> None:
    assert seen["records"] == [["table"], ["table"]]


def test_closing_the_cluster_ends_each_engine_and_leaves_nothing_alive(seen: dict[str, Any]) -> None:
    assert seen["ended"] == dict.fromkeys(seen["last workers"], 0)


def test_the_error_of_a_failed_event_is_pickled_without_its_events(context: cl.Context, queue: cl.CommandQueue) -> None:
    failed = cl.UserEvent(context)
    failed.set_status(-5)
    with pytest.raises(cml.DependencyError) as caught:
        cml.Migration(queue, [], wait_for=failed)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.event, copy.root_event, copy.status) == (None, None, -5)
    assert str(copy) == str(caught.value)
