"""What OpenCL there is on this machine, and what to do where there is none. Loads PyOpenCL only when asked."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

_VARIABLES = (
    "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH", "OPENCL_LAYERS", "POCL_DEVICES", "PYOPENCL_CTX",
)  # fmt: skip
_SHORT = {"portable computing language": "pocl", "nvidia cuda": "nvidia", "amd accelerated parallel processing": "amd"}


class Device(NamedTuple):
    """One device: a name that is the same on every machine of a kind, and PyOpenCL's object."""

    id: str
    device: Any


class Found(NamedTuple):
    """All devices, or why there is none."""

    devices: tuple[Device, ...]
    problem: str


def find() -> Found:
    """Return all devices of all platforms; never raises."""
    try:
        import pyopencl as cl
    except Exception as error:
        return Found((), f"PyOpenCL cannot be imported ({type(error).__name__}: {error})")
    try:
        platforms = cl.get_platforms()
    except Exception as error:
        return Found((), f"no OpenCL platform was found ({error})")
    found: list[Device] = []
    numbers: dict[str, int] = {}
    for platform in platforms:
        try:
            devices = platform.get_devices()
        except cl.Error:  # a platform without a device says so by an error
            continue
        for device in devices:
            stem = f"{_slug(platform.name)}-{_type_name(device)}"
            number = numbers[stem] = numbers.get(stem, -1) + 1
            found.append(Device(f"{stem}{number}", device))
    return Found(tuple(found), "" if found else f"{len(platforms)} OpenCL platform(s) were found, none has a device")


def choose(found: Found, texts: list[str]) -> Found:
    """Return the devices whose id, name or platform contains one of `texts`; without texts, the first device."""
    if not found.devices or not texts:
        return Found(found.devices[:1], found.problem)
    if "all" in texts:
        return found
    wanted = [text.casefold() for text in texts]
    chosen = tuple(one for one in found.devices if any(text in _searchable(one) for text in wanted))
    names = ", ".join(f"{one.id} ({one.device.name.strip()})" for one in found.devices)
    return Found(chosen, "" if chosen else f"no device matches {' or '.join(map(repr, texts))}; there are {names}")


def searched() -> list[str]:
    """Return in words where the loader looks for drivers: variables, folders, and what is in them."""
    lines = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    variable = _only_place()
    folders = [Path(os.environ[variable] if variable else "/etc/OpenCL/vendors")]
    package = sys.modules.get("pyopencl")
    if package is not None and package.__file__ and not variable:
        folders.append(Path(package.__file__).parent / ".libs")
    for folder in folders:
        try:
            names = sorted(one.name for one in ([folder] if folder.is_file() else folder.iterdir()))
        except OSError:
            lines.append(f"{folder} (not there)")
            continue
        icds = [name for name in names if name.endswith(".icd")]
        lines.append(f"{folder} ({', '.join(icds) if icds else 'no .icd file'})")
    return lines


def advice() -> str:
    """Return how to come by a driver that runs on any processor."""
    install = "install PoCL: conda install -c conda-forge pocl"
    if sys.platform == "linux":
        install = "install PoCL: python -m pip install pocl-binary-distribution (or: apt install pocl-opencl-icd)"
    variable = _only_place()
    if variable:
        return f"{variable} is set, and drivers are looked for there only: correct it, or unset it and {install}"
    return install


def _only_place() -> str:
    """Return the name of the variable that keeps the loader from looking anywhere else, if one is set."""
    return next((name for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH") if os.environ.get(name)), "")


def explain(problem: str) -> str:
    """Return `problem` with what was searched and what to do."""
    if problem.startswith("no device matches"):
        return problem
    return f"{problem}; searched: {'; '.join(searched())}; {advice()}"


def loader() -> str:
    """Return the path of the OpenCL loader in this process, where the system tells."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return "unknown"
    paths = re.findall(r"(/\S*libOpenCL[^\s]*)$", text, re.MULTILINE)
    return paths[0] if paths else "unknown"


def describe(one: Device) -> str:
    """Return one line on a device: id, name, platform, driver."""
    device = one.device
    return f"{one.id} = {device.name.strip()} ({device.platform.name.strip()}, driver {device.driver_version.strip()})"


def _slug(text: str) -> str:
    text = text.strip().casefold()
    return _SHORT.get(text) or re.sub(r"[^a-z0-9]+", "-", text.replace("(r)", "")).strip("-") or "opencl"


def _type_name(device: Any) -> str:
    import pyopencl as cl

    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu", cl.device_type.ACCELERATOR: "accelerator"}
    return next((name for kind, name in kinds.items() if device.type & kind), "device")


def _searchable(one: Device) -> str:
    return " ".join((one.id, one.device.name, one.device.platform.name)).casefold()
