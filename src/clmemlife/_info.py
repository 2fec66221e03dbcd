"""What ``python -m clmemlife info`` says: versions, loader, devices, and what each can do of what is used here."""

from __future__ import annotations

import platform
import sys
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

from . import __version__, _discovery

_PROBE_SECONDS = 2.0
_KERNEL = "__kernel void probe(__global const int *x, __global int *y) { *y = *x; }"


def gather() -> dict[str, Any]:
    """Return all facts as plain values."""
    found = _discovery.find()
    devices = [_device(one) for one in found.devices]
    return {
        "versions": {
            "clmemlife": __version__, "python": platform.python_version(), "platform": platform.platform(),
            **{name: _version(name) for name in ("pyopencl", "numpy", "pytest")},
        },
        "loader": _discovery.loader() if "pyopencl" in sys.modules else None,
        "searched": _discovery.searched(),
        "devices": devices,
        "problem": found.problem or None,
        "advice": None if devices else _discovery.advice(),
    }  # fmt: skip


def text(facts: dict[str, Any]) -> str:
    """Return the facts as text."""
    versions = ", ".join(f"{name} {version or 'not installed'}" for name, version in facts["versions"].items())
    lines = [versions, f"loader: {facts['loader'] or 'none'}", "drivers searched in:"]
    lines += [f"  {one}" for one in facts["searched"]]
    for device in facts["devices"]:
        lines.append(f"{device['id']}: {device['name']}, {device['platform']}, {device['version']}, {device['driver']}")
        lines += [f"  {name.replace('_', ' ')}: {_words(value)}" for name, value in device["supports"].items()]
    if not facts["devices"]:
        lines += [facts["problem"], facts["advice"]]
    return "\n".join(lines)


def _device(one: _discovery.Device) -> dict[str, Any]:
    import pyopencl as cl

    device = one.device
    context = cl.Context([device])
    loose = bool(device.queue_properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    return {
        "id": one.id,
        "name": device.name.strip(),
        "platform": device.platform.name.strip(),
        "version": device.version.strip(),
        "driver": device.driver_version.strip(),
        "supports": {
            "images": bool(device.image_support),
            "out_of_order_queues": loose,
            "sub_buffer_alignment_bytes": device.mem_base_addr_align // 8,
            "largest_buffer_bytes": device.max_mem_alloc_size,
            "host_unified_memory": _ask(lambda: bool(device.host_unified_memory)),
            "destructor_callbacks": _ask(lambda: _calls_back(context)),
            "kernel_argument_info": _ask(lambda: _knows_arguments(context)),
        },
    }


def _ask(question: Callable[[], bool]) -> bool | None:
    """Return the answer, or nothing where the driver refuses to give one."""
    try:
        return question()
    except Exception:
        return None


def _calls_back(context: Any) -> bool:
    """Try it: destroy a buffer and look whether the driver says so."""
    import pyopencl as cl

    from . import _callbacks, _lifecycle  # noqa: F401 - the second ends what the first begins

    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    watch = _callbacks.watch(buffer.int_ptr, _callbacks.ObjectInfo("probe", 64, ""))
    buffer.release()
    deadline = time.monotonic() + _PROBE_SECONDS
    while not watch.dead and time.monotonic() < deadline:
        _callbacks.poll()
        time.sleep(0.001)
    return watch.dead


def _knows_arguments(context: Any) -> bool:
    """Try it: ask a kernel for the qualifiers of its first argument."""
    import pyopencl as cl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some compilers always say something
        kernel = cl.Program(context, _KERNEL).build(options=["-cl-kernel-arg-info"]).probe
    return bool(kernel.get_arg_info(0, cl.kernel_arg_info.TYPE_QUALIFIER) & cl.kernel_arg_type_qualifier.CONST)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _words(value: Any) -> str:
    return str(value) if _is_number(value) else {True: "yes", False: "no"}.get(value, "unknown")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
