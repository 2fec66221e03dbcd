"""How a kernel uses its arguments, read from its text: never "read" for what could be written."""

from __future__ import annotations

import time

import pyopencl as cl
import pytest

from clmemlife import _kernel_args
from clmemlife._kernel_args import parameters_from_source
from clmemlife._kernel_types import ASSUMED, READ, WRITE, Parameter


def seen(found: tuple[Parameter, ...] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(one.mode for one in found)


def modes_from_source(source: str, name: str, count: int, options: str = "") -> tuple[str, ...] | None:
    return seen(parameters_from_source(source, name, count, options))


def modes(parameters: str, count: int, *, before: str = "", options: str = "") -> tuple[str, ...] | None:
    return modes_from_source(f"{before}\n__kernel void f({parameters}) {{ }}", "f", count, options)


@pytest.mark.parametrize(
    "parameter",
    [
        "__global const float *x",
        "global const float *x",
        "const __global float *x",
        "__global float const *x",
        "__global const float* restrict x",
        "const global float * const restrict x",
        "__global const volatile uint4 *x",
        "__global const uchar16 *x",
        "__global const unsigned int *x",
        "__constant float *x",
        "constant int *x",
        "__global\n    const\n    int *\n    x",
        "__global const int *x /* written, says a comment that is wrong */",
        "__global /* here */ const // and here\n int *x",
        "__global const \\\n int *x",
        "__global con\\\nst int *x",
        "__global const void *x",
        "__global const half *x",
        "__global const size_t *x",
    ],
)
def test_a_pointer_to_const_or_constant_memory_is_read(parameter: str) -> None:
    assert modes(parameter, 1) == (READ,)


@pytest.mark.parametrize(
    "parameter",
    [
        "__global float *x",
        "__global float * const x",
        "__global float * const restrict x",
        "__global float *const_x",
        "__global float *x /* const */",
        "__global float *x // const\n",
        "__global float /* const */ *x",
        "__global float // const \\\n const\n *x",
        "__local float *x",
        "__global int * const *x",
        "__global const int * const * x",
        "__global const int x[]",
        "const int x",
        "uint x",
        "real const *x",
        "__global const real *x",
        "__global T *x",
        "struct config c",
        "__global image_t *image",
        "__global int *image",
        "__global int *constant_table",
        "__global int *read_only_data",
        "__global int *image __attribute__((unused))",
        "MAYBE_CONST float *x",
        "__global ARG(const) float *x",
    ],
)
def test_anything_else_is_never_taken_for_read_alone(parameter: str) -> None:
    assert modes(parameter, 1) == (ASSUMED,)


@pytest.mark.parametrize(
    ("parameter", "mode"),
    [
        ("read_only image2d_t image", READ),
        ("__read_only image3d_t image", READ),
        ("image2d_t image", READ),
        ("write_only image2d_t image", WRITE),
        ("__write_only image1d_buffer_t image", WRITE),
        ("write_only image2d_array_t out", WRITE),
        ("read_write image2d_t image", ASSUMED),
        ("__read_write image3d_t image", ASSUMED),
        ("read_only image2d_depth_t image", ASSUMED),
        ("sampler_t sampler", ASSUMED),
    ],
)
def test_the_qualifier_of_an_image_says_it(parameter: str, mode: str) -> None:
    assert modes(parameter, 1) == (mode,)


@pytest.mark.parametrize(
    "before",
    [
        "#define __constant __global",
        "#define constant global",
        "#  define   __constant   __global",
        "#ifdef SLOW\n#define __constant __global const\n#else\n#define __constant __global\n#endif",
        "#def\\\nine __constant __global",
        "#define /* c */ __constant __global",
    ],
)
def test_a_redefined_address_space_proves_nothing(before: str) -> None:
    assert modes("__constant float *x", 1, before=before) == (ASSUMED,)


def test_a_redefined_image_qualifier_proves_nothing() -> None:
    assert modes("__read_only image2d_t x", 1, before="#define __read_only __write_only") == (ASSUMED,)
    assert modes("read_only image2d_t x", 1, before="#define read_only") == (ASSUMED,)


@pytest.mark.parametrize("before", ["#define const", "#define __kernel kernel", "#define f g"])
def test_a_macro_that_could_change_everything_leaves_nothing_known(before: str) -> None:
    assert modes("__global const int *x", 1, before=before) is None


@pytest.mark.parametrize("options", ["-Dconst=", "-D const=", "-cl-mad-enable -D const -DN=3"])
def test_a_macro_from_the_build_options_counts_too(options: str) -> None:
    assert modes("__global const int *x", 1, options=options) is None


def test_a_macro_as_type_leaves_that_argument_open_and_the_others_known() -> None:
    parameters = "__global const real *x, __global const int *y, int n"
    assert modes(parameters, 3, before="#define real float") == (ASSUMED, READ, ASSUMED)
    assert modes(parameters, 3, options="-Dreal=float") == (ASSUMED, READ, ASSUMED)


def test_a_typedef_is_not_looked_through() -> None:
    assert modes("const pointer x", 1, before="typedef __global float *pointer;") == (ASSUMED,)
    assert modes("__global const node *x", 1, before="typedef struct { int a; } node;") == (ASSUMED,)


def test_a_conditional_inside_the_parameters_leaves_its_argument_open() -> None:
    parameters = "\n#ifdef INPLACE\n__global int *x\n#else\n__global const int *x\n#endif\n, __global const int *y"
    assert modes(parameters, 2) == (ASSUMED, READ)


def test_two_versions_that_differ_leave_all_open() -> None:
    source = """
#ifdef INPLACE
__kernel void f(__global int *x) {}
#else
__kernel void f(__global const int *x) {}
#endif
"""
    assert modes_from_source(source, "f", 1) is None


def test_two_versions_that_agree_are_taken() -> None:
    source = "__kernel void f(__global const int *x);\n__kernel void f(__global const int *x) { }"
    assert modes_from_source(source, "f", 1) == (READ,)


def test_a_wrong_number_of_parameters_leaves_all_open() -> None:
    assert modes("__global const int *x", 2) is None
    assert modes("PARAMETERS", 2, before="#define PARAMETERS __global const int *x, int n") is None


@pytest.mark.parametrize(
    "head",
    [
        "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void",
        "__attribute__((reqd_work_group_size(64, 1, 1))) kernel void",
        "kernel void __attribute__((vec_type_hint(float4)))",
        "__kernel __attribute__((vec_type_hint(float4))) __attribute__((reqd_work_group_size(WG, 1, 1))) void",
        '#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n__attribute__((annotate("a (b"))) __kernel void',
    ],
)
def test_attributes_do_not_hide_a_kernel(head: str) -> None:
    assert modes_from_source(f"{head} f(__global const int *x) {{ }}", "f", 1) == (READ,)


def test_a_longer_name_is_another_kernel() -> None:
    source = "__kernel void f_all(__global const int *x) {} __kernel void f(__global int *x) {}"
    assert modes_from_source(source, "f", 1) == (ASSUMED,)
    assert modes_from_source(source, "all", 1) is None


def test_a_call_of_the_name_is_no_kernel() -> None:
    source = "void f(__global const int *x); __kernel void g(__global int *x) { f((__global const int *) x); }"
    assert modes_from_source(source, "f", 1) is None


def test_a_comment_mark_inside_a_string_hides_no_code() -> None:
    source = """
__kernel void f(__global const int *x) { printf("/*"); }
#undef ONE
__kernel void f(__global int *x) { printf("*/ // "); }
"""
    assert modes_from_source(source, "f", 1) is None


def test_a_commented_out_kernel_is_no_kernel() -> None:
    source = "/* __kernel void f(__global const int *x) {} */\n__kernel void f(__global int *x) {}"
    assert modes_from_source(source, "f", 1) == (ASSUMED,)


def test_a_kernel_made_by_a_macro_is_not_known() -> None:
    made = "#define MAKE(name, T) __kernel void name(__global const T *x) {}\nMAKE(f, int)"
    assert modes_from_source(made, "f", 1) is None
    chosen = "#define MAKE(SPACE) __kernel void f(__global SPACE int *x) {}\nMAKE(const)"
    assert modes_from_source(chosen, "f", 1) == (ASSUMED,)


def test_no_text_says_nothing() -> None:
    assert modes_from_source("", "f", 1) is None


def test_kernels_as_people_write_them() -> None:
    source = """
// Tiled matrix product
#define TS 16
#define WIDTH (TS * 2)
typedef float2 complex_t;
__kernel __attribute__((reqd_work_group_size(TS, TS, 1)))
void gemm(const int M, const int N, const int K,
          const __global float* restrict A,   // M x K
          const __global float* restrict B,   // K x N
          __global float* C, __local float *tile)
{ __local float a[TS][TS]; C[0] = A[0] * B[0]; }

kernel void fft(global complex_t *data, constant float *twiddles, const uint n, local float2 *scratch) {}

__kernel void blur(__read_only image2d_t src, __write_only image2d_t dst, sampler_t s, __constant float *weights) {}

__kernel void reduce(__global const double4 *input, __global double *partial,
                     __local double *shared, const unsigned int count) {}
"""
    other = ASSUMED
    assert modes_from_source(source, "gemm", 7) == (other, other, other, READ, READ, other, other)
    assert modes_from_source(source, "fft", 4) == (other, READ, other, other)
    assert modes_from_source(source, "blur", 4) == (READ, WRITE, other, READ)
    assert modes_from_source(source, "reduce", 4) == (READ, other, other, other)


def test_a_long_source_is_read_in_reasonable_time() -> None:
    source = "".join(
        f"kernel __attribute__((a(1))) __attribute__((b(2))) void k{n}(__global const int *x, int n) {{ if (n) {{}} }}"
        for n in range(3000)
    )
    start = time.process_time()
    assert modes_from_source(source, "k2999", 2) == (READ, ASSUMED)
    assert modes_from_source(source + "kernel " * 3000, "missing", 2) is None
    assert time.process_time() - start < 5.0


# -- with a device: the driver's own word where it has one, else the text ------------------------------------------

TWO = "__kernel void f(__global const int *x, __global int *y, __constant int *z, int n) { y[0] = x[0] + z[0] + n; }"


def test_the_drivers_argument_information_is_used(context: cl.Context) -> None:
    kernel = cl.Kernel(cl.Program(context, TWO).build(["-cl-kernel-arg-info"]), "f")
    assert seen(_kernel_args._from_info(kernel, 4)) == (READ, ASSUMED, READ, ASSUMED)
    assert seen(_kernel_args.parameters(kernel)) == (READ, ASSUMED, READ, ASSUMED)


def test_the_text_is_used_where_the_driver_knows_nothing(context: cl.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernel_args, "_from_info", lambda kernel, count: None)
    program = cl.Program(context, TWO).build()
    kernel = cl.Kernel(program, "f")
    assert seen(_kernel_args.parameters(kernel)) == (READ, ASSUMED, READ, ASSUMED)


def test_build_options_reach_the_reading_of_the_text(context: cl.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernel_args, "_from_info", lambda kernel, count: None)
    source = "__kernel void f(__global const real *x, __global real *y) { y[0] = x[0]; }"
    program = cl.Program(context, source).build(["-Dreal=float"])
    kernel = cl.Kernel(program, "f")
    assert seen(_kernel_args.parameters(kernel)) == (ASSUMED, ASSUMED)


def test_a_program_from_a_binary_has_no_text_and_is_assumed_to_do_anything(
    context: cl.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_kernel_args, "_from_info", lambda kernel, count: None)
    built = cl.Program(context, TWO).build()
    binaries = built.get_info(cl.program_info.BINARIES)
    program = cl.Program(context, context.devices, binaries).build()
    kernel = cl.Kernel(program, "f")
    assert seen(_kernel_args.parameters(kernel)) == (ASSUMED,) * 4


def test_both_ways_agree_on_const_in_every_place(context: cl.Context) -> None:
    source = """
__kernel void f(__global const int *a, const __global int *b, __global int const *c, __global int * const d,
                __constant int *e, __global int *f_, __local int *g, const int h) { d[0] = a[0]; }
"""
    kernel = cl.Kernel(cl.Program(context, source).build(["-cl-kernel-arg-info"]), "f")
    from_text = modes_from_source(source, "f", 8)
    assert from_text == (READ, READ, READ, ASSUMED, READ, ASSUMED, ASSUMED, ASSUMED)
    assert seen(_kernel_args._from_info(kernel, 8)) == from_text


def test_images_from_the_driver(context: cl.Context) -> None:
    source = """
__kernel void f(__read_only image2d_t a, __write_only image2d_t b, __global int *c) {
  const sampler_t s = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  write_imagef(b, (int2)(0, 0), read_imagef(a, s, (int2)(0, 0)));
}
"""
    kernel = cl.Kernel(cl.Program(context, source).build(["-cl-kernel-arg-info"]), "f")
    assert seen(_kernel_args._from_info(kernel, 3)) == (READ, WRITE, ASSUMED)


def test_what_a_kernel_was_asked_is_kept_with_it(context: cl.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cl.Kernel(cl.Program(context, TWO).build(), "f")
    first = _kernel_args.parameters(kernel)
    monkeypatch.setattr(_kernel_args, "_from_info", lambda *_: pytest.fail("asked twice"))
    assert _kernel_args.parameters(kernel) is first
