"""What the devices of a context allow."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pyopencl as cl


class ContextLimits:
    """What the devices of one context allow, asked once for each context.

    Attributes
    ----------
    alignments : dict of int to int
        Base address alignment in bytes (``CL_DEVICE_MEM_BASE_ADDR_ALIGN``), by the ``int_ptr`` of the device.
    max_mem_alloc_size : int
        Largest allocation in bytes that any device of the context takes.
    largest_device : str
        Name of the device with that limit.
    early_migrations : bool
        The event of a migration may be complete before its wait-list is (NVIDIA's driver 580, where nothing is to be
        moved), and what waits for it then comes too early.
    """

    __slots__ = ("alignments", "early_migrations", "largest_device", "max_mem_alloc_size")

    def __init__(self, context: cl.Context) -> None:
        devices = context.devices
        self.alignments = {device.int_ptr: device.mem_base_addr_align // 8 for device in devices}
        largest = max(devices, key=lambda device: device.max_mem_alloc_size)
        self.max_mem_alloc_size = largest.max_mem_alloc_size
        self.largest_device = largest.name.strip()
        self.early_migrations = "NVIDIA" in devices[0].platform.name


_limits: WeakKeyDictionary[cl.Context, ContextLimits] = WeakKeyDictionary()


def context_limits(context: cl.Context) -> ContextLimits:
    """Return the limits of `context`; raise ``TypeError`` for what is none."""
    limits: ContextLimits | None = getattr(context, "_clmemlife_limits", None)
    if limits is None and not isinstance(context, cl.Context):
        raise TypeError(f"context must be a pyopencl.Context, not {type(context).__name__}")
    if limits is None:  # another Python object for the same context may have them
        limits = _limits.get(context)
        if limits is None:
            limits = _limits[context] = ContextLimits(context)
        context._clmemlife_limits = limits
    return limits
