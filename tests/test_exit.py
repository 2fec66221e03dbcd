"""The end of the process: interpreter exit in any state, and the children of a fork. All in subprocesses."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

LIMIT_SECONDS = 15.0
"""An exit that waits for a gated command never ends; ours takes two seconds at most, on a loaded machine some more."""

PREPARE = """
gate = cl.UserEvent(context)
kernel = cl.Kernel(program, "inc")
ints = np.arange(1024, dtype=np.int32)
handle = MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.COPY_HOST_PTR, hostbuf=ints)
"""

STATES = {
    "a global handle": "",
    "a handle in a cycle": """
        class Holder: pass
        holder = Holder(); holder.itself, holder.handle = holder, handle
        del handle, holder
    """,
    "sub-buffers, retained handles and PyOpenCL's own": """
        child = handle.sub_buffer(0, 512); grandchild = child.sub_buffer(0, 256)
        shared = MemHandle.retain(child); mem = grandchild.mem
        handle.release()
    """,
    "an image": """
        if devices[0].image_support:
            rgba = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
            image = MemHandle.create_image(context, (8, 4), rgba)
    """,
    "an open map": """
        mapping = Mapping(queue, handle, MapFlags.WRITE, dtype=np.int32, shape=1024)
        mapping.array[:] = 1; view = mapping.array[::2]
    """,
    "an open map whose handle is gone": """
        mapping = Mapping(queue, handle, MapFlags.READ); array = mapping.array
        handle.release()
    """,
    "an open map in a cycle": """
        class Holder: pass
        holder = Holder(); holder.itself = holder
        holder.mapping = Mapping(queue, handle, MapFlags.WRITE); holder.view = holder.mapping.array[1:]
        del holder
    """,
    "an entered with block in a generator": """
        def generate():
            with handle, Mapping(queue, handle, MapFlags.WRITE) as mapping:
                yield mapping
        generator = generate(); mapping = next(generator)
    """,
    "host memory on lease": """
        host = cml.aligned_empty(4096, np.uint8, context)
        leased = MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR, hostbuf=host)
        del host
    """,
    "migrations and events": """
        migration = Migration(queue2, handle, source_queue=queue); back = migration.back()
        events = [cml.enqueue_fill(queue, handle, np.int32(n)) for n in range(10)]
    """,
    "a gated kernel": """
        event = cml.enqueue_kernel(queue, kernel, (1024,), None, InOut(handle), wait_for=gate)
        queue.flush(); handle.release()
    """,
    "a gated copy from the device": """
        result = np.empty_like(ints)
        event = cml.enqueue_copy(queue, result, handle, is_blocking=False, wait_for=gate); queue.flush()
    """,
    "a gated copy to the device whose event was dropped": """
        cml.enqueue_copy(queue, handle, np.arange(1024, dtype=np.int32), is_blocking=False, wait_for=gate)
        queue.flush()
    """,
    "a gated map": """
        mapping = Mapping(queue, handle, MapFlags.WRITE, wait_for=gate); queue.flush()
    """,
    "a gated unmap": """
        mapping = Mapping(queue, handle, MapFlags.WRITE); mapping.array[:] = 1
        event = mapping.unmap(wait_for=gate); queue.flush()
    """,
    "a gated migration": """
        migration = Migration(queue, handle, wait_for=gate); queue.flush()
    """,
    "gated commands on two queues and a lease": """
        host = cml.aligned_empty(4096, np.int32, context)
        leased = MemHandle.create_buffer(context, flags=MemFlags.READ_WRITE | MemFlags.USE_HOST_PTR, hostbuf=host)
        leased.on_destroy(lambda info: print("the object of a gated command is gone"))
        first = cml.enqueue_kernel(queue, kernel, (1024,), None, InOut(leased), wait_for=gate)
        second = cml.enqueue_fill(queue2, leased, np.int32(0), wait_for=first)
        queue.flush(); queue2.flush(); leased.release(); del host, leased
    """,
    "a failed command and what waited for it": """
        event = cml.enqueue_kernel(queue, kernel, (1024,), None, InOut(handle), wait_for=gate)
        after = cml.enqueue_fill(queue, handle, np.int32(0), wait_for=event)
        mapping = Mapping(queue, handle, MapFlags.READ, wait_for=after)
        queue.flush(); gate.set_status(-5)
    """,
    "daemon threads that hold handles and maps": """
        ready = threading.Barrier(5)
        def work():
            mine = MemHandle.create_buffer(context, 4096)
            with mine, Mapping(queue, mine, MapFlags.WRITE) as mapping:
                mapping.array[:] = 1
                ready.wait(); threading.Event().wait()
        for _ in range(4): threading.Thread(target=work, daemon=True).start()
        ready.wait()
    """,
    "a daemon thread that waits for a gated command": """
        started = threading.Event()
        def work():
            event = cml.enqueue_kernel(queue, kernel, (1024,), None, InOut(handle), wait_for=gate)
            queue.flush(); started.set(); event.wait()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
    """,
    "daemon threads at work": """
        started = threading.Event()
        def work():
            while True:
                with MemHandle.create_buffer(context, 4096) as mine:
                    cml.enqueue_fill(queue2, mine, np.int32(0))
                started.set()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
    """,
    "a handle that an exit hook of the user still releases": """
        import atexit
        atexit.register(handle.release)
    """,
    "a handle that an exit hook of the user still uses": """
        import atexit
        atexit.register(lambda: cml.enqueue_fill(queue, handle, np.int32(0)).wait())
    """,
    "nothing but what was released": "handle.release()",
}


@pytest.fixture
def python(run_process, tmp_path):
    """Run `code` after the preparation; return the finished process and how long it took from then on."""

    def run_code(*blocks, **options):
        prepared = tmp_path / "prepared"
        done = run_process(PREPARE, f"with open({str(prepared)!r}, 'w'): pass", *blocks, **options)
        return done, time.time() - prepared.stat().st_mtime

    return run_code


FAULTS = {
    "a gated migration": pytest.mark.nvidia_fault("gated migration", run=True),
    "a daemon thread that waits for a gated command": pytest.mark.nvidia_fault("thread in a wait at exit", run=True),
}


@pytest.mark.parametrize("state", [pytest.param(state, marks=FAULTS.get(state, ())) for state in STATES])
def test_exit_is_silent_and_timely_and_keeps_the_exit_code_with(python, state, aborts_at_exit):
    done, seconds = python(STATES[state])
    if state == "a daemon thread that waits for a gated command" and aborts_at_exit(done):
        pytest.xfail("the Intel CPU runtime aborts at exit while a thread waits in it, with plain PyOpenCL too")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert seconds < LIMIT_SECONDS


@pytest.mark.parametrize("state", ["a handle in a cycle", "an open map in a cycle", "a gated kernel", "a gated map"])
def test_exit_is_silent_where_warnings_are_errors_with(python, state):
    done, _ = python(STATES[state], "warnings.simplefilter('error')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("state", ["a global handle", "an open map", "a gated kernel", "a gated copy from the device"])
def test_exit_codes_are_untouched_with(python, state):
    done, _ = python(STATES[state], "sys.exit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize("state", ["an open map", "a gated kernel"])
def test_an_uncaught_exception_is_all_that_is_printed_with(python, state):
    done, _ = python(STATES[state], "raise SystemError('the end')")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("SystemError: the end\n")


def test_what_is_left_is_told_once_if_that_is_asked_for(python):
    code = """
        left = MemHandle.create_buffer(context, 64, label="left")
        mapping = Mapping(queue, left, MapFlags.WRITE)
        handle.release()
        {}
        sys.exit(3)
    """
    done, _ = python(code.format(""), CLMEMLIFE_CHECK="leaks")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("clmemlife: left at exit; alive: 1 handle, 64 bytes")
    assert done.stderr.count("'left' (64 bytes, created at <string>:") == 1
    assert done.stderr.count("map of 'left' (64 bytes, mapped at <string>:") == 1
    done, _ = python(code.format("mapping.unmap(); left.release()"), CLMEMLIFE_CHECK="leaks")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_callbacks_of_what_is_left_run_at_exit_last_registered_first(python):
    done, _ = python("""
        handle.on_destroy(lambda info: print("first", info.size))
        handle.on_destroy(lambda info: print("last", info.size))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "last 4096\nfirst 4096\n", "")


def test_a_callback_that_never_returns_does_not_hang_the_exit(python):
    done, seconds = python("""
        handle.on_destroy(lambda info: threading.Event().wait())
    """, CLMEMLIFE_EXIT_TIMEOUT="0.2")  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == ""
    assert seconds < LIMIT_SECONDS


def test_work_that_completes_within_the_limit_is_waited_for(python):
    done, _ = python("""
        slow = cl.Kernel(program, "slow")
        event = cml.enqueue_kernel(queue, slow, (16,), None, InOut(handle), np.int32(1), np.int32(1000000))
        handle.on_destroy(lambda info: print("gone"))
        handle.release()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gone\n", "")


def test_the_limit_can_be_set(python):
    _, short = python(STATES["a gated kernel"], CLMEMLIFE_EXIT_TIMEOUT="0")
    _, long = python(STATES["a gated kernel"], CLMEMLIFE_EXIT_TIMEOUT="6")
    assert long > 6
    assert long - short > 3


def test_exit_in_the_middle_of_a_with_block_is_clean(python):
    done, _ = python("""
        with handle, Mapping(queue, handle, MapFlags.WRITE) as mapping:
            mapping.array[:] = 1
            sys.exit(5)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")


# Fork

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

FORK = """
def in_child(work):
    \"\"\"Run `work` in a child that ends as a script ends; return its exit code.\"\"\"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback; traceback.print_exc()
        finally:
            sys.stdout.flush(); sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9); os.waitpid(pid, 0)
    return "hangs"

def usable():
    cml.enqueue_kernel(queue, kernel, (1024,), None, InOut(handle))
    result = np.empty_like(ints)
    cml.enqueue_copy(queue, result, handle)
    return (result == ints + 1).all()
"""


@needs_fork
def test_each_use_in_a_forked_child_is_a_forked_process_error_that_names_the_object(python):
    done, _ = python(
        FORK,
        """
handle2 = MemHandle.create_buffer(context, 64, label="field")
def work():
    for use in (
        lambda: handle2.mem, lambda: handle2.int_ptr, lambda: handle2.size, lambda: handle2.info(),
        lambda: handle2.detach(), lambda: handle2.__enter__(), lambda: handle2.sub_buffer(0, 4),
        lambda: MemHandle.retain(handle2), lambda: handle2.on_destroy(print),
        lambda: cml.enqueue_fill(queue, handle2, np.int32(0)),
        lambda: cml.enqueue_kernel(queue, kernel, (16,), None, handle2),
        lambda: Mapping(queue, handle2, MapFlags.READ), lambda: Migration(queue, handle2),
    ):
        try:
            use()
        except cml.ForkedProcessError as error:
            assert f"'field' (64 bytes, created at {handle2.site})" in str(error), error
            assert "spawn" in str(error)
        else:
            raise AssertionError("was allowed")
    assert handle2.released
    handle2.release()
    assert handle2.label == "field" and "inherited by fork" in repr(handle2)
print(in_child(work), usable())
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 True\n", "")


CHILD_STATES = [
    "a global handle",
    "a handle in a cycle",
    "sub-buffers, retained handles and PyOpenCL's own",
    "an open map",
    "an open map in a cycle",
    "host memory on lease",
    "a gated kernel",
    "a gated copy from the device",
    "a gated map",
]


@needs_fork
@pytest.mark.parametrize("state", CHILD_STATES)
def test_dropping_everything_in_a_forked_child_never_reaches_the_driver(python, state):
    done, _ = python(
        STATES[state],
        FORK,
        """
from clmemlife import _opencl
names = [name for name in globals() if isinstance(globals()[name], (MemHandle, Mapping, Migration, cl.Event))]
calls = []
def work():
    for name in _opencl.ENTRY_POINTS:
        setattr(_opencl, name, lambda *_, name=name, **__: calls.append(name))
    for name in names:
        if name != "gate":
            del globals()[name]
    gc.collect()
    assert calls == [], calls
    assert cml.live() == ()
    assert cml.statistics().leased_bytes == 0
print(in_child(work))
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@needs_fork
@pytest.mark.parametrize("state", CHILD_STATES)
def test_the_exit_of_a_forked_child_is_silent_and_timely_with(python, state):
    done, seconds = python(
        STATES[state],
        """
pid = os.fork()
if pid:
    deadline = time.monotonic() + 10
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    print(os.waitstatus_to_exitcode(status) if ended else "hangs")
    if not ended:
        os.kill(pid, 9); os.waitpid(pid, 0)
else:
    # queues, contexts and events are the caller's, and stay out of it
    from clmemlife._opencl import immortalise
    immortalise([queue, queue2, context, program, kernel, gate, globals().get("event"), globals().get("mem")])
    sys.exit(7)
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
    assert seconds < LIMIT_SECONDS


EARLY = """
import gc, os
os.register_at_fork(after_in_child=lambda: [[] for _ in range(2000)])  # before the library's own
import pyopencl as cl, clmemlife as cml
context = cl.Context(cl.get_platforms()[0].get_devices()[:1]); queue = cl.CommandQueue(context)
handle = cml.MemHandle.create_buffer(context, 4096)
gc.disable()
class Holder: pass
holder = Holder(); holder.itself = holder
holder.mapping = cml.Mapping(queue, handle, cml.MapFlags.WRITE); inner = holder.mapping._open
queue.finish()
del holder
gc.set_threshold(1, 1, 1)
os.register_at_fork(before=gc.enable)  # before the library's own, which comes in the way of that
pid = os.fork()
if pid == 0:
    os.write(1, str(inner.ended).encode())
    os._exit(0)
gc.set_threshold(700)
os.waitpid(pid, 0)
"""


@needs_fork
def test_a_collection_in_the_middle_of_a_fork_does_not_end_maps_of_the_parent():
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "inherited by fork", done.stderr


@needs_fork
def test_the_parent_is_not_affected_by_what_a_child_does(python):
    done, _ = python(
        FORK,
        """
gone = []
handle.on_destroy(gone.append)
mapping = Mapping(queue, handle, MapFlags.READ, dtype=np.int32, shape=1024)
queue.finish()  # a command under way has references of its own
before = handle.info().reference_count
def work():
    global handle, mapping
    handle.release(); del handle, mapping; gc.collect()
code = in_child(work)
assert handle.info().reference_count == before
assert (mapping.array == ints).all()
mapping.unmap()
assert usable()
queue.finish()
assert not gone
handle.release()
del mapping  # on the Intel CPU runtime an event keeps the object of its command
deadline = time.monotonic() + 10
while not gone and time.monotonic() < deadline:
    cml.statistics(); time.sleep(0.01)
print(code, len(gone))
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n", "")


@needs_fork
@pytest.mark.parametrize(
    ("scope", "reader"),
    [("check_hazards", "_checker"), ("sanitize", "_checker"), ("record_residency", "_recorder"),
     ("record_timeline", "_recording")],
)  # fmt: skip
def test_a_forked_child_leaves_the_scopes_of_its_parent_in_silence(python, scope, reader):
    done, _ = python(
        FORK,
        f"""
free, locked = threading.Event(), threading.Event()
def inside(lock):
    with lock:
        locked.set()
        free.wait()
def work():
    scope.stop()  # what hangs on the gate is the parent's to judge
    assert not getattr(scope, "findings", ()), scope.findings
    for ask in (lambda: cml.dependencies(reads=[handle]), lambda: cml.residency(handle)):
        try:
            ask()
        except RuntimeError:
            continue
        raise AssertionError("somebody listens")
scope = cml.{scope}("record") if {scope!r} in ("check_hazards", "sanitize") else cml.{scope}()
with scope:
    for one in (queue, cl.CommandQueue(context)):
        cml.enqueue_fill(one, handle, np.int32(1), wait_for=gate)
    thread = threading.Thread(target=inside, args=(scope.{reader}._lock,))
    thread.start()
    locked.wait()  # by a thread that is not in the child
    print(in_child(work))
    free.set()
    thread.join()
assert len(getattr(scope, "findings", ())) == ({reader!r} == "_checker")
gate.set_status(0)
""",
        CLMEMLIFE_CHECK="",  # what it does on purpose is for the scope alone
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@needs_fork
@pytest.mark.parametrize(
    "lock", ["_install.lock", "_svm._lock", "_wrapped._lock", "scope._faults._lock", "_hooks._lock"]
)
def test_a_forked_child_goes_on_where_a_thread_of_its_parent_was_in_the_middle_of_the_sanitizer(python, lock):
    done, _ = python(
        FORK,
        f"""
from clmemlife.diagnostics import _hooks
from clmemlife.diagnostics.interception import _install, _svm, _wrapped
free, locked = threading.Event(), threading.Event()
def inside():
    with {lock}:
        locked.set()
        free.wait()
def work():
    assert {lock}.acquire(timeout=5)
    {lock}.release()
    assert scope.findings == ()
    scope.stop()
with cml.sanitize() as scope:
    thread = threading.Thread(target=inside)
    thread.start()
    locked.wait()
    print(in_child(work))
    free.set()
    thread.join()
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@needs_fork
def test_a_forked_child_is_not_checked_and_nothing_of_the_checker_reaches_the_driver_there(python):
    done, _ = python(
        FORK,
        """
from clmemlife import _journal, _opencl
free, locked = threading.Event(), threading.Event()
def inside(lock):
    with lock:
        locked.set()
        free.wait()
def work():
    _opencl.set_destructor_callback = None
    handle.release()
    assert not _journal.listeners
    queue.flush()
with cml.check_hazards() as checker:
    cml.enqueue_fill(queue, handle, np.int32(1))
    thread = threading.Thread(target=inside, args=(checker._checker._lock,))
    thread.start()
    locked.wait()  # by a thread that is not in the child
    print(in_child(work))
    free.set()
    thread.join()
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@needs_fork
@pytest.mark.parametrize("step", ["_use", "_drop"])
def test_a_fork_in_the_middle_of_a_change_of_another_thread_leaves_no_trace_in_the_child(python, step):
    done, _ = python(
        FORK,
        f"""
from clmemlife import _ledger
entered, free = threading.Event(), threading.Event()
def wait_inside(*arguments, real=_ledger.{step}):
    if threading.current_thread() is not threading.main_thread():
        entered.set(); free.wait()
    real(*arguments)
_ledger.{step} = wait_inside
def work():
    now = cml.statistics()
    assert (cml.live(), now.current_count, now.current_bytes) == ((), 0, 0), (cml.live(), now)
    assert handle.released
def change():
    with MemHandle.create_buffer(context, 64): pass
thread = threading.Thread(target=change)
thread.start()
entered.wait()
print(in_child(work))
free.set()
thread.join()
print(usable(), cml.statistics().current_count)
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\nTrue 1\n", "")


@pytest.mark.needs_gil("a dictionary that a thread changes during the fork stays locked in the child")
@needs_fork
def test_a_fork_while_other_threads_use_the_library_leaves_the_child_able_to_go_on(python):
    done, _ = python(
        FORK,
        """
stop = threading.Event()
def churn():
    while not stop.is_set():
        with MemHandle.create_buffer(context, 4096) as mine:
            cml.enqueue_fill(queue2, mine, np.int32(0)).wait()
threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads: thread.start()
def work():
    assert cml.live() == ()
    assert cml.statistics().current_count == 0
    handle.release()
codes = {in_child(work) for _ in range(10)}
stop.set()
for thread in threads: thread.join()
print(codes, usable())
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{0} True\n", "")


MULTIPROCESSING = """
import multiprocessing, os, sys, time
sys.path[:0] = {path!r}

def work(handle_of_parent, channel):
    import numpy as np
    import clmemlife as cml
    if handle_of_parent is not None:
        try:
            handle_of_parent.size
        except cml.ForkedProcessError:
            channel.put("refused")
    else:
        import pyopencl as cl
        context = cl.Context(cl.get_platforms()[0].get_devices())
        queue = cl.CommandQueue(context, context.devices[0])
        with cml.MemHandle.create_buffer(context, 64) as handle:
            cml.enqueue_fill(queue, handle, np.int32(7))
            result = np.empty(16, np.int32)
            cml.enqueue_copy(queue, result, handle)
        channel.put(int(result.sum()))

if __name__ == "__main__":
    import pyopencl as cl
    import clmemlife as cml
    context = cl.Context(cl.get_platforms()[0].get_devices())
    with cml.MemHandle.create_buffer(context, 64, label="field") as handle:
        method = {method!r}
        mp = multiprocessing.get_context(method)
        channel = mp.Queue()
        child = mp.Process(target=work, args=(handle if method == "fork" else None, channel))
        child.start()
        print(channel.get(timeout=60))
        child.join(60)
        print(child.exitcode)
        if method == "spawn":
            try:
                mp.Process(target=work, args=(handle, channel)).start()
            except TypeError as error:
                print("in the worker" in str(error))
"""


@pytest.mark.parametrize(
    ("method", "expected"),
    [pytest.param("fork", "refused\n0\n", marks=needs_fork), ("spawn", "112\n0\nTrue\n")],
)
def test_multiprocessing(tmp_path, method, expected):
    script = tmp_path / "script.py"
    script.write_text(MULTIPROCESSING.format(path=sys.path, method=method))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (0, expected)
    assert done.stderr == ""
