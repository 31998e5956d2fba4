"""Triton kernels for tests: they have to lie in a file."""

from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(2)


@triton.jit
def doubled(x):
    return x * FACTOR


@triton.jit
def product(x, y, out, N: tl.constexpr, PRECISION: tl.constexpr):
    """out = x @ y, all [N, N]."""
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + place, tl.dot(tl.load(x + place), tl.load(y + place), input_precision=PRECISION))


@triton.jit
def default_product(x, y, out, N: tl.constexpr):
    """The same with the precision that Triton takes by itself."""
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + place, tl.dot(tl.load(x + place), tl.load(y + place)))


@triton.jit
def chain(m, s, out, steps, N: tl.constexpr):
    """state = m[i] @ state, then + s[i]; the second product, by the identity in effect, is exact."""
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    state = tl.zeros([N, N], tl.float32)
    for step in range(steps):
        at = step.to(tl.int64) * N * N
        state = tl.dot(tl.load(m + at + place), state)
        state += tl.dot(tl.load(s + at + place), tl.where(place % (N + 1) == 0, 1.0, 0.0), input_precision="ieee")
    tl.store(out + place, state)


@triton.jit
def rows(x, out, n, BLOCK: tl.constexpr):
    """out = 2 x + 1 over n elements, blocks in turn: a loop from a bound to another, masks, a device function."""
    first = tl.program_id(0) * BLOCK * 2
    for start in range(first, tl.minimum(first + BLOCK * 2, n), BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(x + place, mask=place < n, other=0.0)
        if start.to(tl.float32) >= 0.0:
            value = doubled(value) + 1
        tl.store(out + place, value, mask=place < n)


@triton.jit
def mixed(x, y, out, flags, N: tl.constexpr):
    """Arithmetic, comparison, selection and conversion in the type of x."""
    place = tl.arange(0, N)
    a, b = tl.load(x + place), tl.load(y + place)
    bigger = a > b
    tl.store(out + place, tl.where(bigger, a * b + a, a - b))
    tl.store(flags + place, bigger.to(flags.dtype.element_ty))


@triton.jit
def summed(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), axis=0))


@triton.jit
def assembled(x, out, N: tl.constexpr):
    place = tl.arange(0, N)
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + place)], tl.float32, True, 1)
    tl.store(out + place, value)


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n) + BLOCK, mask=place < n)


@triton.jit
def failing(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), tl.arange(0, N // 2).to(tl.float32))
