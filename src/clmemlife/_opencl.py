"""The one seam to the driver: every OpenCL entry point that this library uses, raw ones and PyOpenCL's.

Other modules call ``_opencl.<name>(...)`` and nothing else, so that a test can put a recording or failing
fake in one place (`ENTRY_POINTS`). All use of ``ctypes`` is here.

The raw calls must reach the very loader that PyOpenCL uses, because a ``cl_mem`` of one loader means nothing
to another:

* Linux: symbols of the loader are found through PyOpenCL's extension module, on which ``dlsym`` also searches
  the libraries it was linked with (the wheels bring a loader of their own under a mangled name).
* macOS: the same; ``dlsym`` on a handle searches the image and what it depends on (by reading, not run).
* Windows: ``GetProcAddress`` does not search dependencies. Wheels put a renamed ``OpenCL*.dll`` into
  ``pyopencl.libs``; other builds have loaded ``OpenCL.dll`` by name (by reading, not run).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pyopencl as cl

from .exceptions import CallError

if sys.platform == "win32":
    import msvcrt

__all__ = ["ENTRY_POINTS", "immortalise"]

_SUCCESS = 0
_CL_MEM_HOST_PTR = 0x1103
POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


def _loader() -> ctypes.CDLL:
    extension = Path(cl._cl.__file__)
    if sys.platform != "win32":
        return ctypes.CDLL(str(extension))
    bundled = sorted(extension.parent.parent.glob("pyopencl.libs/*OpenCL*.dll"))
    return ctypes.WinDLL(str(bundled[0]) if bundled else "OpenCL.dll")


_library = _loader()


def _function(name: str, *argtypes: Any) -> Any:
    function = getattr(_library, name)
    function.argtypes = argtypes
    function.restype = ctypes.c_int
    return function


_clRetainMemObject = _function("clRetainMemObject", ctypes.c_void_p)
_clReleaseMemObject = _function("clReleaseMemObject", ctypes.c_void_p)
_clSetKernelArg = _function("clSetKernelArg", ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
_clGetMemObjectInfo = _function(
    "clGetMemObjectInfo", ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
)


def retain_mem_object(int_ptr: int) -> None:
    """Add one reference: ``clRetainMemObject``."""
    status = _clRetainMemObject(int_ptr)
    if status != _SUCCESS:
        raise CallError("clRetainMemObject", status)


def release_mem_object(int_ptr: int) -> None:
    """Give one reference back: ``clReleaseMemObject``."""
    status = _clReleaseMemObject(int_ptr)
    if status != _SUCCESS:
        raise CallError("clReleaseMemObject", status)


def get_host_ptr(int_ptr: int) -> int | None:
    """Return ``CL_MEM_HOST_PTR``, which PyOpenCL does not give as a number."""
    value = ctypes.c_void_p()
    status = _clGetMemObjectInfo(int_ptr, _CL_MEM_HOST_PTR, ctypes.sizeof(value), ctypes.byref(value), None)
    if status != _SUCCESS:
        raise CallError("clGetMemObjectInfo", status)
    return value.value


def set_kernel_arg_bytes(kernel: int, index: int, size: int, value: bytes | None) -> None:
    """Set `size` bytes of a by-value argument, or of local memory (`value` is ``None``): ``clSetKernelArg``."""
    status = _clSetKernelArg(kernel, index, size, value)
    if status != _SUCCESS:
        raise CallError("clSetKernelArg", status)


_HOST_COPY = (
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p,
    ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
_clEnqueueReadBuffer = _function("clEnqueueReadBuffer", *_HOST_COPY)
_clEnqueueWriteBuffer = _function("clEnqueueWriteBuffer", *_HOST_COPY)


def enqueue_read_buffer(
    queue: Any, mem: Any, offset: int, nbytes: int, address: int, waits: list[cl.Event] | None
) -> cl.Event:
    """Read into host memory that the caller holds; does not block: ``clEnqueueReadBuffer``.

    PyOpenCL's own call gives an event whose destructor waits.
    """
    return _host_copy("clEnqueueReadBuffer", _clEnqueueReadBuffer, queue, mem, offset, nbytes, address, waits)


def enqueue_write_buffer(
    queue: Any, mem: Any, offset: int, nbytes: int, address: int, waits: list[cl.Event] | None
) -> cl.Event:
    """Write from host memory that the caller holds; does not block: ``clEnqueueWriteBuffer``."""
    return _host_copy("clEnqueueWriteBuffer", _clEnqueueWriteBuffer, queue, mem, offset, nbytes, address, waits)


def _host_copy(
    name: str, call: Any, queue: Any, mem: Any, offset: int, nbytes: int, address: int, waits: list[cl.Event] | None
) -> cl.Event:
    event = ctypes.c_void_p()
    count = len(waits) if waits else 0
    events = (ctypes.c_void_p * count)(*[one.int_ptr for one in waits]) if waits else None
    status = call(queue.int_ptr, mem.int_ptr, 0, offset, nbytes, address, count, events, ctypes.byref(event))
    if status != _SUCCESS:
        raise CallError(name, status)
    return wrap_event(event.value, False)


_clSetMemObjectDestructorCallback = _function(
    "clSetMemObjectDestructorCallback", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)

# The C library of the interpreter: Python's descriptors on Windows are those of the universal runtime.
_WINDOWS = sys.platform == "win32"
_libc = ctypes.CDLL("ucrtbase" if _WINDOWS else None, use_errno=True)
_putw = ctypes.cast(_libc._putw if _WINDOWS else _libc.putw, ctypes.c_void_p)
_fdopen = _libc._fdopen if _WINDOWS else _libc.fdopen
_fdopen.argtypes, _fdopen.restype = (ctypes.c_int, ctypes.c_char_p), ctypes.c_void_p
_setvbuf = _libc.setvbuf
_setvbuf.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_IONBF = 4 if _WINDOWS else 2


def open_c_stream(write_fd: int) -> int:
    """Return an unbuffered C ``FILE *`` over a descriptor, which belongs to it from then on."""
    pointer: int | None = _fdopen(write_fd, b"wb")
    if not pointer:
        error = ctypes.get_errno()
        raise OSError(error, f"fdopen: {os.strerror(error)}")
    _setvbuf(pointer, None, _IONBF, 0)
    return pointer


def set_destructor_callback(int_ptr: int, stream_pointer: int) -> None:
    """Have the driver write the low 32 bits of `int_ptr` to a C stream when it destroys the memory object.

    The callback of ``clSetMemObjectDestructorCallback`` is the C library's ``putw(int, FILE *)``, which needs no
    GIL and runs no Python.
    """
    status = _clSetMemObjectDestructorCallback(int_ptr, _putw, stream_pointer)
    if status != _SUCCESS:
        raise CallError("clSetMemObjectDestructorCallback", status)


def read_pipe(read_fd: int, max_bytes: int) -> bytes:
    """Return what a pipe holds now, ``b""`` where there is nothing; never blocks (the end must be non-blocking)."""
    if sys.platform == "win32":  # pipes there have no non-blocking mode for Python before 3.12
        available = ctypes.c_ulong()
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(read_fd))
        ctypes.windll.kernel32.PeekNamedPipe(handle, None, 0, None, ctypes.byref(available), None)
        return os.read(read_fd, min(max_bytes, available.value)) if available.value else b""
    try:
        return os.read(read_fd, max_bytes)
    except BlockingIOError:
        return b""


def raise_in_thread(ident: int, error: type[BaseException]) -> None:
    """Raise `error` in another Python thread, as soon as that runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


wrap_mem_object = cl.MemoryObject.from_int_ptr
wrap_event = cl.Event.from_int_ptr
create_buffer = cl.Buffer
get_sub_region = cl.Buffer.get_sub_region
set_kernel_arg = cl.Kernel.set_arg
set_kernel_arg_buf = cl.Kernel._set_arg_buf  # of a NumPy scalar; the public way tries every other type first
set_kernel_args = cl.Kernel.set_args
enqueue_nd_range_kernel = cl.enqueue_nd_range_kernel
_pyopencl_enqueue_copy = cl.enqueue_copy  # PyOpenCL's own names may be hooked later
enqueue_fill_buffer = cl.enqueue_fill_buffer
enqueue_fill_image = cl.enqueue_fill_image
enqueue_svm_memfill = cl.enqueue_svm_memfill
enqueue_map_buffer = cl.enqueue_map_buffer
enqueue_map_image = cl.enqueue_map_image
enqueue_unmap_mem_object = cl.MemoryMap.release
enqueue_migrate_mem_objects = cl.enqueue_migrate_mem_objects
enqueue_marker = cl.enqueue_marker
flush = cl.CommandQueue.flush
finish = cl.CommandQueue.finish  # PyOpenCL's own name may be hooked later
_wait = cl.Event.wait
_kinds = cl.mem_object_type
_LINES = (_kinds.IMAGE1D, _kinds.IMAGE1D_ARRAY, _kinds.IMAGE1D_BUFFER)


def create_image(
    context: Any, flags: int, format: Any, shape: tuple[int, ...], pitches: Any, hostbuf: Any, is_array: bool, over: Any
) -> Any:
    """Create an image: ``clCreateImage``. PyOpenCL 2026.1 makes every 1D array an array of one image."""
    if not is_array or len(shape) != 2:
        return cl.create_image(context, flags, format, shape, pitches, hostbuf, is_array, over)
    descriptor = cl.ImageDescriptor()
    descriptor.image_type = _kinds.IMAGE1D_ARRAY
    descriptor.shape = (shape[0], 1, shape[1])
    descriptor.array_size = shape[1]
    descriptor.pitches = pitches or (0, 0)
    descriptor.num_mip_levels = descriptor.num_samples = 0
    descriptor.buffer = None
    return cl.Image(context, flags, format, desc=descriptor, hostbuf=hostbuf)


def enqueue_copy(queue: Any, dest: Any, src: Any, **where: Any) -> Any:
    """Copy as PyOpenCL does, without holding the interpreter in a blocking copy of an image or of SVM, as it does.

    Such a copy is enqueued first, then waited for.
    """
    if where.get("is_blocking") and ("origin" in where or any(isinstance(one, cl.SVMPointer) for one in (dest, src))):
        event = _enqueue_copy(queue, dest, src, **{**where, "is_blocking": False})
        _wait(event)
        return event
    return _enqueue_copy(queue, dest, src, **where)


def _enqueue_copy(queue: Any, dest: Any, src: Any, **where: Any) -> Any:
    """Copy also images of one dimension and arrays of them, which PyOpenCL's own function refuses."""
    to_device, from_device = (isinstance(one, cl.MemoryObjectHolder) for one in (dest, src))
    if not any(one in where for one in ("origin", "dest_origin")) or not (
        (to_device and dest.type in _LINES) or (from_device and src.type in _LINES)
    ):
        return _pyopencl_enqueue_copy(queue, dest, src, **where)
    if to_device and from_device:
        if "dest_origin" in where:
            return cl._cl._enqueue_copy_image(queue, src, dest, **where)
        if src.type == _kinds.BUFFER:
            return cl._cl._enqueue_copy_buffer_to_image(queue, src, dest, **where)
        return cl._cl._enqueue_copy_image_to_buffer(queue, src, dest, **where)
    row_pitch, slice_pitch = (*where.pop("pitches", ()), 0, 0)[:2]
    origin, region = where.pop("origin"), where.pop("region")
    where.update(row_pitch=row_pitch, slice_pitch=slice_pitch)
    if to_device:
        return cl._cl._enqueue_write_image(queue, dest, origin, region, src, **where)
    return cl._cl._enqueue_read_image(queue, src, origin, region, dest, **where)


ENTRY_POINTS = {
    "retain_mem_object": "clRetainMemObject",
    "release_mem_object": "clReleaseMemObject",
    "get_host_ptr": "clGetMemObjectInfo",
    "set_kernel_arg_buf": "clSetKernelArg",
    "set_kernel_arg_bytes": "clSetKernelArg",
    "set_kernel_arg": "clSetKernelArg",
    "set_kernel_args": "clSetKernelArg",
    "enqueue_read_buffer": "clEnqueueReadBuffer",
    "enqueue_write_buffer": "clEnqueueWriteBuffer",
    "set_destructor_callback": "clSetMemObjectDestructorCallback",
    "wrap_mem_object": "clRetainMemObject",
    "wrap_event": "clRetainEvent",
    "create_buffer": "clCreateBuffer",
    "create_image": "clCreateImage",
    "get_sub_region": "clCreateSubBuffer",
    "enqueue_nd_range_kernel": "clEnqueueNDRangeKernel",
    "enqueue_copy": "clEnqueueReadBuffer, clEnqueueWriteBuffer, clEnqueueCopyBuffer and their kin",
    "enqueue_fill_buffer": "clEnqueueFillBuffer",
    "enqueue_fill_image": "clEnqueueFillImage",
    "enqueue_svm_memfill": "clEnqueueSVMMemFill",
    "enqueue_map_buffer": "clEnqueueMapBuffer",
    "enqueue_map_image": "clEnqueueMapImage",
    "enqueue_unmap_mem_object": "clEnqueueUnmapMemObject",
    "enqueue_migrate_mem_objects": "clEnqueueMigrateMemObjects",
    "enqueue_marker": "clEnqueueMarkerWithWaitList",
    "flush": "clFlush",
    "finish": "clFinish",
}
"""Names in this module that reach the driver, and the OpenCL call behind each."""


def immortalise(thing: object) -> None:
    """Keep `thing` for ever, also when the interpreter takes modules apart, because its destructor may not run.

    The event of a pending host copy waits in its destructor while it holds the interpreter; a map that the driver
    refused to unmap aborts the process in its destructor.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
