"""What the text of a kernel does with its arguments."""

from __future__ import annotations

import pytest

from clmemlife.diagnostics.interception._kernel_text import uses

BODIES = {
    "x[get_global_id(0)] = 1;": "write",
    "x[idx[3]].s0 = 1;": "write",
    "*x = 3;": "write",
    "x->member = 3;": "write",
    "vstore4(v, 0, x);": "write",
    "x[0] += 1;": "update",
    "++x[0];": "update",
    "x[1]--;": "update",
    "x[1] = x[0];": "update",
    "atomic_add(&x[0], 1);": "update",
    "*x = 2; x++;": "update",
    "int y = x[0] == 3 && x[1] >= 2;": "read",
    "y[0] = 3 * *x;": "read",
    "vstore4(vload4(0, x), 0, y);": "read",
    "if (y[0]) y[0] = x[x[1]];": "read",
    ";": "read",
    "/* x[0] = 3; */ // x[0] = 3;\n": "read",
    "helper(x);": "unclear",
    "x++;": "unclear",
    "global int *z = y; int *p = &x[0];": "unclear",
    "OUT = 3;": "unclear",
    "global int *z = (global int *) ((global char *) x + 4); y[0] = z[0];": "read",
    "global int *z = (global int *) ((global char *) x + 4); z[0] = y[0];": "write",
}


@pytest.mark.parametrize("body", list(BODIES))
def test_what_a_body_does_with_a_pointer(body: str) -> None:
    source = f"#define OUT x[0]\n__kernel void k(__global int *y, __global int *x) {{ {body} }}"
    if "OUT" not in body:
        source = source.partition("\n")[2]
    assert uses(source, "k")[1] == BODIES[body]


MACROS = {
    "#define IDX(x) ((x) * 2)\n y[0] = x[IDX(3)];": "read",
    "#define IDX(x) ((x) * 2)\n y[IDX(1)] = (IDX(2)) * x[IDX(3)];": "read",
    "#define IDX(x, y) \\\n ((x) * \\\n 2 + y)\n x[IDX(3, 1)] = y[0];": "write",
    "#define NOTHING() 3\n y[NOTHING()] = x[0];": "read",
    "#define IDX (x)\n y[0] = x[IDX - x];": "unclear",
    "#define PUT(i) x[i] = 1\n PUT(0);": "unclear",
    "#define PUT(i) \\\n x[i] = 1\n PUT(0);": "unclear",
    "#define SET(x, v) x = v\n SET(x[0], 3);": "unclear",
    "#define SET(a, v) a = v\n SET(((x[0])), 3);": "unclear",
    "#define SET(a, v) a = v\n#define DO SET\n DO (x[0], (3));": "unclear",
    "#define SET(a, v) a = v\n global int *z = x + 4; SET(z[0], 3);": "unclear",
    "#define PASTE(i, x) i##x[0] = 1\n PASTE(, x);": "unclear",
}


@pytest.mark.parametrize("text", list(MACROS))
def test_the_parameters_of_a_macro_are_not_those_of_the_kernel(text: str) -> None:
    macros, _, body = text.rpartition("\n")
    assert uses(f"{macros}\n__kernel void k(__global int *y, __global int *x) {{ {body} }}", "k")[1] == MACROS[text]


def test_a_kernel_that_is_not_there_once_says_nothing() -> None:
    assert uses("kernel void other(global int *x) {}", "k") == ()
    assert uses("kernel void k(global int *x) {} kernel void k(global int *x, int y) {}", "k") == ()
    assert uses("", "k") == ()
