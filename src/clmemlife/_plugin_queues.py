"""Contexts and queues for the fixtures of the pytest plugin. No pytest here."""

from __future__ import annotations

import time
from typing import Any

import pyopencl as cl

from . import _opencl

FINISH_SECONDS = 10.0

_OUT_OF_ORDER = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
_PROFILING = cl.command_queue_properties.PROFILING_ENABLE


def make_queue(context: cl.Context, device: cl.Device, *, out_of_order: bool = False) -> cl.CommandQueue | None:
    """Return a queue with profiling where the device has that; nothing where it cannot be out of order as asked."""
    if out_of_order and not device.queue_properties & _OUT_OF_ORDER:
        return None
    properties = device.queue_properties & _PROFILING | (_OUT_OF_ORDER if out_of_order else 0)
    return cl.CommandQueue(context, device, properties)


def pair_of(device: cl.Device) -> list[cl.Device]:
    """Return two devices for one context: another of the platform, halves of the device, or the device twice."""
    others = [one for one in device.platform.get_devices() if one != device]
    if others:
        return [device, others[0]]
    units = device.max_compute_units
    if units >= 2:
        try:
            halves = device.create_sub_devices([cl.device_partition_property.EQUALLY, units // 2])
        except cl.Error:  # many devices cannot be divided
            halves = []
        if len(halves) >= 2:
            return list(halves[:2])
    return [device, device]


def finish(*queues: Any) -> str:
    """Wait until all commands of `queues` are complete; return what is wrong if one hangs on an unset user event."""
    deadline = time.monotonic() + FINISH_SECONDS
    markers = [_opencl.enqueue_marker(queue) for queue in queues]
    for queue in queues:
        queue.flush()
    for marker in markers:
        pause = 0.0
        while marker.command_execution_status > 0:
            if time.monotonic() > deadline:
                return (
                    f"a queue still has commands that are not complete after {FINISH_SECONDS} s; they may wait for a "
                    "user event that nobody sets"
                )
            time.sleep(pause)
            pause = min(pause + 0.0002, 0.005)
    return ""
