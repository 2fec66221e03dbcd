"""``python -m clmemlife run``: programs that never heard of this library, each in a process of its own."""

from __future__ import annotations

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest

from clmemlife import _run, _settings, _watch
from clmemlife.__main__ import main

WORLD = """
import json, os, sys, threading
print(json.dumps({
    "names": {name: repr(value) for name, value in sorted(globals().items()) if type(value) is not type(sys)},
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "flags": str(sys.flags),
    "hook": str(sys.excepthook),
    "options": [sys.warnoptions, sys._xoptions], "input": sys.stdin.read(), "threads": threading.active_count(),
    "tty": [os.isatty(number) for number in range(3)], "cwd": os.getcwd(), "modules": "pyopencl" in sys.modules,
}, default=str).replace(" at 0x" + "%x" % id(__loader__), ""))
import pickle
class Own: pass
assert type(pickle.loads(pickle.dumps(Own()))) is Own
assert sys.modules["__main__"].Own is Own
"""

TWO_QUEUES = """
import sys
import numpy as np
import pyopencl as cl
devices = cl.get_platforms()[0].get_devices()
context = cl.Context(devices)
first, second = cl.CommandQueue(context, devices[0]), cl.CommandQueue(context, devices[-1])
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
cl.enqueue_fill_buffer(first, buffer, np.int32(1), 0, 4096)
event = cl.enqueue_fill_buffer(second, buffer, np.int32(2), 0, 4096)  # unordered
event.wait()
first.finish()
buffer.release()
"""

ORDERED = (
    TWO_QUEUES.replace("cl.enqueue_fill_buffer(first, buffer", "event = cl.enqueue_fill_buffer(first, buffer")
    .replace("event = cl.enqueue_fill_buffer(second", "first.flush()\nevent = cl.enqueue_fill_buffer(second")
    .replace("0, 4096)  # unordered", "0, 4096, wait_for=[event])")
)

UNUSED = "clmemlife: the program did not import PyOpenCL, so there was nothing to watch\n"


def python(folder: Path, *words: str, timeout: float = 120, text: str = "", **environment: str):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=timeout, check=False, cwd=folder, input=text,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Run a program under watch: ``run(code, *options, arguments=...)``."""

    def run_it(code: str, *options: str, arguments: tuple[str, ...] = (), **more):
        (tmp_path / "program.py").write_text(textwrap.dedent(code))
        return python(tmp_path, "-m", "clmemlife", "run", *options, "program.py", *arguments, **more)

    return run_it


def line_of(code: str, what: str) -> int:
    return next(number for number, line in enumerate(code.splitlines(), 1) if what in line)


# -- as python does ----------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path):
    """The same program as a file, a package, a module, a folder, an archive, code, and on standard input."""
    (tmp_path / "program.py").write_text(WORLD)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(WORLD)
    (package / "part.py").write_text(WORLD)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", WORLD)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["program.py", "--json", "-x", "a b", "--", "-m"], ["-m", "package", "--strict"], ["-m", "package.part", "-c"],
        ["package"], ["archive.zip", "1"], ["-c", WORLD, "--json", "x"], ["-", "1"],
    ],
    ids=["file", "package", "module", "folder", "archive", "code", "input"],
)  # fmt: skip
@pytest.mark.parametrize("strict", [[], ["--strict"]], ids=["", "strict"])
@pytest.mark.parametrize("options", [[], ["-X", "dev", "-W", "error", "-uO"]], ids=["", "options"])
def test_a_program_finds_the_world_as_python_makes_it(programs, words, strict, options):
    text = WORLD if words[0] == "-" else "some input\n"
    plain = python(programs, *options, *words, text=text)
    under_watch = python(programs, *options, "-m", "clmemlife", "run", *strict, *words, text=text)
    assert (plain.returncode, plain.stderr) == (0, ""), plain.stderr
    assert (under_watch.returncode, under_watch.stderr) == (0, UNUSED), under_watch.stderr
    assert json.loads(under_watch.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize("strict", [[], ["--strict"]], ids=["", "strict"])
@pytest.mark.parametrize(
    "end",
    [
        "sys.exit()", "sys.exit(5)", "sys.exit('text')", "raise ValueError('no')", "raise KeyboardInterrupt",
        "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 2)", "os.kill(os.getpid(), 9)", "os._exit(7)",
        "threading.Thread(target=sys.exit, args=(4,)).start()", "atexit.register(print, 'at exit')", "1 +",
    ],
)  # fmt: skip
def test_a_program_ends_as_it_ends_without_us(run, tmp_path, end, strict):
    code = f"import atexit, os, sys, threading\nprint('before', flush=True)\n{end}\n"
    under_watch = run(code, *strict)
    plain = python(tmp_path, "program.py")
    assert under_watch.returncode == plain.returncode
    assert under_watch.stdout == plain.stdout
    assert under_watch.stderr.replace(UNUSED, "") == plain.stderr


def test_a_program_that_is_not_there_is_said_by_python(tmp_path):
    done = python(tmp_path, "-m", "clmemlife", "run", "nowhere.py")
    assert done.returncode == 2
    assert "can't open file" in done.stderr


@pytest.mark.parametrize("strict", [[], ["--strict"]], ids=["", "strict"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_program(tmp_path, strict, number):
    (tmp_path / "program.py").write_text(
        "import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n"
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "clmemlife", "run", *strict, "program.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -number
    assert errors.count("KeyboardInterrupt") == (number == signal.SIGINT), errors


@pytest.mark.parametrize(
    "words", [[], ["-m"], ["-c"], ["--strict"], ["--chaos", "x", "a.py"], ["--json"], ["--nothing"]]
)
def test_what_cannot_be_run_is_an_error_of_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["run", *words])
    assert caught.value.code == 2
    assert "usage: python -m clmemlife run [options]" in capsys.readouterr().err


def test_chaos_and_serialize_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--chaos", "1", "--serialize", "a.py"])
    assert "not allowed with" in capsys.readouterr().err


def test_module_may_be_written_out():
    assert _run.parse(["--strict", "--module", "a", "-m"])[1] == ["-m", "a", "-m"]


def test_a_file_that_cannot_be_written_and_an_interpreter_without_hooks_are_refused_first(tmp_path):
    done = python(tmp_path, "-m", "clmemlife", "run", "--json", "no/where", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no/where: No such file or directory" in done.stderr
    done = python(
        tmp_path, "-E", "-c", f"import sys; sys.path[:0] = {sys.path!r}\nfrom clmemlife.__main__ import main\n"
        "sys.exit(main(['run', '-c', 'print(1)']))",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "-E, -I and -S turn off" in done.stderr


# -- the start-up hook -------------------------------------------------------------------------------------------------


def test_a_program_without_opencl_loads_nothing_more_than_before(run, tmp_path):
    code = "import json, sys\nprint(json.dumps(sorted(sys.modules)))\n"
    under_watch = set(json.loads(run(code).stdout))
    assert under_watch - set(json.loads(python(tmp_path, "program.py").stdout)) <= {"sitecustomize", "atexit"}


def test_the_users_own_sitecustomize_is_imported_instead(run, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own', __file__)\n")
    path = os.pathsep.join([str(tmp_path / "own"), *sys.path])
    done = run("import sys, sitecustomize\nprint(sitecustomize.__file__ in sys.argv[1])", PYTHONPATH=path,
               arguments=(str(tmp_path / "own" / "sitecustomize.py"),))  # fmt: skip
    own = f"own {tmp_path / 'own' / 'sitecustomize.py'}\n"
    assert (
        done.stdout == own + own + "True\n"
    )  # in the interpreter of the command line, as without us, and in the program


def test_a_fault_in_the_users_own_sitecustomize_is_shown_as_ever(run, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import not_there_at_all\n")
    path = os.pathsep.join([str(tmp_path / "own"), *sys.path])
    done = run("print('ran')", PYTHONPATH=path)
    assert done.stdout == "ran\n"
    assert "not_there_at_all" in done.stderr


def test_pyopencl_is_what_it_is_and_may_be_looked_for_first(run):
    done = run("""
    import importlib.util, sys
    assert importlib.util.find_spec("pyopencl") is not None and "pyopencl" not in sys.modules
    import pyopencl.array
    import pyopencl as cl
    loader = type(cl.__loader__).__module__ + "." + type(cl.__loader__).__qualname__
    print(loader, cl.__spec__.loader is cl.__loader__)
    print([finder for finder in sys.meta_path if "sitecustomize" in type(finder).__module__])
    print("clmemlife" in sys.modules)
    """)
    assert done.stdout == "_frozen_importlib_external.SourceFileLoader True\n[]\nTrue\n", done.stderr


def test_a_program_whose_path_does_not_lead_to_us_is_watched_too(run, tmp_path):
    here = os.path.dirname(os.path.dirname(os.path.abspath(_run.__file__)))
    elsewhere = tmp_path / "elsewhere"  # what else may lie where we do
    elsewhere.mkdir()
    for name in os.listdir(here):
        if not name.startswith(("clmemlife", "__pycache__")):
            (elsewhere / name).symlink_to(os.path.join(here, name))
    code = f"""
import sys, os
sys.path[:] = [{str(elsewhere)!r} if os.path.isdir(os.path.join(one, "clmemlife")) else one for one in sys.path]
"""
    done = run(code + TWO_QUEUES, PYTHONPATH=os.pathsep.join([here, *sys.path]))
    assert "1 finding" in done.stderr, done.stderr


def test_a_watch_that_cannot_begin_says_so_and_lets_the_program_run(run):
    done = run("import os\nos.environ['CLMEMLIFE_CHAOS'] = 'x'\nimport pyopencl\nprint('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr == "clmemlife: this process is not watched (ValueError: 'x' is not SEED or SEED:MILLISECONDS)\n"


def test_the_hook_can_be_used_by_hand(tmp_path):
    (tmp_path / "program.py").write_text(TWO_QUEUES)
    hook = python(tmp_path, "-m", "clmemlife", "hook").stdout.strip()
    path = os.pathsep.join([hook, *sys.path])
    assert "1 finding" in python(tmp_path, "program.py", PYTHONPATH=path, CLMEMLIFE_SANITIZE="1").stderr
    for value in ("", "0"):
        assert python(tmp_path, "program.py", PYTHONPATH=path, CLMEMLIFE_SANITIZE=value).stderr == ""


@pytest.mark.parametrize(
    "wanted",
    [
        _settings.Settings(), _settings.Settings(hazards=False), _settings.Settings(leaks=False, chaos="3:1.5"),
        _settings.Settings(hazards=False, leaks=False, serialize=True, json="a", trace="b"),
    ],
)  # fmt: skip
def test_settings_travel_by_the_environment(wanted):
    assert _settings.settings(wanted.variables()) == wanted


def test_sanitize_set_to_one_means_everything():
    assert _settings.settings({"CLMEMLIFE_SANITIZE": "1"}) == _settings.Settings()


def test_a_word_of_sanitize_that_means_nothing_is_told(tmp_path):
    (tmp_path / "program.py").write_text(TWO_QUEUES)
    path = os.pathsep.join([_run.STARTUP, *sys.path])
    told = python(tmp_path, "program.py", PYTHONPATH=path, CLMEMLIFE_SANITIZE="hazards, laeks").stderr
    assert "CLMEMLIFE_SANITIZE asks for 'laeks', which means nothing; known are 1, hazards, leaks, none" in told
    assert "1 finding, 0 leaks" in told
    assert [_settings.unknown_words({"CLMEMLIFE_SANITIZE": one}) for one in ("", "1", "none", "leaks,hazards")] == [
        []
    ] * 4


# -- what is found -----------------------------------------------------------------------------------------------------


def test_a_missing_event_is_reported_with_both_lines(run):
    done = run(TWO_QUEUES)
    assert done.returncode == 0
    assert "1 finding" in done.stderr, done.stderr
    first, second = line_of(TWO_QUEUES, "(first, buffer"), line_of(TWO_QUEUES, "# unordered")
    for number in (first, second):
        assert f"program.py:{number}" in done.stderr
    assert "program.py:" not in run(TWO_QUEUES, "--no-hazards", "--no-leaks").stderr


HANGS = """
import numpy as np
import pyopencl as cl
device = cl.get_platforms()[0].get_devices()[0]
context = cl.Context([device])
queue, gate = cl.CommandQueue(context), cl.UserEvent(context)
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
event = cl.enqueue_fill_buffer(queue, buffer, np.int32(1), 0, 4096, wait_for=[gate])
event.wait()  # for ever
"""


def test_a_wait_without_an_end_is_told_before_it_begins(tmp_path):
    (tmp_path / "program.py").write_text(HANGS)
    process = subprocess.Popen(
        [sys.executable, "-m", "clmemlife", "run", "program.py"],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        lines = [process.stderr.readline() for _ in range(2)]
    finally:
        process.kill()
        process.communicate()
        watchdog.cancel()
    assert lines[0] == "clmemlife: wait cycle through a user event\n"
    assert f"program.py:{line_of(HANGS, '# for ever')}) waits for the end of" in lines[1]


def test_findings_are_reported_after_the_traceback_of_a_program_that_dies(run):
    for death in ("raise ValueError('dead')", "import os; os.kill(os.getpid(), 2)"):
        done = run(TWO_QUEUES + death)
        assert done.returncode == (1 if "ValueError" in death else -2)
        traceback, _, report = done.stderr.partition(
            "ValueError: dead" if "ValueError" in death else "KeyboardInterrupt"
        )
        assert "Traceback" in traceback
        assert "clmemlife" not in traceback.replace("program.py", "")
        assert "1 finding" in report, done.stderr


def test_strict_makes_findings_an_exit_code_of_their_own(run):
    assert run(TWO_QUEUES, "--strict").returncode == _run.FOUND == 3
    assert run(ORDERED, "--strict").returncode == 0
    assert run(TWO_QUEUES + "sys.exit(5)", "--strict").returncode == 5
    assert run(TWO_QUEUES + "import os; os.kill(os.getpid(), 15)", "--strict").returncode == -15


OWN = """
import numpy as np
import pyopencl as cl
import clmemlife as cml
context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
cache = []
class Node:
    def __init__(self):
        self.me, self.handle = self, cml.MemHandle.create_buffer(context, 1 << 21, label="cycle")
def work():
    cache.append(cml.MemHandle.create_buffer(context, 4096, label="cached"))
    Node()
    with cml.MemHandle.create_buffer(context, 64, label="ended"):
        pass
work()
"""


def test_handles_and_maps_of_this_library_that_were_not_ended_are_leaks(run):
    report = run(OWN).stderr
    assert f"program.py:{line_of(OWN, 'cache.append')}) by create_buffer: not released" in report, report
    assert "a list of 1, in global 'cache' of module __main__" in report
    assert "'cycle' (2097152 bytes, created at" in report
    assert "never ended; garbage collection had to do it" in report
    assert "0 findings, 2 leaks" in report
    assert "'ended'" not in report
    assert "leak" not in run(OWN, "--no-leaks").stderr.replace("0 leaks", "")


def test_json_has_a_line_for_the_process(run, tmp_path):
    (tmp_path / "found.json").write_text("old\n")
    assert run(TWO_QUEUES + "import os; os.chdir('/')", "--json", "found.json", arguments=("a",)).returncode == 0
    (line,) = map(json.loads, (tmp_path / "found.json").read_text().splitlines())
    assert line["arguments"] == ["program.py", "a"]
    assert {"pid", "parent", "findings", "leaks", "unknown", "statistics"} <= set(line)
    (finding,) = line["findings"]
    assert finding["site"].endswith(f"program.py:{line_of(TWO_QUEUES, '# unordered')}")
    assert finding["other_site"].endswith(f"program.py:{line_of(TWO_QUEUES, '(first, buffer')}")


def test_the_report_survives_a_program_that_takes_its_streams_away(run):
    done = run(TWO_QUEUES + "import io\nsys.stderr = sys.stdout = io.StringIO()\nsys.stdout.close()\n")
    assert "1 finding" in done.stderr
    assert run(TWO_QUEUES + "import os\nos.close(2)\n").returncode == 0


# -- child processes ---------------------------------------------------------------------------------------------------

CHILDREN = {
    "subprocess": """
import subprocess, sys
subprocess.run([sys.executable, "work.py"], check=True)
""",
    "spawn": """
import multiprocessing
import work
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work.work)
    process.start()
    process.join()
    assert process.exitcode == 0
""",
    "fork": """
import multiprocessing
def target():
    import work
    work.work()
process = multiprocessing.get_context("fork").Process(target=target)
process.start()
process.join()
assert process.exitcode == 0
""",
    "executor": """
import concurrent.futures, multiprocessing
import work
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(work.work).result()
""",
    "bare fork": """
import os
pid = os.fork()
if not pid:
    import work
    work.work()
else:
    assert os.waitpid(pid, 0)[1] == 0
""",
}


@pytest.mark.parametrize("way", CHILDREN)
def test_child_processes_are_watched_and_report_by_themselves(run, tmp_path, way):
    work = textwrap.indent(TWO_QUEUES, "    ")
    (tmp_path / "work.py").write_text(f"def work():{work}\nif __name__ == '__main__':\n    work()\n")
    done = run(CHILDREN[way], "--json", "found.json", "--strict")
    assert done.returncode == _run.FOUND, done.stderr
    (line,) = map(json.loads, (tmp_path / "found.json").read_text().splitlines())
    assert len(line["findings"]) == 1
    assert "work.py" in line["findings"][0]["site"]


def test_a_fork_does_not_tell_what_its_parent_found(run, tmp_path):
    done = run(TWO_QUEUES + """
import ctypes, os
for one in (context, first, second, event):  # the program's own, of which the child must not tell the driver anything
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
""", "--json", "found.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("1 finding") == 1
    assert len((tmp_path / "found.json").read_text().splitlines()) == 1


# -- with the other tools ----------------------------------------------------------------------------------------------


def test_a_trace_is_written_at_the_end_by_each_process(run, tmp_path):
    done = run(f"""
import os, subprocess, sys
{TWO_QUEUES}
if len(sys.argv) < 2:
    os.chdir("/")
    subprocess.run([sys.executable, __file__, "child"], check=True)
""", "--trace", "trace.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("1 finding") == 2, done.stderr
    traces = sorted(tmp_path.glob("trace*.json"))
    assert len(traces) == 2
    for trace in traces:
        names = [one.get("name", "") for one in json.loads(trace.read_text())["traceEvents"]]
        assert sum("fill" in name for name in names) >= 2, names


LATENT = """
import numpy as np
import pyopencl as cl
devices = cl.get_platforms()[0].get_devices()
context = cl.Context(devices)
first, second = cl.CommandQueue(context, devices[0]), cl.CommandQueue(context, devices[-1])
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
got = np.empty(1024, np.int32)
right = 0
for value in range(4):
    cl.enqueue_fill_buffer(first, buffer, np.int32(value), 0, 4096)
    cl.enqueue_copy(second, got, buffer)
    right += (got == value).all()
    first.finish()
print(right)
"""


def test_chaos_shows_a_missing_event_and_serializing_hides_it(run, free_devices):
    latent = LATENT if free_devices[0] != free_devices[1] else LATENT.replace("devices[-1]", "devices[0]")
    wrong = run(latent, "--chaos", "4:200", "--no-hazards", "--no-leaks")  # long, for a busy machine
    assert wrong.returncode == 0, wrong.stderr
    assert int(wrong.stdout) <= 1
    assert run(latent, "--serialize").stdout == "4\n"
    assert "write" in run(latent, "--chaos", "4:50").stderr


def test_the_page_shows_what_is_printed(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "check-an-unmodified-program.md").read_text()
    code = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    consoles = re.findall(r"^```console\n\$ python ([^\n]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    command, report = next(one for one in consoles if one[1])
    (tmp_path / "app.py").write_text(code)
    printed = python(tmp_path, *command.split()).stderr
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(report, printed, flags), printed


# -- small parts -------------------------------------------------------------------------------------------------------


def test_lines_of_several_processes_do_not_mix(tmp_path):
    path = str(tmp_path / "lines")
    code = f"from clmemlife import _watch\nfor n in range(50): _watch.append_line({path!r}, 'x' * 10000)"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    deadline = time.monotonic() + 60
    for process in processes:
        assert process.wait(max(0.1, deadline - time.monotonic())) == 0
    assert {len(line) for line in Path(path).read_text().splitlines()} == {10000}


def test_a_report_goes_nowhere_where_there_is_no_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "__stderr__", None)
    _watch.say("nobody hears it")


def test_the_options_of_the_interpreter_are_those_before_the_module(monkeypatch):
    for words, expected in {
        "-X dev -m clmemlife run -m x": ["-X", "dev"], "-um clmemlife run": ["-u"], "-mclmemlife run -c 1": [],
        "-W ignore -bmclmemlife": ["-W", "ignore", "-b"], "script.py": [],
    }.items():  # fmt: skip
        monkeypatch.setattr(sys, "orig_argv", ["python", *words.split()])
        assert _run.interpreter_options() == expected
