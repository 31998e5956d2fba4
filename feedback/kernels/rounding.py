"""How hardware rounds, in numpy: what narrow types and tensor cores keep of a float32.

All functions take and give float32 arrays of the same shape unless they say otherwise; a result lies on the grid of the
narrow type. Infinities stay, and NaN stays NaN.

* tf32 keeps 10 bits after the leading one. Operands reach the tensor core as they are and lose 13 bits there:
  `tf32_truncated`, or `tf32_rounded` should a device round them (`cvt.rna`, ties away from zero). Which of the two a
  device does is not documented, so a verdict has to hold under both.
* `tf32x3` and `bf16x3` split each operand in two such numbers and leave out the product of the two small ones
  (https://github.com/triton-lang/triton, `lib/Dialect/TritonGPU/Transforms/F32DotTC.cpp`).
* bfloat16 and float16 are rounded to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

#: What happens to a float32 operand of a tf32 product. `exact` is no hardware: it tells rounding from logic.
Mode = Literal["truncation", "rounding", "exact"]

#: The modes under which a verdict on precision has to hold.
MODES: tuple[Mode, ...] = ("truncation", "rounding")

#: Ways of `tl.dot` with float32 operands that are modelled.
PRECISIONS = ("tf32", "tf32x3", "bf16x3", "ieee")

Narrow = Callable[[np.ndarray], np.ndarray]

_EXPONENT = np.uint32(0x7F800000)
_TF32 = np.uint32(0xFFFFE000)
_BF16 = np.uint32(0xFFFF0000)
_QUIET = np.uint32(0x00400000)


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(np.shape(x))


def _finite_or(bits: np.ndarray, changed: np.ndarray, mask: np.uint32) -> np.ndarray:
    """`changed` where the number is finite; else the same infinity or NaN (quiet, so that no payload gets lost)."""
    special = (bits & _EXPONENT) == _EXPONENT
    nan = special & ((bits & np.uint32(0x007FFFFF)) != 0)
    kept = np.where(nan, (bits | _QUIET) & mask, bits)
    return np.where(special, kept, changed).view(np.float32)


def tf32_truncated(x: np.ndarray) -> np.ndarray:
    """tf32 towards zero: the low 13 bits cut off."""
    bits = _bits(x)
    return _finite_or(bits, bits & _TF32, _TF32)


def tf32_rounded(x: np.ndarray) -> np.ndarray:
    """tf32 to nearest, ties away from zero; what is too large becomes infinite."""
    bits = _bits(x)
    return _finite_or(bits, (bits + np.uint32(0x1000)) & _TF32, _TF32)


def bfloat16_rounded(x: np.ndarray) -> np.ndarray:
    """bfloat16 to nearest, ties to even, as float32."""
    bits = _bits(x)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return _finite_or(bits, (bits + up) & _BF16, _BF16)


def bfloat16_truncated(x: np.ndarray) -> np.ndarray:
    """bfloat16 towards zero, as float32."""
    bits = _bits(x)
    return _finite_or(bits, bits & _BF16, _BF16)


def float16_rounded(x: np.ndarray) -> np.ndarray:
    """float16 to nearest, ties to even, as float32; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def float16_truncated(x: np.ndarray) -> np.ndarray:
    """float16 towards zero, as float32; what is too large becomes the largest finite number."""
    wide = np.asarray(x, np.float32)
    with np.errstate(over="ignore"):
        near = wide.astype(np.float16)
    beyond = np.abs(near.astype(np.float32)) > np.abs(wide)
    return np.where(beyond, np.nextafter(near, np.float16(0)), near).astype(np.float32)


def odd_float32(x: np.ndarray) -> np.ndarray:
    """float64 to float32 so that a second rounding to a narrower type gives what one rounding would ("round to odd").

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    wide = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        near = wide.astype(np.float32)
        beyond = np.abs(near.astype(np.float64)) > np.abs(wide)
        toward = np.where(beyond, np.nextafter(near, np.float32(0)), near).astype(np.float32)
        inexact = (toward.astype(np.float64) != wide) & np.isfinite(wide)
    return (_bits(toward) | inexact.astype(np.uint32)).view(np.float32)


def bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """uint16 bit patterns of `x` in bfloat16, rounded to nearest even; float64 is rounded once."""
    wide = np.asarray(x)
    narrow = odd_float32(wide) if wide.dtype == np.float64 else wide
    return (_bits(bfloat16_rounded(narrow)) >> np.uint32(16)).astype(np.uint16)


def bfloat16_values(bits: np.ndarray) -> np.ndarray:
    """float32 values of uint16 bfloat16 bit patterns."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrowing(mode: Mode) -> Narrow:
    """What a tensor core makes of a raw float32 operand of a tf32 product."""
    return {"truncation": tf32_truncated, "rounding": tf32_rounded, "exact": np.asarray}[mode]


def dot(a: np.ndarray, b: np.ndarray, accumulator: np.ndarray, precision: str, mode: Mode) -> np.ndarray:
    """float32 `a @ b + accumulator` as `tl.dot(..., input_precision=precision)` computes it; leading axes are batches.

    Products are exact in float32 or wider and summed in float32 by the BLAS at hand: the order and the width of a
    tensor core's own sums are not modelled. Raises `ValueError` for a precision that is not modelled.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"input_precision {precision!r} is not modelled; {', '.join(PRECISIONS)} are")
    if mode == "exact":
        wide = np.matmul(a.astype(np.float64), b.astype(np.float64)) + accumulator
        return wide.astype(np.float32)
    if precision == "tf32":
        narrow = narrowing(mode)
        return _product(narrow(a), narrow(b)) + accumulator
    if precision == "tf32x3":
        return _in_three(_halves_tf32(a, mode), _halves_tf32(b, mode)) + accumulator
    if precision == "bf16x3":
        return _in_three(_halves_bfloat16(a), _halves_bfloat16(b)) + accumulator
    return _product(a, b) + accumulator


def _halves_tf32(x: np.ndarray, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
    """The large part is rounded by an instruction of its own; what is left reaches the tensor core raw."""
    large = tf32_rounded(x)
    with np.errstate(invalid="ignore"):
        return large, narrowing(mode)(np.subtract(x, large, dtype=np.float32))


def _halves_bfloat16(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    large = bfloat16_rounded(x)
    with np.errstate(invalid="ignore"):
        return large, bfloat16_rounded(np.subtract(x, large, dtype=np.float32))


def _in_three(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Small times large and large times small, NaN (infinity less infinity) as 0, then large times large."""
    small = _product(a[1], b[0]) + _product(a[0], b[1])
    return np.where(np.isnan(small), np.float32(0), small) + _product(a[0], b[0])


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(a, b, dtype=np.float32)
