"""A product whose precision is the caller's to choose, one that is exact already, and one that is no kernel's."""

import triton
import triton.language as tl


@triton.jit
def chosen(left, right, out, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """left, right, out [SIZE, SIZE]; grid (1,)."""
    row = tl.arange(0, SIZE)
    place = row[:, None] * SIZE + row[None, :]
    a, b = tl.load(left + place), tl.load(right + place)
    told = tl.dot(a, b, input_precision=PRECISION)
    tl.store(out + place, tl.dot(told, b, allow_tf32=False))


def outside(a, b):
    """No kernel: whoever calls it from one decides."""
    return tl.dot(a, b)
