"""Parts of the delta rule in chunks as Triton device functions; notation and bounds as in `delta_chunks`.

Chunks are short (C = 16 tokens), so that what a token reads of earlier ones of its chunk is summed element by element:
every exponent is a sum of log decays, never a difference of two sums, whatever the decay. Products of a chunk's own
small matrices are exact float32 (`ieee`); a state that is carried from chunk to chunk goes through `tf32x3`, which is
as good and runs on matrix units.
"""

import triton
import triton.language as tl

NORM_EPS = tl.constexpr(1e-6)


@triton.jit
def inverse_lengths(x):
    """1 / length of the rows of x [rows, columns], NORM_EPS added to the squared length."""
    return 1.0 / tl.sqrt(tl.sum(x * x, axis=1) + NORM_EPS)


@triton.jit
def decayed(keys, g, C: tl.constexpr):
    """decay(i, j) keys_j for j <= i, 0 elsewhere: [C, C, columns] of keys and g [C, columns]."""
    i = tl.arange(0, C)
    later = (i[:, None] > i[None, :])[:, :, None]
    spans = tl.cumsum(tl.where(later, g[:, None, :], 0.0), axis=0)
    reached = (i[:, None] >= i[None, :])[:, :, None]
    return tl.where(reached, tl.exp(spans) * keys[None, :, :], 0.0)


@triton.jit
def unit_lower_inverse(t, LEVELS: tl.constexpr):
    """(I + t)^-1 of a strictly lower triangular t of 2^LEVELS rows: inverses of its diagonal blocks of 1, 2, 4, ...
    rows, each from two of the one before and what lies below between them.
    """
    i = tl.arange(0, 1 << LEVELS)
    x = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for level in tl.static_range(LEVELS):
        between = ((i[:, None] >> level) ^ (i[None, :] >> level)) == 1
        below = tl.dot(tl.where(between, t, 0.0), x, input_precision="ieee")
        x -= tl.dot(x, below, input_precision="ieee")
    return x
