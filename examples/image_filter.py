"""The edges in a photograph, found by a Sobel filter on images.

You learn: an image is made, filled and mapped like a buffer, with pixels in the place of bytes; the rows of a mapped
image are as long as the driver likes, and the array has the strides for that. The photograph is one that Matplotlib
ships, of Grace Hopper. ``python examples/image_filter.py edges.png`` also saves what was found.

Prints::

    600 rows of 512 pixels, ... bytes from one row to the next
    the edges agree with NumPy
    0 objects alive
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pyopencl as cl

import clmemlife as cml
from clmemlife import In, MapFlags, Mapping, MemFlags, MemHandle, Out

SOURCE = """
constant sampler_t pixel = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
#define AT(dx, dy) convert_int4(read_imageui(picture, pixel, (int2)(x + dx, y + dy)))

kernel void sobel(read_only image2d_t picture, write_only image2d_t edges) {
  int x = get_global_id(0), y = get_global_id(1);
  int4 across = AT(1, -1) + 2 * AT(1, 0) + AT(1, 1) - AT(-1, -1) - 2 * AT(-1, 0) - AT(-1, 1);
  int4 down = AT(-1, 1) + 2 * AT(0, 1) + AT(1, 1) - AT(-1, -1) - 2 * AT(0, -1) - AT(1, -1);
  write_imageui(edges, (int2)(x, y), (uint4)(min(abs(across) + abs(down), 255u).xyz, 255));
}
"""


def sobel(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    p = np.pad(picture.astype(np.int32), ((1, 1), (1, 1), (0, 0)), "edge")
    rows, columns = p[:-2] + 2 * p[1:-1] + p[2:], p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
    edges = np.minimum(abs(rows[:, 2:] - rows[:, :-2]) + abs(columns[2:] - columns[:-2]), 255)
    edges[..., 3] = 255
    return edges


def main() -> None:
    try:
        from matplotlib.cbook import get_sample_data
        from PIL import Image

        context = cl.create_some_context(interactive=False)
    except (ImportError, cl.Error) as error:
        sys.exit(f"needs an OpenCL device and Matplotlib: {error}")
    if not context.devices[0].image_support:
        sys.exit(f"needs a device with images: {context.devices[0].name} has none")
    queue = cl.CommandQueue(context)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "sobel")
    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as photograph:
        picture = np.array(photograph.convert("RGBA"))
    size = picture.shape[1], picture.shape[0]  # OpenCL counts columns first
    rgba = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)

    with (
        MemHandle.create_image(context, size, rgba, MemFlags.READ_ONLY, label="picture") as source,
        MemHandle.create_image(context, size, rgba, MemFlags.WRITE_ONLY, label="edges") as edges,
    ):
        filled = cml.enqueue_copy(queue, source, picture, origin=(0, 0), region=size, is_blocking=False)
        found = cml.enqueue_kernel(queue, kernel, size, None, In(source), Out(edges), wait_for=filled)
        with Mapping(queue, edges, MapFlags.READ, wait_for=found) as mapped:
            print(f"{size[1]} rows of {size[0]} pixels, {mapped.array.strides[0]} bytes from one row to the next")
            np.testing.assert_array_equal(mapped.array, sobel(picture))
            print("the edges agree with NumPy")
            if len(sys.argv) > 1:
                Image.fromarray(mapped.copy()).save(sys.argv[1])
    print(f"{len(cml.live())} objects alive")


if __name__ == "__main__":
    main()
