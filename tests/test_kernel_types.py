"""Arguments of the wrong kind: refused before the driver wherever the program tells what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.cltypes
import pytest

import clmemlife as cml
from clmemlife import In, InOut, MemHandle, _kernel_args, _kernel_types
from clmemlife._kernel_types import ASSUMED, Parameter, parameter

SOURCE = """
typedef struct { int a; float b; } node;
typedef int number;
__kernel void ints(__global int *x, int v, long w) { x[0] = v + (int) w; }
__kernel void floats(__global float *x, float v) { x[0] = v; }
__kernel void vectors(__global float *x, float4 v, int3 w) { x[0] = v.x + w.x; }
__kernel void tile(__global int *x, __local int *t, __constant int *c) { t[0] = c[0]; x[0] = t[0]; }
__kernel void unknown(__global node *x, node v, number w) { x[0] = v; x[0].a = w; }
__kernel void paint(write_only image2d_t x, __global int *y) { write_imagef(x, (int2)(0, 0), (float4)(y[0])); }
"""
GRID = (1,)
FROM_INFO = _kernel_args._from_info


@pytest.fixture(scope="module", params=["the driver", "the text"])
def make(request: pytest.FixtureRequest, context: cl.Context) -> Iterator[Callable[[str], cl.Kernel]]:
    """Make kernels of a program that is known by what the driver tells, or by its text."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "the text":
            patch.setattr(_kernel_args, "_from_info", lambda *_: None)
        images = all(device.image_support for device in context.devices)
        source = SOURCE if images else SOURCE[: SOURCE.index("__kernel void paint")]
        program = cl.Program(context, source).build(["-cl-kernel-arg-info"])
        yield lambda name: cl.Kernel(program, name)


@pytest.fixture
def field(context: cl.Context) -> Iterator[MemHandle]:
    with MemHandle.create_buffer(context, 4096, label="field") as handle:
        yield handle


INT, LONG = np.int32(1), np.int64(1)
CASES: list[tuple[str, Callable[[Any], tuple[Any, ...]], str]] = [
    ("ints", lambda h: (h, INT, h), r"argument 2 .*'ints' .*'long w'.*int64 or numpy.uint64, not MemHandle .*'field'"),
    ("ints", lambda h: (h, INT, In(h)), r"'long w'.*MemHandle"),
    ("ints", lambda h: (h, INT, h.mem), r"'long w'.*not Buffer"),
    ("ints", lambda h: (h, INT, cl.LocalMemory(8)), r"'long w'.*LocalMemory"),
    ("ints", lambda h: (h, INT, None), r"'long w'.*NoneType"),
    ("ints", lambda h: (h, LONG, LONG), r"argument 1 .*'int v'.*numpy.int32 or numpy.uint32, not int64"),
    ("ints", lambda h: (h, np.float32(1), LONG), r"'int v'.*not float32"),
    ("ints", lambda h: (h, b"12345678", LONG), r"'int v'.*not bytes of 8 bytes"),
    ("ints", lambda h: (h, np.zeros(2, np.int32), LONG), r"'int v'.*not ndarray"),
    (
        "ints",
        lambda h: (INT, INT, LONG),
        r"argument 0 .*'global int \*x'.*MemHandle.* SVM, or None .a null pointer., not int32",
    ),
    ("ints", lambda h: (5, INT, LONG), r"'global int \*x'.*not int 5"),
    ("ints", lambda h: (b"12345678", INT, LONG), r"'global int \*x'.*not bytes"),
    ("ints", lambda h: (np.zeros(4, np.int32), INT, LONG), r"'global int \*x'.*not ndarray"),
    ("ints", lambda h: (np.int64(h.int_ptr), INT, LONG), r"'global int \*x'.*not int64"),
    ("ints", lambda h: (cl.LocalMemory(64), INT, LONG), r"'global int \*x'.*not LocalMemory"),
    ("floats", lambda h: (h, np.float64(1)), r"argument 1 .*'float v'.*numpy.float32, not float64"),
    ("floats", lambda h: (h, INT), r"'float v'.*not int32"),
    ("vectors", lambda h: (h, np.float32(1), cl.cltypes.make_int3(1, 2, 3)), r"'float4 v'.*16 bytes.*not float32"),
    ("vectors", lambda h: (h, cl.cltypes.make_float4(1, 0, 0, 0), cl.cltypes.make_int2(1, 2)), r"'int3 w'.*16 bytes"),
    ("tile", lambda h: (h, h, h), r"argument 1 .*'local int \*t'.*LocalMemory\(bytes\), not MemHandle"),
    ("tile", lambda h: (h, None, h), r"'local int \*t'.*not NoneType"),
    ("tile", lambda h: (h, INT, h), r"'local int \*t'.*not int32"),
    ("tile", lambda h: (h, cl.LocalMemory(64), INT), r"'constant int \*c'.*not int32"),
    ("tile", lambda h: (h, cl.LocalMemory(64), cl.LocalMemory(64)), r"'constant int \*c'.*not LocalMemory"),
]


@pytest.mark.parametrize(("name", "args", "text"), CASES)
def test_an_argument_of_the_wrong_kind_is_refused_before_the_driver(queue, make, field, name, args, text, monkeypatch):
    monkeypatch.setattr(cml._opencl, "enqueue_nd_range_kernel", lambda *_: pytest.fail("it was enqueued"))
    with pytest.raises(TypeError, match=text):
        cml.enqueue_kernel(queue, make(name), GRID, None, *args(field))


def test_a_queue_is_no_argument(queue, make, field):
    with pytest.raises(TypeError, match="not CommandQueue"):
        cml.enqueue_kernel(queue, make("ints"), GRID, None, queue, INT, LONG)


def test_what_fits_is_taken(queue, make, field):
    local = cl.LocalMemory(64)
    vector = cl.cltypes.make_float4(2, 0, 0, 0)
    for name, args in [
        ("ints", (field, INT, LONG)),
        ("ints", (InOut(field), np.uint32(1), np.uint64(1))),
        ("ints", (field.mem, np.intc(1), np.longlong(1))),
        ("ints", (field, np.array(1, np.int32), b"\0" * 8)),
        ("ints", (field, memoryview(b"\0" * 4), np.timedelta64(1, "s"))),
        ("floats", (field, np.float32(1))),
        ("vectors", (field, vector, cl.cltypes.make_int3(1, 2, 3))),
        ("vectors", (field, np.zeros(4, np.float32), np.zeros(4, np.int32))),
        ("tile", (field, local, In(field))),
    ]:
        cml.enqueue_kernel(queue, make(name), GRID, None, *args)
    queue.finish()


def test_what_is_not_known_is_left_to_the_driver(context, queue, make, field):
    kernel = make("unknown")
    node = np.array([(3, 1.5)], np.dtype([("a", np.int32), ("b", np.float32)]))[0]
    assert [one.accepts is None for one in _kernel_args.parameters(kernel)[1:]] == [True, True]
    cml.enqueue_kernel(queue, kernel, GRID, None, field, node, np.int32(7))
    result = np.empty(2, np.int32)
    cml.enqueue_copy(queue, result, field)
    assert result[0] == 7


def test_images_and_buffers_are_told_apart(context, queue, make, field):
    if not all(device.image_support for device in context.devices):
        pytest.skip("no images")
    kernel = make("paint")
    rgba = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
    with (
        MemHandle.create_image(context, (8, 4), rgba, label="flat") as flat,
        MemHandle.create_image(context, (8, 4, 2), rgba, label="deep") as deep,
    ):
        for args, text in [
            ((field, field), r"image2d_t x'.*of such an image, not MemHandle .*'field'"),
            ((deep, field), r"image2d_t x'.*'deep'"),
            ((deep.mem, field), r"image2d_t x'"),
            ((None, field), r"image2d_t x'.*NoneType"),
            ((flat, flat), r"'global int \*y'.*'flat'"),
        ]:
            with pytest.raises(TypeError, match=text):
                cml.enqueue_kernel(queue, kernel, GRID, None, *args)
        cml.enqueue_kernel(queue, kernel, GRID, None, flat, field).wait()


def test_a_mistake_changes_nothing_for_the_next_launch(queue, make, field):
    kernel = make("ints")
    with pytest.raises(TypeError):
        cml.enqueue_kernel(queue, kernel, GRID, None, field, INT, field)
    cml.enqueue_kernel(queue, kernel, GRID, None, field, np.int32(5), LONG)
    result = np.empty(1024, np.int32)
    cml.enqueue_copy(queue, result, field)
    assert result[0] == 6


@pytest.mark.parametrize(
    ("name", "size", "scalar"),
    [
        ("char", 1, np.int8), ("uchar", 1, np.uint8), ("unsigned char", 1, np.uint8), ("short int", 2, np.int16),
        ("unsigned", 4, np.uint32), ("int unsigned", 4, np.uint32), ("signed", 4, np.int32), ("long int", 8, np.int64),
        ("unsigned long int", 8, np.uint64), ("ulong", 8, np.uint64), ("half", 2, np.float16), ("half", 2, np.uint16),
        ("double", 8, np.float64), ("float3", 16, None), ("uchar16", 16, None), ("double2", 16, None),
    ],
)  # fmt: skip
def test_sizes_of_the_types_of_opencl_c(name, size, scalar):
    found = parameter(ASSUMED, "", name, f"{name} v")
    assert found.size == size
    assert scalar is None or scalar in found.accepts


@pytest.mark.parametrize(
    "name",
    ["bool", "size_t", "real", "struct node", "long long", "unsigned float", "float5", "", "event_t", "queue_t",
     "image2d_depth_t", "signed unsigned", "char int", "void"],
)  # fmt: skip
def test_other_types_are_not_known(name):
    assert parameter(ASSUMED, "", name, f"{name} v") == Parameter(ASSUMED)


@pytest.mark.parametrize(
    ("before", "text", "options"),
    [
        ("#define float double", "float v", ""),
        ("", "float v", "-Dfloat=double"),
        ('#include "types.h"', "float v", ""),
        ("#  include <types.h>", "__global float *v", ""),
        ("#define global", "global float *v", ""),
        ("typedef float real;", "real v", ""),
        ("", "__global float **v", ""),
        ("", "float *v", ""),
        ("", "__global float v[]", ""),
    ],
)
def test_text_that_proves_no_type_leaves_it_unknown(before, text, options):
    found = _kernel_args.parameters_from_source(f"{before}\n__kernel void f({text}) {{}}", "f", 1, options)
    assert found is None or found[0].accepts is None


def test_two_texts_of_one_kernel_must_agree_on_a_type():
    source = "#ifdef X\nkernel void f(float v) {}\n#else\nkernel void f(double v) {}\n#endif"
    assert _kernel_args.parameters_from_source(source, "f", 1) == (Parameter(ASSUMED),)


def test_a_kernel_is_asked_once(make, queue, field, monkeypatch):
    kernel = make("floats")
    cml.enqueue_kernel(queue, kernel, GRID, None, field, np.float32(1))
    monkeypatch.setattr(_kernel_types, "check", lambda *_: pytest.fail("what fits needs no second look"))
    monkeypatch.setattr(_kernel_args, "_from_info", lambda *_: pytest.fail("asked twice"))
    cml.enqueue_kernel(queue, kernel, GRID, None, field, np.float32(1)).wait()


@pytest.mark.parametrize(
    ("space", "type_name", "declared"),
    [
        ("GLOBAL", "int*", "global int *x"),
        ("GLOBAL", "int *", "global int *x"),
        ("LOCAL", "float4*", "local float4 *x"),
        ("GLOBAL", "__write_only image2d_t", "image2d_t x"),
        ("GLOBAL", "image_of_a_new_kind_t", ""),
        ("GLOBAL", "pointer_by_typedef", ""),
        ("PRIVATE", "unsigned int", "unsigned int x"),
        ("PRIVATE", "struct node", ""),
    ],
)
def test_what_drivers_call_a_type(space, type_name, declared):
    info, spaces = cl.kernel_arg_info, cl.kernel_arg_address_qualifier
    answers = {
        info.ACCESS_QUALIFIER: cl.kernel_arg_access_qualifier.NONE, info.TYPE_QUALIFIER: 0, info.NAME: "x",
        info.ADDRESS_QUALIFIER: getattr(spaces, space), info.TYPE_NAME: type_name,
    }  # fmt: skip

    class Kernel:
        def get_arg_info(self, index, what):
            return answers[what]

    (found,) = FROM_INFO(Kernel(), 1)
    assert found.declared == declared
    assert (found.accepts is None) == (not declared)
