"""Which entry points are hooked, and how they are put back."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyopencl as cl

from ... import _foreign
from .. import _hooks
from . import (
    _copies,
    _cpython,
    _faults,
    _host_side,
    _intercept,
    _launch,
    _map_hooks,
    _mapped,
    _methods,
    _owners,
    _svm,
    _svm_hooks,
    _watched,
    _wrapped,
)
from ._uses_of import ENTRIES

lock = threading.RLock()
_users = 0
_classes: list[tuple[Any, str, Any]] = []
"""And what is hooked like their methods."""
_functions: list[tuple[str, Any, Any]] = []
_constructors: list[tuple[type, int | None]] = []
_OURS = __name__.partition(".")[0]


def install() -> None:
    """Hook, once for all scopes."""
    global _users
    with lock:
        _users += 1
        if _users > 1:
            return
        try:
            _hooks.host.install()
            _hooks.superseded = True
            for kind, name, value in _of_classes():
                _classes.append((kind, name, vars(kind)[name]))
                setattr(kind, name, value)
            replaced = {}
            for name, value in _of_modules():
                original = getattr(cl._cl, name)
                _functions.append((name, original, value))
                replaced[id(original)] = value
            _spread(replaced)
            for kind in (cl.Buffer, cl.SVMAllocation) if _cpython.can_see_constructors else ():
                _constructors.append((kind, _cpython.go_through_init(kind)))
            _mapped.on_drop = _map_hooks.unmapped_by_end
            _foreign.elsewhere = _wrapped.root_at
            gc.callbacks.append(_wrapped.during_collection)
        except BaseException:
            _users -= 1
            _put_back()
            raise


def _after_fork_in_child() -> None:
    """Take new locks: threads that are not in the child may have the old ones."""
    global lock
    lock = threading.RLock()
    for module in (_hooks, _svm, _wrapped):
        module.renew_lock()
    for faults in _faults.active:
        faults.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def uninstall() -> None:
    """Put all back when the last scope has ended."""
    global _users
    with lock:
        _users -= 1
        if not _users:
            _put_back()


def _put_back() -> None:
    while _constructors:
        _cpython.restore_constructor(*_constructors.pop())
    _spread({id(value): original for _, original, value in _functions})
    _functions.clear()
    while _classes:
        setattr(*_classes.pop())
    _hooks.superseded = False
    _hooks.host.uninstall()
    _mapped.on_drop = _foreign.elsewhere = None
    if _wrapped.during_collection in gc.callbacks:
        gc.callbacks.remove(_wrapped.during_collection)
    _copies.let_events_go()
    _watched.release_all()
    _wrapped.forget_all()
    _mapped.forget_all()
    _svm.forget_all()


def _spread(replaced: dict[int, Any]) -> None:
    """Replace functions in all modules, also where a program took one out of ``pyopencl`` before."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _OURS:
            continue
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            for key, value in list(names.items()):
                if id(value) in replaced:
                    names[key] = replaced[id(value)]


def _of_modules() -> Iterator[tuple[str, Any]]:
    for name, entry in ENTRIES.items():
        if hasattr(cl._cl, name):
            yield name, _intercept.enqueues(name, entry, getattr(cl._cl, name))
    for name, image in (("enqueue_map_buffer", False), ("enqueue_map_image", True)):
        if hasattr(cl._cl, name):
            yield name, _map_hooks.maps(image, getattr(cl._cl, name))
    for name, hook in (("_enqueue_svm_map", _svm_hooks.maps), ("_enqueue_svm_unmap", _svm_hooks.unmaps)):
        if hasattr(cl._cl, name):
            yield name, hook(getattr(cl._cl, name))
    waits = cl._cl.wait_for_events  # `_hooks` has one in the place of `cl.wait_for_events`, perhaps for longer than we
    yield "wait_for_events", _host_side.waits_for_many(functools.wraps(waits)(_hooks.waits_for_all(waits)))


def _of_classes() -> Iterator[tuple[Any, str, Any]]:
    yield cl, "wait_for_events", _host_side.waits_for_many(vars(cl)["wait_for_events"])  # that of `_hooks`
    holder, pooled = cl.MemoryObjectHolder, getattr(cl._cl, "PooledBuffer", None)
    for name, value in list(vars(holder).items()):
        if isinstance(value, property):
            yield (
                holder,
                name,
                (_methods.shows_address(value) if name == "int_ptr" else _methods.guarded_property(name, value)),
            )
    for kind in filter(None, (cl.Image, getattr(cl, "Pipe", None))):  # theirs ask by functions of their own
        for name, value in list(vars(kind).items()):
            if isinstance(value, property):
                yield kind, name, _methods.guarded_property(name, value)
    for kind, name in ((holder, "get_info"), (holder, "get_host_array"), (cl.Image, "get_image_info")):
        yield kind, name, _methods.guarded(name)(vars(kind)[name])
    hooks: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (cl.MemoryObject, "release", _methods.releases),
        (pooled, "release", _methods.releases),
        (cl.MemoryMap, "release", _map_hooks.unmaps),
        (cl.Buffer, "get_sub_region", _methods.makes_part),
        (cl.Buffer, "__getitem__", _methods.makes_part),
        (cl.Kernel, "_set_arg_multi", _launch.sets_many),
        (cl.Kernel, "set_arg", _launch.sets_one),
        (cl.Kernel, "clone", _launch.clones),
        *[(getattr(cl._cl, name, None), "__call__", _methods.makes_block) for name in _ALLOCATORS],
        (getattr(cl._cl, "MemoryPool", None), "allocate", _methods.makes_block),
        *[(getattr(cl, kind, None), name, hook) for kind, name, hook in _OF_SVM],
        (cl.Event, "get_info", _host_side.asks_event),
        (cl.Event, "wait", _host_side.waits),
        (cl.Event, "set_callback", _host_side.calls_back),
        (cl.CommandQueue, "finish", _host_side.host_step),
        (cl.CommandQueue, "flush", _host_side.host_step),
        (cl.UserEvent, "set_status", _host_side.sets_status),
    ]
    for owner, name, hook in hooks:
        if owner is not None and name in vars(owner):
            yield owner, name, functools.wraps(vars(owner)[name])(hook(vars(owner)[name]))
    if _cpython.can_see_constructors:
        yield cl.Buffer, "__init__", _methods.initialises(vars(cl.Buffer)["__init__"])
        yield cl.SVMAllocation, "__init__", _svm_hooks.allocates(vars(cl.SVMAllocation)["__init__"])
    if hasattr(cl, "SVMPointer"):
        yield cl.SVMPointer, "buf", _svm_hooks.guarded_buf(vars(cl.SVMPointer)["buf"])
    yield cl.Image, "_custom_init", staticmethod(_methods.initialises_image(cl.Image._custom_init))
    for kind in (cl.Context, cl.CommandQueue, cl.Kernel, cl.Sampler):
        yield kind, "from_int_ptr", staticmethod(_owners.wraps_other(kind.from_int_ptr, kind))
    yield cl.MemoryObject, "from_int_ptr", staticmethod(_owners.wraps_pointer(cl.MemoryObject.from_int_ptr))
    value = vars(cl.Event)["command_execution_status"]
    yield (
        cl.Event,
        "command_execution_status",
        property(_host_side.asks_event_status(value.fget), value.fset, value.fdel, value.__doc__),
    )


_OF_SVM = (
    ("SVMAllocation", "release", _svm_hooks.frees),
    ("SVMAllocation", "enqueue_release", _svm_hooks.frees_later),
    ("SVMAllocation", "bind_to_queue", _svm_hooks.rebinds),
    ("SVMAllocation", "unbind_from_queue", _svm_hooks.rebinds),
    ("SVMPointer", "map", _svm_hooks.gives_map),
    ("SVM", "map", _svm_hooks.gives_map),
    ("SVMMap", "release", _svm_hooks.ends_map),
)
_ALLOCATORS = ("AllocatorBase", "MemoryPool", "SVMAllocator", "SVMPool")
