"""Which bytes a command of plain PyOpenCL uses, from the arguments of its call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from ... import _copy
from ..._access import Use
from ..._journal import Access
from . import _svm
from ._launch import kernel
from ._leases import owner_of
from ._wrapped import Wrapper, usable

_BUFFER = cl.mem_object_type.BUFFER
_UNDEFINED = cl.mem_migration_flags.CONTENT_UNDEFINED
Bound = dict[str, Any]


class Plan(NamedTuple):
    """What a command is, and what it uses."""

    kind: str
    name: str = ""
    accesses: tuple[Access, ...] = ()
    blocking: bool = False
    undefined: bool = False
    asked: tuple[int, int] = (0, 0)  # bytes of the object, as the call has them
    host: Any = None  # the host memory that it copies from or to
    wrappers: tuple[Any, ...] = ()  # the objects (`Wrapper` or `Area`), of kernels only those that it must note
    borrowed: tuple[Any, ...] = ()  # host memory that nothing of PyOpenCL keeps until the command is complete


def _linear(
    mem: Any, offset: Any, count: int | None, site: str, *, reads: bool, writes: bool, what: str
) -> tuple[Wrapper, Access]:
    wrapper = usable(mem, site, what)
    start = operator.index(offset)
    stop = wrapper.size if count is None else start + count
    return wrapper, wrapper.access(reads=reads, writes=writes, start=start, stop=stop)


def _nbytes(host: Any) -> int:
    nbytes = getattr(host, "nbytes", None)
    return memoryview(host).nbytes if nbytes is None else int(nbytes)


def _host_copy(to_device: bool, offset_name: str) -> Callable[[Bound, str], Plan]:
    def describe(bound: Bound, site: str) -> Plan:
        host = bound["hostbuf"]
        start, nbytes = operator.index(bound.get(offset_name, 0)), _nbytes(host)
        wrapper, access = _linear(
            bound["mem"], start, nbytes, site, reads=not to_device, writes=to_device, what="enqueue_copy"
        )
        blocking = bool(bound.get("is_blocking", True))
        asked = start, start + nbytes
        return Plan("enqueue_copy", "", (access,), blocking, asked=asked, host=host, wrappers=(wrapper,))

    return describe


def _copy_buffer(bound: Bound, site: str) -> Plan:
    count = bound.get("byte_count", -1)
    size = usable(bound["src"], site, "enqueue_copy").size if count is None or count < 0 else operator.index(count)
    src, read = _linear(
        bound["src"], bound.get("src_offset", 0), size, site, reads=True, writes=False, what="enqueue_copy"
    )
    dst, written = _linear(
        bound["dst"], bound.get("dst_offset", 0), size, site, reads=False, writes=True, what="enqueue_copy"
    )
    return Plan("enqueue_copy", "", (written, read), wrappers=(src, dst))


def _in_parts(
    device: str, host: str | None, renamed: dict[str, str], *, to_device: bool = False
) -> Callable[[Bound, str], Plan]:
    """Return a description of a copy of rectangles or image regions, by the rules of our own helpers."""

    def describe(bound: Bound, site: str) -> Plan:
        where = {renamed.get(key, key): value for key, value in bound.items() if value is not None}
        for name in ("queue", "mem", "src", "dst", "dest", "hostbuf", "wait_for", "is_blocking"):
            where.pop(name, None)
        if "row_pitch" in where or "slice_pitch" in where:
            where["pitches"] = where.pop("row_pitch", 0), where.pop("slice_pitch", 0)
        if host is not None:
            mem = bound[device]
            wrapper = usable(mem, site, "enqueue_copy")
            use = _use(wrapper, reads=not to_device, writes=to_device)
            array = np.frombuffer(memoryview(bound[host]).cast("B"), np.uint8)
            _copy._with_host(mem, use, array, where, "")
            blocking = bool(bound.get("is_blocking", True))
            return Plan("enqueue_copy", "", (_recorded(use, wrapper),), blocking, host=bound[host], wrappers=(wrapper,))
        src, dest = bound["src"], bound[device]
        one, other = usable(src, site, "enqueue_copy"), usable(dest, site, "enqueue_copy")
        read, written = _use(one, reads=True, writes=False), _use(other, reads=False, writes=True)
        _copy._between(dest, written, src, read, where)
        accesses = _recorded(written, other), _recorded(read, one)
        return Plan("enqueue_copy", "", accesses, wrappers=(one, other))

    return describe


def _use(wrapper: Wrapper, *, reads: bool, writes: bool) -> Use:
    start = wrapper.offset
    return Use(wrapper.root, start, start + wrapper.size, reads=reads, writes=writes)


def _recorded(use: Use, wrapper: Wrapper) -> Access:
    return use.record()._replace(site=wrapper.site)


def _fill_buffer(bound: Bound, site: str) -> Plan:
    start, size = operator.index(bound["offset"]), operator.index(bound["size"])
    wrapper, access = _linear(bound["mem"], start, size, site, reads=False, writes=True, what="enqueue_fill_buffer")
    return Plan("enqueue_fill", "", (access,), asked=(start, start + size), wrappers=(wrapper,))


def image_access(image: Any, wrapper: Wrapper, origin: Any, region: Any, *, reads: bool, writes: bool) -> Access:
    """Return the use of a region of an image."""
    use = _use(wrapper, reads=reads, writes=writes)
    _copy._image_part(image, use, {"origin": origin, "region": region}, "origin")
    return _recorded(use, wrapper)


def _fill_image(bound: Bound, site: str) -> Plan:
    image = bound["mem"]
    wrapper = usable(image, site, "enqueue_fill_image")
    access = image_access(image, wrapper, bound["origin"], bound["region"], reads=False, writes=True)
    return Plan("enqueue_fill", "", (access,))


def _migrate(bound: Bound, site: str) -> Plan:
    """A migration reads what it moves; one that leaves the content undefined writes."""
    flags = int(bound.get("flags") or 0)
    undefined = bool(flags & _UNDEFINED)
    wrappers = [usable(mem, site, "enqueue_migrate_mem_objects") for mem in bound["mem_objects"]]
    accesses = tuple([one.access(reads=not undefined, writes=True) for one in wrappers])
    return Plan("migrate", "", accesses, undefined=undefined, wrappers=tuple(wrappers))


def _launch(bound: Bound, site: str) -> Plan:
    name, wrappers, accesses = kernel(bound["kernel"], site)
    return Plan("enqueue_kernel", name, accesses, wrappers=wrappers)


def _svm_copy(bound: Bound, site: str) -> Plan:
    size = bound.get("byte_count")
    parts = [(_svm.range_of(bound["dst"], site), "write"), (_svm.range_of(bound["src"], site), "read")]
    known = tuple([part.access(mode, site, size) for part, mode in parts if part is not None])
    areas = tuple([part.area for part, _ in parts if part is not None])
    blocking = bool(bound.get("is_blocking", True))
    sides = [] if blocking else [bound[name].mem for name in ("dst", "src") if type(bound[name]) is cl.SVM]
    owners = [owner_of(one) for one in sides]
    borrowed = tuple([one for one in owners if one is not None])
    return Plan("enqueue_copy", "svm", known, blocking, wrappers=areas, borrowed=borrowed)


def _svm_fill(bound: Bound, site: str) -> Plan:
    part = _svm.range_of(bound["dst"], site)
    if part is None:
        return Plan("enqueue_fill", "svm")
    return Plan("enqueue_fill", "svm", (part.access("write", site, bound.get("byte_count")),), wrappers=(part.area,))


def _svm_migrate(bound: Bound, site: str) -> Plan:
    return Plan("migrate", "svm")


def _plain(kind: str) -> Callable[[Bound, str], Plan]:
    return lambda bound, site: Plan(kind)


class Entry(NamedTuple):
    """A function of PyOpenCL that enqueues: the names of its arguments, in order, and what it does with them."""

    names: tuple[str, ...]
    describe: Callable[[Bound, str], Plan]


def _entry(names: str, describe: Callable[[Bound, str], Plan]) -> Entry:
    return Entry(tuple(names.split()), describe)


_RECT = "queue mem hostbuf buffer_origin host_origin region buffer_pitches host_pitches wait_for is_blocking"
_IMAGE = "queue mem origin region hostbuf row_pitch slice_pitch wait_for is_blocking"
ENTRIES: dict[str, Entry] = {
    "_enqueue_read_buffer": _entry(
        "queue mem hostbuf src_offset wait_for is_blocking", _host_copy(False, "src_offset")
    ),
    "_enqueue_write_buffer": _entry(
        "queue mem hostbuf dst_offset wait_for is_blocking", _host_copy(True, "dst_offset")
    ),
    "_enqueue_copy_buffer": _entry("queue src dst byte_count src_offset dst_offset wait_for", _copy_buffer),
    "_enqueue_read_buffer_rect": _entry(_RECT, _in_parts("mem", "hostbuf", {})),
    "_enqueue_write_buffer_rect": _entry(_RECT, _in_parts("mem", "hostbuf", {}, to_device=True)),
    "_enqueue_copy_buffer_rect": _entry(
        "queue src dst src_origin dst_origin region src_pitches dst_pitches wait_for", _in_parts("dst", None, {})
    ),
    "_enqueue_read_image": _entry(_IMAGE, _in_parts("mem", "hostbuf", {})),
    "_enqueue_write_image": _entry(_IMAGE, _in_parts("mem", "hostbuf", {}, to_device=True)),
    "_enqueue_copy_image": _entry("queue src dest src_origin dest_origin region wait_for", _in_parts("dest", None, {})),
    "_enqueue_copy_image_to_buffer": _entry(
        "queue src dest origin region offset wait_for", _in_parts("dest", None, {})
    ),
    "_enqueue_copy_buffer_to_image": _entry(
        "queue src dest offset origin region wait_for", _in_parts("dest", None, {})
    ),
    "_enqueue_fill_buffer": _entry("queue mem pattern offset size wait_for", _fill_buffer),
    "enqueue_fill_image": _entry("queue mem color origin region wait_for", _fill_image),
    "enqueue_migrate_mem_objects": _entry("queue mem_objects flags wait_for", _migrate),
    "enqueue_nd_range_kernel": _entry(
        "queue kernel global_work_size local_work_size global_work_offset wait_for g_times_l allow_empty_ndrange",
        _launch,
    ),
    "_enqueue_svm_memcpy": _entry("queue is_blocking dst src wait_for byte_count", _svm_copy),
    "_enqueue_svm_memfill": _entry("queue dst pattern byte_count wait_for", _svm_fill),
    "_enqueue_svm_migrate_mem": _entry("queue svms flags wait_for", _svm_migrate),
    "_enqueue_marker_with_wait_list": _entry("queue wait_for", _plain("marker")),
    "_enqueue_marker": _entry("queue", _plain("marker")),
    "_enqueue_barrier_with_wait_list": _entry("queue wait_for", _plain("barrier")),
    "_enqueue_barrier": _entry("queue", _plain("barrier")),
    "_enqueue_wait_for_events": _entry("queue wait_for", _plain("barrier")),
}
"""By their names in ``pyopencl._cl``, which PyOpenCL's other functions lead to. Maps are in `_mapped`."""
