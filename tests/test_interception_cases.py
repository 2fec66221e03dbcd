"""Programs of plain PyOpenCL with a known mistake: each is reported at the lines that say so, and ends on its own feet.

A line that ends in ``#: kind`` is where the sanitizer must see that kind; ``#: leak`` is where what is alive at the end
was made. What has no such line must be silent.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = '''
import gc, threading, time
import numpy as np
import pyopencl as cl
from pyopencl import enqueue_map_buffer as map_buffer

SRC = """
__kernel void setval(__global int *x, int v) { x[get_global_id(0)] = v; }
__kernel void inc(__global int *x) { x[get_global_id(0)] += 1; }
__kernel void look(__global const int *x, __global int *y) { y[get_global_id(0)] = x[get_global_id(0)]; }
"""
mf, mapf = cl.mem_flags, cl.map_flags
device = cl.get_platforms()[0].get_devices()[0]
ctx = cl.Context([device])
q, q2 = cl.CommandQueue(ctx, device), cl.CommandQueue(ctx, device)
loose = cl.CommandQueue(ctx, device, cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
prg = cl.Program(ctx, SRC).build()
setval, inc, look = (cl.Kernel(prg, name) for name in ("setval", "inc", "look"))
N = 1024
h = np.zeros(N, np.int32)


def buffer(size=4 * N, flags=mf.READ_WRITE, **keywords):
    return cl.Buffer(ctx, flags, size, **keywords)
'''

RUNNER = """
import atexit, json, sys
sys.path[:0] = PATHS
import clmemlife as cml
from clmemlife import _lifecycle

_sanitizer = cml.sanitize("record")

def _report(sanitizer=_sanitizer, file=sys.argv[1]):
    with open(file, "w") as out:
        json.dump(sanitizer.as_dict(), out)

atexit.register(_report)
atexit.register(_sanitizer.stop)
_sanitizer.start()
__file__ = sys.argv[2]
del _report, _sanitizer
exec(compile(open(__file__).read(), __file__, "exec"), globals())
"""

WRONG = {
    "a released buffer is asked": """
        b = buffer()
        b.release()
        try:
            b.size #: use_after_release
        except Exception as error:
            assert "released at" in str(error)
    """,
    "a released image is asked": """
        form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
        i = cl.create_image(ctx, mf.READ_WRITE, form, (8, 8))
        i.release()
        for name in ("width", "height", "format", "row_pitch", "element_size", "buffer", "shape"):
            try:
                getattr(i, name) #: use_after_release
                raise SystemExit(name)
            except Exception as error:
                assert type(error).__name__ == "ReleasedError", name
    """,
    "a clone has the arguments of its kernel": """
        b = buffer()
        inc.set_arg(0, b)
        clone = inc.clone()
        first = cl.enqueue_nd_range_kernel(q, clone, (N,), None)
        q.flush()
        cl.enqueue_nd_range_kernel(q2, inc.clone(), (N,), None).wait() #: read_after_write
        first.wait()
        b.release()
        try:
            cl.enqueue_nd_range_kernel(q, clone, (N,), None) #: argument_owner_gone
        except Exception as error:
            assert type(error).__name__ == "ReleasedError"
    """,
    "two buffers on the same host memory": """
        import clmemlife as cml
        host = cml.aligned_empty((2 * N,), np.int32, ctx)
        whole = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host)
        part = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host[N:])
        first = inc(q, (2 * N,), None, whole)
        q.flush()
        inc(q2, (N,), None, part).wait() #: read_after_write
        first.wait()
    """,
    "a released buffer is filled": """
        b = buffer()
        b.release()
        try:
            cl.enqueue_fill_buffer(q, b, np.int32(1), 0, 4 * N) #: use_after_release
        except Exception as error:
            assert type(error).__name__ == "ReleasedError"
    """,
    "a released buffer is an argument": """
        b = buffer()
        b.release()
        try:
            inc(q, (N,), None, b) #: use_after_release
        except Exception as error:
            assert type(error).__name__ == "ReleasedError"
    """,
    "a released buffer is cut": """
        b = buffer()
        b.release()
        for f in (lambda: b[0:128], lambda: b.get_sub_region(0, 128)): #: use_after_release
            try:
                f()
            except Exception as error:
                assert type(error).__name__ == "ReleasedError"
    """,
    "a buffer is released twice": """
        b = buffer()
        b.release()
        try:
            b.release() #: double_release
        except cl.LogicError:
            pass
    """,
    "an argument is gone at the launch": """
        inc.set_arg(0, buffer())
        try:
            cl.enqueue_nd_range_kernel(q, inc, (N,), None) #: argument_owner_gone
        except Exception as error:
            assert type(error).__name__ == "ReleasedError"
    """,
    "an argument is released before the launch": """
        b = buffer()
        setval.set_args(b, np.int32(3))
        b.release()
        try:
            cl.enqueue_nd_range_kernel(q, setval, (N,), None) #: argument_owner_gone
        except Exception as error:
            assert type(error).__name__ == "ReleasedError"
    """,
    "two owners of one reference": """
        a = buffer()
        b = cl.Buffer.from_int_ptr(a.int_ptr, retain=False) #: two_owners
        del b
        cl.enqueue_fill_buffer(q, a, np.int32(3), 0, 4 * N).wait()
        assert a.reference_count >= 1
    """,
    "two owners of a queue": """
        other = cl.CommandQueue.from_int_ptr(q.int_ptr, retain=False) #: two_owners
        del other
        setval(q, (N,), None, buffer(), np.int32(1)).wait()
    """,
    "a map is released twice": """
        b = buffer()
        a, _ = map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32)
        a.base.release(q)
        try:
            a.base.release(q) #: double_release
        except cl.LogicError:
            pass
    """,
    "the array of a map is written after its release": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32)
        a[:] = 1
        a.base.release(q).wait()
        a[0] = 99 #: stale_map_array
    """,
    "the array of a map is read after its release": """
        def sum_up(b):
            a, _ = cl.enqueue_map_buffer(q, b, mapf.READ, 0, (N,), np.int32)
            with a.base:
                total = a.sum()
            return total + a[3] + a.sum() #: stale_map_array

        b = buffer()
        sum_up(b)
        q.finish()
    """,
    "a view that was taken before the release": """
        def first(b):
            a, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32)
            part = a[10:20]
            a.base.release(q).wait()
            part[0] = 5 #: stale_map_array
            return part

        rows = first(buffer()).reshape(2, 5) #: stale_map_array
    """,
    "a stale array is copied from": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mapf.READ, 0, (N,), np.int32)
        a.base.release(q).wait()
        cl.enqueue_copy(q, buffer(), a) #: stale_map_array
    """,
    "a map is read before it is there": """
        b = buffer()
        a, event = cl.enqueue_map_buffer(q, b, mapf.READ, 0, (N,), np.int32, is_blocking=False)
        early = a.copy() #: map_not_ready
        event.wait()
        late = a.copy()
        a.base.release(q).wait()
    """,
    "two maps that overlap write": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32)
        c, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 2 * N, (N // 2,), np.int32) #: map_conflict
        c.base.release(q)
        a.base.release(q)
        q.finish()
    """,
    "a command on what is mapped": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32)
        inc(q, (N,), None, b) #: command_on_mapped
        cl.enqueue_migrate_mem_objects(q, [b]) #: command_on_mapped
        a.base.release(q)
        q.finish()
    """,
    "a kernel writes what is mapped for reading": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b[0:1024], mapf.READ, 0, (256,), np.int32)
        setval(q, (N,), None, b, np.int32(1)) #: command_on_mapped
        a.base.release(q)
        q.finish()
    """,
    "wrong flags of a map": """
        b = buffer()
        for flags in (0, 1 << 20, mapf.WRITE | mapf.WRITE_INVALIDATE_REGION):
            try:
                a, _ = cl.enqueue_map_buffer(q, b, flags, 0, (4,), np.int32) #: wrong_map_flags
            except cl.LogicError:
                assert flags  # some drivers refuse some of them
            a = None
            q.finish()
    """,
    "a map for reading is written": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mf.READ_WRITE, 0, (N,), np.int32) #: wrong_map_flags
        a[:] = 7
        a.base.release(q).wait()
    """,
    "rows of an image map": """
        image = cl.create_image(
            ctx, mf.READ_WRITE, cl.ImageFormat(cl.channel_order.R, cl.channel_type.FLOAT), shape=(64, 32)
        )
        a = cl.enqueue_map_image(q, image, mapf.READ, (8, 4), (16, 8), (8, 16), np.float32)[0]
        a.sum() #: wrong_map_strides
        del a
        q.finish()
    """,
    "steps over the rows of an image map": """
        image = cl.create_image(
            ctx, mf.READ_WRITE, cl.ImageFormat(cl.channel_order.R, cl.channel_type.FLOAT), shape=(64, 32)
        )
        a = cl.enqueue_map_image(q, image, mapf.READ, (8, 4), (16, 8), (8, 16), np.float32, strides=(32, 4))[0]
        a.sum() #: wrong_map_strides
        del a
        q.finish()
    """,
    "the event of a gated copy is dropped": """
        gate = cl.UserEvent(ctx)
        threading.Timer(0.2, lambda: gate.set_status(0)).start()
        cl.enqueue_copy(q, h, buffer(), is_blocking=False, wait_for=[gate]) #: dropped_copy_event
        q.finish()
    """,
    "host memory goes while a kernel uses it": """
        gate = cl.UserEvent(ctx)
        a = np.zeros(1 << 20, np.int32)
        b = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=a)
        done = setval(q, (1 << 20,), None, b, np.int32(7), wait_for=[gate])
        del a, b #: host_array_freed
        gate.set_status(0)
        done.wait()
    """,
    "host memory goes while a part of the buffer lives": """
        a = np.zeros(1 << 20, np.int32)
        b = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=a)
        part = b.get_sub_region(0, 1 << 20)
        del b, a #: host_array_freed
        setval(q, (1 << 18,), None, part, np.int32(7)).wait()
    """,
    "host memory of a copy with shared virtual memory goes": """
        gate = cl.UserEvent(ctx)
        memory = cl.SVM(cl.csvm_empty(ctx, N, np.int32))
        done = cl.enqueue_copy(q, memory, np.ones(N, np.int32), is_blocking=False, wait_for=[gate]) #: host_array_freed
        gate.set_status(0)
        done.wait()
    """,
    "shared virtual memory is used after its end": """
        memory = cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE)
        inc.set_arg(0, memory)
        cl.enqueue_nd_range_kernel(q, inc, (N,), None).wait()
        memory.release()
        uses = [
            lambda: cl.enqueue_nd_range_kernel(q, inc, (N,), None), #: use_after_release
            lambda: inc(q, (N,), None, memory), #: use_after_release
            lambda: cl.enqueue_svm_memfill(q, memory, np.int32(0)), #: use_after_release
        ]
        for use in uses:
            try:
                use()
                raise SystemExit("it went through")
            except Exception as error:
                assert type(error).__name__ == "ReleasedError"
    """,
    "a kernel uses shared virtual memory that is mapped": """
        memory = cl.SVM(cl.csvm_empty(ctx, N, np.int32))
        with memory.map_rw(q) as a:
            a[:] = 0
            inc(q, (N,), None, memory) #: command_on_mapped
        with cl.SVM(memory.mem[: N // 2]).map_ro(q):
            look(q, (N,), None, memory, buffer())
            cl.enqueue_svm_memfill(q, memory, np.int32(0)) #: command_on_mapped
        raw = cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE)
        with raw.map_rw(q) as a:
            inc(q, (N,), None, raw) #: command_on_mapped
        q.finish()
        raw.release()
    """,
    "an array of shared virtual memory is used after its unmap": """
        def work(memory):
            with memory.map_rw(q) as a:
                a[:] = 0
                part = a[3:5]
            a[0] = 1 #: stale_map_array
            part[0] = 1 #: stale_map_array
            with memory.map_ro(q):
                assert a[0] + part[0] >= 0
            return part.sum() #: stale_map_array

        work(cl.SVM(cl.csvm_empty(ctx, N, np.int32)))
        work(cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE))
        q.finish()
    """,
    "a map of shared virtual memory is read too early, written though for reading, released twice": """
        memory = cl.SVM(cl.csvm_empty(ctx, N, np.int32))
        first = memory.map_rw(q, is_blocking=False)
        memory.mem[0] = 3 #: map_not_ready
        first.event.wait()
        memory.mem[0] = 3
        first.release()
        second = memory.map_ro(q) #: wrong_map_flags
        second.array[1] = 5
        second.release()
        try:
            second.release() #: double_release
        except AssertionError:
            pass
        third = memory.map(q, 0) #: wrong_map_flags
        third.release().wait()
    """,
    "an unmap of shared virtual memory in another queue": """
        memory = cl.SVM(cl.csvm_empty(ctx, N, np.int32))
        memory.map_rw(q).release()
        q.flush()
        inc(q2, (N,), None, memory).wait() #: read_after_write
        q.finish()
    """,
    "a map of shared virtual memory at the end": """
        memory = cl.SVM(cl.csvm_empty(ctx, N, np.int32))
        kept = memory.map_rw(q) #: leak
    """,
    "shared virtual memory that was freed is mapped, asked for its bytes, and freed again": """
        memory = cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE)
        memory.release()
        for use in (lambda: memory.map_rw(q), lambda: memory.buf): #: use_after_release
            try:
                use()
                raise SystemExit("it went through")
            except Exception as error:
                assert type(error).__name__ == "ReleasedError"
        try:
            memory.release() #: double_release
        except cl.Error:
            pass
        gone = cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE)
        view = gone.map_rw(q)
        gone.release() #: freed_in_use
        try:
            view.array[0] = 3 #: stale_map_array
            raise SystemExit("it went through")
        except Exception as error:
            assert type(error).__name__ == "ReleasedError"
        view.svm = None
    """,
    "shared virtual memory is freed under a command": """
        gate = cl.UserEvent(ctx)
        memory = cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE)
        event = inc(q, (N,), None, memory, wait_for=[gate])
        try:
            memory.release() #: freed_in_use
            raise SystemExit("it went through")
        except Exception as error:
            assert type(error).__name__ == "HazardError", error
            assert f"program.py:4{chr(10)}" in str(error) and "program.py:5 " in str(error), error
        gate.set_status(0)
        event.wait()
        memory.release()
    """,
    "shared virtual memory is dropped under a command": """
        gate = cl.UserEvent(ctx)
        event = inc(q, (N,), None, cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE), wait_for=[gate])
        q.flush() #: freed_in_use
        gate.set_status(0)
        event.wait()
        q.finish()
    """,
    "shared virtual memory is freed where nothing orders that behind a command": """
        from clmemlife.diagnostics.interception._copies import _get_info

        def use():
            memory = cl.SVMAllocation(ctx, 4 * N, 4, cl.svm_mem_flags.READ_WRITE)
            event = inc(q, (N,), None, memory)
            q.flush()
            while _get_info(event, cl.event_info.COMMAND_EXECUTION_STATUS) > 0:
                pass  # it is over, and the program does not know it
            return memory

        use().release() #: freed_in_use
        kept = use()  # PoCL 3.0 reads the address from the object when the command runs
        kept.enqueue_release(q2) #: freed_in_use
        q2.finish()
    """,
    "objects of another context": """
        strangers = cl.Context([device])
        there = cl.CommandQueue(strangers)
        b = cl.Buffer(strangers, mf.READ_WRITE, 4 * N)
        form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
        image = cl.create_image(strangers, mf.READ_WRITE, form, (8, 8))
        mine = buffer()
        setval.set_args(mine, np.int32(1))
        uses = [
            lambda: cl.enqueue_copy(q, h, b), #: refused_call
            lambda: cl.enqueue_copy(q, mine, b), #: refused_call
            lambda: cl.enqueue_fill_buffer(q, b, np.int32(0), 0, 4), #: refused_call
            lambda: cl.enqueue_fill_image(q, image, np.zeros(4, np.uint32), (0, 0), (8, 8)), #: refused_call
            lambda: map_buffer(q, b, mapf.READ, 0, (N,), np.int32), #: refused_call
            lambda: cl.enqueue_migrate_mem_objects(q, [mine, b]), #: refused_call
            lambda: cl.enqueue_nd_range_kernel(there, setval, (N,), None), #: refused_call
        ]
        for use in uses:
            try:
                use()
                raise SystemExit("it went through")
            except cl.Error:
                pass
        for put in (lambda: inc.set_arg(0, b), lambda: inc.set_args(b), lambda: inc.set_arg(0, b)): #: other_context
            try:
                put()
            except cl.Error:
                pass
    """,
    "an event of another context": """
        there = cl.CommandQueue(cl.Context([device]))
        event = cl.enqueue_marker(there)
        there.flush()
        try:
            cl.enqueue_fill_buffer(q, buffer(), np.int32(0), 0, 4, wait_for=[event]) #: refused_call
            raise SystemExit("it went through")
        except cl.Error:
            pass
    """,
    "one of many events fails": """
        gate, fine = cl.UserEvent(ctx), cl.enqueue_marker(q2)
        event = inc(q, (N,), None, buffer(), wait_for=[gate])
        q.flush()
        gate.set_status(-1)
        try:
            cl.wait_for_events([fine, event]) #: failed_dependency
            raise SystemExit("it went through")
        except cl.Error:
            pass
    """,
    "events of two contexts": """
        there = cl.CommandQueue(cl.Context([device]))
        try:
            cl.wait_for_events([cl.enqueue_marker(q), cl.enqueue_marker(there)]) #: refused_call
            raise SystemExit("it went through")
        except cl.Error:
            pass
    """,
    "more bytes than there are": """
        b = buffer(64)
        uses = [
            lambda: cl.enqueue_fill_buffer(q, b, np.int32(1), 32, 64), #: refused_call
            lambda: cl.enqueue_copy(q, b, h), #: refused_call
            lambda: cl.enqueue_copy(q, h[:4], b, src_offset=64), #: refused_call
            lambda: map_buffer(q, b, mapf.READ, 0, (N,), np.int32), #: refused_call
        ]
        for use in uses:
            try:
                use()
                raise SystemExit("it went through")
            except cl.Error:
                pass
    """,
    "a kernel writes what it may only read": """
        inc(q, (N,), None, buffer(flags=mf.READ_ONLY)) #: wrong_mem_flags
        inc(q, (N,), None, buffer(flags=mf.WRITE_ONLY)) #: wrong_mem_flags
        q.finish()
    """,
    "misaligned host memory": """
        raw = np.zeros(4 * N + 512, np.uint8)
        begin = -raw.ctypes.data % 128 + 1
        a = raw[begin : begin + 4 * N]
        b = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=a) #: misaligned_host_memory
    """,
    "two queues": """
        b = buffer()
        setval(q, (N,), None, b, np.int32(1))
        q.flush()
        cl.enqueue_copy(q2, h, b) #: read_after_write
        q.finish()
    """,
    "a queue that runs out of order": """
        b = buffer()
        event = cl.enqueue_fill_buffer(loose, b, np.int32(1), 0, 4 * N)
        cl.enqueue_copy(loose, h, b) #: read_after_write
        event.wait()
    """,
    "a queue that nobody flushed": """
        b = buffer()
        event = setval(q, (N,), None, b, np.int32(1))
        cl.enqueue_copy(q2, h, b, wait_for=[event]) #: never_flushed
    """,
    "an unmap in another queue": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32)
        a.base.release(q)
        q.flush()
        inc(q2, (N,), None, b).wait() #: read_after_write
    """,
    "a block of a pool is still in use": """
        from pyopencl.tools import ImmediateAllocator, MemoryPool

        pool = MemoryPool(ImmediateAllocator(q))
        b = pool.allocate(4 * N)
        setval(q, (N,), None, b, np.int32(1))
        q.flush()
        del b
        c = pool.allocate(4 * N)
        setval(q2, (N,), None, c, np.int32(2)).wait() #: pool_block_in_use
    """,
    "an event that has failed already": """
        gate = cl.UserEvent(ctx)
        gate.set_status(-1)
        try:
            inc(q, (N,), None, buffer(), wait_for=[gate]) #: failed_dependency
        except Exception as error:
            assert type(error).__name__ == "DependencyError"
    """,
    "an event that fails later": """
        gate = cl.UserEvent(ctx)
        event = inc(q, (N,), None, buffer(), wait_for=[gate])
        q.flush()
        gate.set_status(-1)
        try:
            event.wait() #: failed_dependency
        except cl.Error:
            pass
    """,
    "memory in cycles": """
        class Plan:
            def __init__(self):
                self.me, self.memory = self, cl.Buffer(ctx, mf.READ_WRITE, 1 << 20) #: left_to_collector

        for _ in range(4):
            Plan()
        gc.collect()
    """,
    "memory in a cycle at the end": """
        class Plan:
            def __init__(self, nbytes):
                self.me, self.memory = self, cl.Buffer(ctx, mf.READ_WRITE, nbytes) #: left_to_collector

        gc.disable()
        Plan(1 << 20)
    """,
    "a map at the end": """
        b = buffer()
        a, _ = cl.enqueue_map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32) #: leak
    """,
    "something that outlives the modules": """
        import builtins

        builtins.kept = [cl.Buffer(ctx, mf.READ_WRITE, 4096)] #: leak
    """,
}

RIGHT = {
    "buffers on the same host memory, one after the other or apart": """
        import clmemlife as cml
        host = cml.aligned_empty((2 * N,), np.int32, ctx)
        for _ in range(20):
            left = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host[:N])
            right = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host[N:])
            whole = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=host)
            events = [inc(q, (N,), None, left), inc(q2, (N,), None, right)]
            q.flush()
            q2.flush()
            inc(q, (2 * N,), None, whole, wait_for=events).wait()
            for b in (left, right, whole):
                b.release()
    """,
    "a user event that a callback sets": """
        gate, b, c = cl.UserEvent(ctx), buffer(), buffer()
        lock = cl.UserEvent(ctx)
        event = cl.enqueue_fill_buffer(q, b, np.int32(1), 0, 4 * N, wait_for=[lock])
        event.set_callback(cl.command_execution_status.COMPLETE, lambda status: gate.set_status(0))
        second = cl.enqueue_fill_buffer(q2, c, np.int32(1), 0, 4 * N, wait_for=[gate])
        q.flush()
        q2.flush()
        lock.set_status(0)
        second.wait()
    """,
    "a clone of a kernel": """
        b, c = buffer(), buffer()
        inc.set_arg(0, b)
        clone = inc.clone()
        clone.set_arg(0, c)
        first = cl.enqueue_nd_range_kernel(q, inc, (N,), None)
        b.release()
        cl.enqueue_nd_range_kernel(q2, clone, (N,), None).wait()
        first.wait()
    """,
    "buffers, sub-buffers and their end": """
        b = buffer()
        part = b[0:1024]
        b.release()
        setval(q, (256,), None, part, np.int32(1)).wait()
        part.release()
        del b, part
        for _ in range(100):
            b = buffer()
            b.release()
            b = buffer()
            inc(q, (N,), None, b)
        q.finish()
    """,
    "an argument whose memory others own": """
        b = buffer()
        inc.set_arg(0, cl.Buffer.from_int_ptr(b.int_ptr))
        cl.enqueue_nd_range_kernel(q, inc, (N,), None).wait()
    """,
    "maps": """
        b = buffer()
        for _ in range(3):
            a, event = map_buffer(q, b, mapf.WRITE, 0, (N,), np.int32, is_blocking=False)
            event.wait()
            a[:] = 3
            a += 1
            assert type(a) is np.ndarray
            a.base.release(q)
            inc(q, (N,), None, b)
            a, _ = map_buffer(q, b, mapf.READ, 0, (N,), np.int32)
            c, _ = map_buffer(q, b, mapf.READ, 0, (N // 2,), np.int32)
            look(q, (N,), None, b, buffer())
            assert (a == 5).all()
            del a, c
        setval(q, (N,), None, b, np.int32(1)).wait()
    """,
    "a map that is waited for otherwise": """
        b = buffer()
        a, _ = map_buffer(q, b, mapf.READ, 0, (N,), np.int32, is_blocking=False)
        q.finish()
        a.sum()
        c, event = map_buffer(q, b, mapf.READ, 0, (N,), np.int32, is_blocking=False)
        while event.command_execution_status != 0:
            q.flush()
        c.sum()
        d, event = map_buffer(q, b, mapf.READ, 0, (N,), np.int32, is_blocking=False)
        cl.enqueue_copy(q, h, b)
        d.sum()
    """,
    "two queues and an event": """
        b = buffer()
        event = setval(q, (N,), None, b, np.int32(1))
        q.flush()
        cl.enqueue_copy(q2, h, b, wait_for=[event])
        setval(loose, (N,), None, b, np.int32(1))
        cl.enqueue_barrier(loose)
        cl.enqueue_copy(loose, h, b)
    """,
    "a callback": """
        b, done = buffer(), threading.Event()
        event = setval(q, (N,), None, b, np.int32(1))
        q.flush()
        event.set_callback(cl.command_execution_status.COMPLETE, lambda status: done.set())
        done.wait()
        cl.enqueue_copy(q2, h, b)
    """,
    "host memory that others keep": """
        gate = cl.UserEvent(ctx)
        memory, whole = cl.SVM(cl.csvm_empty(ctx, N, np.int32)), np.ones(2 * N, np.int32)
        done = cl.enqueue_copy(q, memory, whole[N:], is_blocking=False, wait_for=[gate])
        b = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=whole[:N])
        other = inc(q2, (N,), None, b, wait_for=[gate])
        del b
        gate.set_status(0)
        done.wait()
        other.wait()
    """,
    "copies that do not block": """
        b = buffer()
        event = cl.enqueue_copy(q, h, b, is_blocking=False)
        other = cl.enqueue_copy(q, b, h, is_blocking=False)
        event.wait()
        q.finish()
        del event, other
    """,
    "blocking copies with a buffer on host memory": """
        b = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=h)
        other = np.ones(N, np.int32)
        for _ in range(3):
            cl.enqueue_copy(q, b, other)
            cl.enqueue_copy(q, other, b)
    """,
    "maps of shared virtual memory": """
        memory = cl.SVM(cl.csvm_empty(ctx, N, np.int32))
        for _ in range(3):
            with memory.map_rw(q) as a:
                a[:] = 3
                assert type(a) is np.ndarray
                part = a[3:5]
            inc(q, (N,), None, memory)
            later = memory.map_ro(q, is_blocking=False)
            later.event.wait()
            assert (later.array == 4).all()
            with cl.SVM(memory.mem[N // 2 :]).map_ro(q):
                look(q, (N,), None, memory, buffer())
            assert part.sum() == 8
            assert a.shape == (N,)
            del later
        left, right = memory.mem[: N // 2], memory.mem[N // 2 :]
        one, two = cl.SVM(left).map_rw(q), cl.SVM(right).map_rw(q)
        one.release()
        right[:] = 3
        two.release()
        h[:] = 0
        cl.enqueue_copy(q, h, memory)
        assert h[-1] == 3
    """,
    "fine-grained shared virtual memory": """
        if ctx.devices[0].svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER:
            memory = cl.SVM(cl.fsvm_empty(ctx, N, np.int32))
            with memory.map_rw(q) as a:
                inc(q, (N,), None, memory).wait()
            a[0] = 3
            assert memory.mem[0] == 3
    """,
    "the end of shared virtual memory": """
        gate = cl.UserEvent(ctx)
        flags = cl.svm_mem_flags.READ_WRITE
        memory = cl.SVMAllocation(ctx, 4 * N, 4, flags)
        inc(q, (N,), None, memory).wait()
        memory.release()
        memory = cl.SVMAllocation(ctx, 4 * N, 4, flags)
        event = inc(q, (N,), None, memory, wait_for=[gate])
        q.flush()
        memory.enqueue_release(q2, wait_for=[event])
        memory = cl.SVMAllocation(ctx, 4 * N, 4, flags, queue=q)
        inc(q, (N,), None, memory)
        memory.release()
        gate.set_status(0)
        q.flush()
        q2.finish()
        memory = cl.SVMAllocation(ctx, 4 * N, 4, flags, queue=q)
        inc(q, (N,), None, memory)
        memory.bind_to_queue(q2)
        memory.unbind_from_queue()
        memory.release()
        q.finish()
        for _ in range(3):
            memory = cl.SVMAllocation(ctx, 4 * N, 4, flags)
            inc(q, (N,), None, memory)
            q.finish()
        del memory
    """,
    "little memory in a cycle, and much that a variable leads to": """
        class Plan:
            def __init__(self, nbytes):
                self.me, self.memory = self, cl.Buffer(ctx, mf.READ_WRITE, nbytes)

        gc.disable()
        Plan(1 << 10)
        kept = Plan(1 << 20)
    """,
    "two contexts, each with its own": """
        strangers = cl.Context([device])
        there = cl.CommandQueue(strangers)
        other = cl.Kernel(cl.Program(strangers, SRC).build(), "inc")
        whole = cl.Buffer(strangers, mf.READ_WRITE, 4 * N)
        for b in (whole, whole[0:1024], cl.Buffer.from_int_ptr(whole.int_ptr)):
            other(there, (16,), None, b)
        inc(q, (N,), None, buffer())
        again = cl.Context.from_int_ptr(ctx.int_ptr)
        inc(q, (N,), None, cl.Buffer(again, mf.READ_WRITE, 4 * N))
        there.finish()
        q.finish()
    """,
    "flags for the kernels": """
        look(q, (N,), None, buffer(flags=mf.READ_ONLY), buffer(flags=mf.WRITE_ONLY))
        setval(q, (N,), None, buffer(flags=mf.WRITE_ONLY), np.int32(1))
        q.finish()
    """,
    "host memory that is kept": """
        a = np.zeros(1 << 20, np.int32)
        b = cl.Buffer(ctx, mf.READ_WRITE | mf.USE_HOST_PTR, hostbuf=a)
        setval(q, (1 << 20,), None, b, np.int32(7))
        del a
        q.finish()
    """,
    "blocks of a pool in one queue": """
        from pyopencl.tools import ImmediateAllocator, MemoryPool

        pool = MemoryPool(ImmediateAllocator(q))
        for _ in range(3):
            setval(q, (N,), None, pool.allocate(4 * N), np.int32(1))
        c = pool.allocate(4 * N)
        q.finish()
        setval(q2, (N,), None, c, np.int32(2)).wait()
    """,
    "arrays": """
        import pyopencl.array as cla

        x = cla.arange(q, N, dtype=np.int32)
        y = (x + 2 * x)[3:]
        assert y.get()[0] == 9
        z = cla.zeros(loose, N, np.int32)
        z += 1
        assert z.get().sum() == N
    """,
    "parts that do not overlap": """
        b = buffer(8192)
        setval(q, (N,), None, b[0:4096], np.int32(1))
        setval(q2, (N,), None, b[4096:8192], np.int32(1))
    """,
}


def found(tmp_path: Path, script: str) -> tuple[set[tuple[str, int]], set[tuple[str, int]], dict[str, object]]:
    """Run a script with a sanitizer; return what was found, what should be, and all that was reported."""
    (tmp_path / "prelude.py").write_text(PRELUDE)
    program, out = tmp_path / "program.py", tmp_path / "found.json"
    program.write_text("from prelude import *\n" + textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER.replace("PATHS", repr([str(tmp_path), *sys.path])), str(out), str(program)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "CLMEMLIFE_CHECK": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())
    expected = set()
    for number, line in enumerate(program.read_text().splitlines(), 1):
        expected |= {(kind, number) for kind in re.findall(r"#: (\w+)", line)}
    seen = {(one["kind"], _line(one["site"], program)) for one in told["findings"]}
    seen |= {("leak", _line(one["site"], program)) for one in told["leaks"]}
    return seen, expected, told


def _line(site: str, program: Path) -> int:
    name, _, line = site.rpartition(":")
    assert name == str(program), site
    return int(line)


@pytest.mark.parametrize("name", list(WRONG))
def test_a_mistake_is_reported_at_its_line(name: str, tmp_path: Path, packs_rows: bool, on_intel: bool) -> None:
    if name == "rows of an image map" and packs_rows:
        pytest.skip("here the rows of a map have no pitch to be forgotten")
    if name == "an event of another context" and on_intel:
        pytest.skip("Intel's runtime crashes on it")
    seen, expected, told = found(tmp_path, WRONG[name])
    assert expected, "say where"
    assert seen == expected, told
    for one in told["findings"]:
        assert one["message"]
        assert one["remedy"]


@pytest.mark.parametrize("name", list(RIGHT))
def test_what_is_right_is_silent(name: str, tmp_path: Path) -> None:
    seen, expected, told = found(tmp_path, RIGHT[name])
    assert expected == set()
    assert seen == set(), told
