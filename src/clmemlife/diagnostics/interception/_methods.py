"""The hooks of PyOpenCL's objects: how they are made, asked, and given back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from . import _faults, _leases, _refused, _svm, _wrapped
from ._places import KEY, caller, outer_site
from ._wrapped import report_released, usable, watch, watch_block, watch_new, watch_part

Function = Callable[..., Any]
_STATUS = cl.event_info.COMMAND_EXECUTION_STATUS
_USE_HOST_PTR = cl.mem_flags.USE_HOST_PTR


def guarded(name: str) -> Callable[[Function], Function]:
    """Return a hook of something that asks the driver for an object, which may not be a released one."""

    def hook(original: Function) -> Function:
        @functools.wraps(original)
        def ask(self: Any, *arguments: Any, **keywords: Any) -> Any:
            tripwire = getattr(self, KEY, None)
            if tripwire is not None and tripwire.about.released is not None:
                report_released(tripwire.about, outer_site(sys._getframe(1)), name)
            return original(self, *arguments, **keywords)

        return ask

    return hook


def guarded_property(name: str, original: property) -> property:
    """Return a property that may not be asked of a released object."""
    assert original.fget is not None
    return property(guarded(name)(original.fget), original.fset, original.fdel, original.__doc__)


def shows_address(original: property) -> property:
    """Return ``int_ptr``, with a note that the program knows the address."""
    get = original.fget

    def int_ptr(self: Any) -> int:
        tripwire = getattr(self, KEY, None)
        if tripwire is not None and tripwire.about.released is None and caller(sys._getframe(1)) is not None:
            tripwire.about.shared.keep()
        value: int = get(self)  # type: ignore[misc]
        return value

    return property(int_ptr, original.fset, original.fdel, original.__doc__)


def initialises(original: Function) -> Function:
    """Return ``Buffer.__init__`` with a note of the line."""

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return original(self, *arguments, **keywords)  # type: ignore[no-any-return]
        given = dict(zip(("context", "flags", "size", "hostbuf"), arguments), **keywords)
        try:
            original(self, *arguments, **keywords)
        except cl.Error as error:
            context, flags = given.get("context"), given.get("flags")
            _refused.creation(error, context, flags, given.get("size"), given.get("hostbuf"), site)
            raise
        size, flags, hostbuf = given.get("size") or 0, int(given["flags"]), given.get("hostbuf")
        wrapper = watch_new(self, site, int(size) if hostbuf is None else self.size, flags)
        wrapper.context = given["context"].int_ptr
        if hostbuf is not None:
            on_host(wrapper, hostbuf, site)
        return None

    return __init__


def initialises_image(original: Function) -> Function:
    """Return ``Image._custom_init``, which all ways to make an image lead to."""

    @functools.wraps(original)
    def _custom_init(h: Any, *arguments: Any, **keywords: Any) -> None:
        original(h, *arguments, **keywords)
        site = caller(sys._getframe(1))
        if site is not None and _faults.active:
            hostbuf = keywords.get("hostbuf", arguments[-1] if arguments else None)
            wrapper = watch(h, site)
            if hostbuf is not None and not isinstance(hostbuf, cl.ImageDescriptor):
                on_host(wrapper, hostbuf, site)

    return _custom_init


def on_host(wrapper: _wrapped.Wrapper, hostbuf: Any, site: str) -> None:
    """Take note of the host memory of a new object."""
    if wrapper.flags & _USE_HOST_PTR:
        wrapper.shared.keep()
        _leases.remember_host(wrapper, hostbuf)
        _check_alignment(wrapper, hostbuf, site)


def _check_alignment(wrapper: _wrapped.Wrapper, hostbuf: Any, site: str) -> None:
    interface = getattr(hostbuf, "__array_interface__", None)
    if not interface:
        return
    address, itemsize = interface["data"][0], getattr(hostbuf, "itemsize", 1)
    step = max(4, itemsize & -itemsize)
    if address % step:
        _faults.report(
            "misaligned_host_memory",
            f"the host memory of a USE_HOST_PTR buffer is at address {address:#x}, which is no multiple of {step}: the "
            "driver copies it behind the program's back, or kernels and maps read elements across their bounds",
            site, thing=str(wrapper),
            remedy="Allocate the array aligned to device.mem_base_addr_align // 8 bytes, or use COPY_HOST_PTR.",
        )  # fmt: skip


def makes_part(original: Function) -> Function:
    """Return ``get_sub_region`` or ``__getitem__`` of a buffer."""
    name = original.__name__

    @functools.wraps(original)
    def part(self: Any, *arguments: Any, **keywords: Any) -> Any:
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return original(self, *arguments, **keywords)
        whole = usable(self, site, name)
        try:
            result = original(self, *arguments, **keywords)
        except cl.Error as error:
            _explain_part(error, whole, self, arguments, keywords, site)
            raise
        origin = keywords.get("origin", arguments[0] if arguments else 0)
        if isinstance(origin, slice):
            origin = origin.indices(whole.size)[0]
        watch_part(result, site, whole, int(origin), result.size)
        return result

    return part


def _explain_part(
    error: cl.Error, whole: _wrapped.Wrapper, mem: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], site: str
) -> None:
    given = dict(zip(("origin", "size"), arguments), **keywords)
    if isinstance(given.get("origin"), slice):
        if _refused.by_own_flags(whole):
            _faults.unknown("a slice of a buffer that PyOpenCL cannot cut, since it passes flags on")
            return
        start, stop, _ = given["origin"].indices(whole.size)
        if stop <= start:  # which PyOpenCL says itself
            return
        given = {"origin": start, "size": stop - start}
    if isinstance(given.get("origin"), int) and isinstance(given.get("size"), int):
        _refused.part(error, whole, mem.context, given["origin"], given["size"], site)


def makes_block(original: Function) -> Function:
    """Return what hands out memory: an allocator or a pool."""

    @functools.wraps(original)
    def allocate(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return result
        if isinstance(result, cl.MemoryObjectHolder):
            (watch if isinstance(result, cl.MemoryObject) else watch_block)(result, site)
        elif isinstance(result, cl.SVMPointer):
            _svm.allocated(result, site)
        return result

    return allocate


def releases(original: Function) -> Function:
    """Return ``release`` of a memory object."""

    @functools.wraps(original)
    def release(self: Any) -> Any:
        site = caller(sys._getframe(1))
        if site is None or not _faults.active:
            return original(self)
        known = getattr(self, KEY, None)
        if known is not None and known.about.released is not None:
            wrapper = known.about
            _faults.report(
                "double_release", f"a {wrapper.kind} is released that was released at {wrapper.released} already",
                site, wrapper.released, thing=str(wrapper), remedy="Call release() once, or leave it to del.",
            )  # fmt: skip
            return original(self)
        about = watch(self)
        _wrapped.end(about, site, "release()")
        return original(self)

    return release
