"""The command line: ``python -m clmemlife info``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyopencl as cl
import pytest

import clmemlife
from clmemlife import _discovery, _info
from clmemlife.__main__ import main


def no_platforms():
    raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")


def test_info_lists_versions_loader_and_what_each_device_supports(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"clmemlife {clmemlife.__version__}" in text
    assert "loader: " in text
    for what in (
        "images", "out of order queues", "sub buffer alignment bytes", "host unified memory", "destructor callbacks",
        "kernel argument info",
    ):  # fmt: skip
        assert f"  {what}: " in text


def test_what_a_driver_refuses_is_not_known_and_an_interrupt_ends_it():
    def ask(error):
        raise error

    assert _info._ask(lambda: ask(cl.RuntimeError("refused"))) is None
    with pytest.raises(KeyboardInterrupt):
        _info._ask(lambda: ask(KeyboardInterrupt()))


def test_info_as_json_says_what_the_devices_say(capsys, devices):
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["clmemlife"] == clmemlife.__version__
    assert facts["advice"] is None
    assert len(facts["devices"]) == sum(len(platform.get_devices()) for platform in cl.get_platforms())
    first, device = facts["devices"][0], cl.get_platforms()[0].get_devices()[0]
    assert (first["name"], first["driver"]) == (device.name.strip(), device.driver_version.strip())
    assert first["supports"]["sub_buffer_alignment_bytes"] == device.mem_base_addr_align // 8
    assert first["supports"]["images"] == bool(device.image_support)
    assert first["supports"]["destructor_callbacks"] is True


def test_info_without_a_platform_advises_and_exits_with_1(capsys, monkeypatch):
    monkeypatch.setattr(cl, "get_platforms", no_platforms)
    assert main(["info"]) == 1
    text = capsys.readouterr().out
    assert "no OpenCL platform was found" in text
    assert "drivers searched in:" in text
    assert _discovery.advice() in text
    assert main(["info", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["devices"] == []


def test_info_without_pyopencl_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    assert main(["info"]) == 1
    assert "PyOpenCL cannot be imported" in capsys.readouterr().out


def test_what_a_driver_refuses_to_say_is_unknown():
    assert _info._ask(lambda: 1 // 0 == 0) is None
    assert (_info._words(None), _info._words(True), _info._words(False), _info._words(1)) == (
        "unknown", "yes", "no", "1",
    )  # fmt: skip


def test_a_platform_without_a_device_is_no_error(monkeypatch):
    class Empty:
        name = "Empty"

        def get_devices(self):
            raise cl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")

    monkeypatch.setattr(cl, "get_platforms", lambda: [Empty()])
    assert _discovery.find() == ((), "1 OpenCL platform(s) were found, none has a device")


def test_what_is_searched_names_variables_folders_and_drivers(monkeypatch, tmp_path):
    (tmp_path / "some.icd").write_text("libsome.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    lines = _discovery.searched()
    assert f"OCL_ICD_VENDORS={tmp_path}" in lines
    assert f"{tmp_path} (some.icd)" in lines


def test_a_variable_that_hides_all_other_drivers_is_named_in_the_advice(monkeypatch):
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    monkeypatch.delenv("OPENCL_VENDOR_PATH", raising=False)
    assert _discovery.advice().startswith("install PoCL: ")
    assert any("pyopencl" in line for line in _discovery.searched())
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    assert _discovery.advice().startswith("OCL_ICD_VENDORS is set, and drivers are looked for there only: ")
    assert "install PoCL: " in _discovery.advice()
    assert _discovery.searched()[-1] == "/nowhere (not there)"


@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["hook"]])
def test_a_reader_that_leaves_early_sees_no_traceback(words):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "clmemlife", *words],
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "clmemlife", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"clmemlife {clmemlife.__version__}\n")


def test_a_missing_command_is_an_error_of_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err
