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


def test_a_kernel_that_is_not_there_once_says_nothing() -> None:
    assert uses("kernel void other(global int *x) {}", "k") == ()
    assert uses("kernel void k(global int *x) {} kernel void k(global int *x, int y) {}", "k") == ()
    assert uses("", "k") == ()
