"""The interpreter's builder with the rounding of the hardware (worker side).

Triton's interpreter makes numpy arrays of what a kernel asks its builder for; here those operations are replaced whose
results the stock builder rounds otherwise than hardware does. bfloat16 lies in uint16 bit patterns there: its
arithmetic is done in float32 and rounded to nearest even, as the hardware does.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from . import rounding
from .observed import Interpretation, Place, Site, kernel_place

#: Triton's own files: a product is placed at the line of the kernel that asked for it.
_ASIDE = (os.path.dirname(triton.__file__) + os.sep,)

_PRECISIONS = {
    ir.INPUT_PRECISION.TF32: "tf32",
    ir.INPUT_PRECISION.TF32x3: "tf32x3",
    ir.INPUT_PRECISION.IEEE: "ieee",
    ir.INPUT_PRECISION.BF16x3: "bf16x3",
    ir.INPUT_PRECISION.BF16x6: "bf16x6",
}


class Unfaithful(Exception):
    """The kernel does something whose rounding is not modelled; the text says what."""


class FaithfulBuilder(InterpreterBuilder):
    """`mode` as in `rounding`; what is seen goes to `seen`; products at `exact_at` are computed in float64."""

    def __init__(self, mode: rounding.Mode, seen: Interpretation, exact_at: frozenset[Place] = frozenset()) -> None:
        super().__init__()
        self.mode, self.seen, self.exact_at = mode, seen, exact_at
        self.options = dataclasses.replace(
            self.options,
            # Checking every integer operation for overflow takes five times as long as the operation.
            sanitize_overflow=False,
            allowed_dot_input_precisions=tuple(_PRECISIONS.values()),
        )

    # products

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        kind, result = a.dtype.scalar, d.dtype.scalar
        if a.dtype.scalar != b.dtype.scalar:
            raise Unfaithful(f"a product of {a.dtype.scalar} and {b.dtype.scalar}")
        if kind == tl.float32:
            return TensorHandle(self._float32_dot(a.data, b.data, d.data, input_precision), result)
        place = self._seen_dot(str(kind), "")
        if kind in (tl.bfloat16, tl.float16):
            if result != tl.float32:
                raise Unfaithful(f"a product of {kind} summed in {result}")
            wide = rounding.bfloat16_values if kind == tl.bfloat16 else _float16_values
            mode = self._mode_at(place)
            return TensorHandle(rounding.dot(wide(a.data), wide(b.data), d.data, "ieee", mode), result)
        if kind in (tl.int8, tl.uint8, tl.float64):
            return super().create_dot(a, b, d, input_precision, max_num_imprecise_acc)
        raise Unfaithful(f"a product of {kind}")

    def create_dot_scaled(self, *args: Any, **kwargs: Any) -> Any:
        raise Unfaithful("tl.dot_scaled")

    def _float32_dot(self, a: np.ndarray, b: np.ndarray, d: np.ndarray, input_precision: Any) -> np.ndarray:
        precision = _PRECISIONS[input_precision]
        if precision not in rounding.PRECISIONS:
            raise Unfaithful(f"input_precision {precision!r}")
        place = self._seen_dot("fp32", precision)
        return rounding.dot(a, b, d, precision, self._mode_at(place))

    def _seen_dot(self, dtype: str, precision: str) -> Place:
        place = kernel_place(_ASIDE)
        self.seen.dots[Site(*place, dtype, precision)] += 1
        return place

    def _mode_at(self, place: Place) -> rounding.Mode:
        return "exact" if place in self.exact_at else self.mode

    # conversions

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target:
            return TensorHandle(src.data, target)
        if tl.bfloat16 in (source, target):
            wide = rounding.bfloat16_values(src.data) if source == tl.bfloat16 else src.data
            if target == tl.bfloat16:
                return TensorHandle(rounding.bfloat16_bits(_floating(wide)), target)
            return TensorHandle(wide.astype(interpreter._get_np_dtype(target)), target)
        if any(kind.is_fp8() for kind in (source, target)):
            raise Unfaithful(f"a conversion from {source} to {target}")
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if any(kind.is_fp8() for kind in (source, target)):
            raise Unfaithful(f"a conversion from {source} to {target}")
        if rounding_mode == ir.ROUNDING_MODE.RTNE:
            return self.cast_impl(src, dst_type)
        if source != tl.float32 or target not in (tl.bfloat16, tl.float16):
            raise Unfaithful(f"a conversion from {source} to {target} towards zero")
        if target == tl.bfloat16:
            return TensorHandle(rounding.bfloat16_bits(rounding.bfloat16_truncated(src.data)), target)
        return TensorHandle(rounding.float16_truncated(src.data).astype(np.float16), target)

    # arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if _has_bfloat16(lhs, rhs):
            result = _narrowed(super().binary_op(_widened(lhs), _widened(rhs), op))
        else:
            result = super().binary_op(lhs, rhs, op)
        # The stock builder labels a comparison with the type of its operands; a later conversion would believe it.
        return TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    def unary_op(self, arg: Any, op: Any) -> Any:
        return _narrowed(super().unary_op(_widened(arg), op)) if _has_bfloat16(arg) else super().unary_op(arg, op)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not _has_bfloat16(lhs, rhs, other):
            return super().ternary_op(lhs, rhs, other, op)
        return _narrowed(super().ternary_op(_widened(lhs), _widened(rhs), _widened(other), op))

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if not _has_bfloat16(x, y, z):
            return super().create_fma(x, y, z)
        a, b, c = (_widened(part).data.astype(np.float64) for part in (x, y, z))
        return TensorHandle(rounding.bfloat16_bits(a * b + c), tl.bfloat16)

    def create_rsqrt(self, arg: Any) -> Any:
        self._no_bfloat16("rsqrt", arg)
        return super().create_rsqrt(arg)

    def create_erf(self, arg: Any) -> Any:
        self._no_bfloat16("erf", arg)
        return super().create_erf(arg)

    def create_histogram(self, data: Any, bins: Any, mask: Any) -> Any:
        self._no_bfloat16("histogram", data)
        return super().create_histogram(data, bins, mask)

    # memory

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        self._no_bfloat16("an atomic operation", val)
        self.seen.used.add("atomics")
        return super().create_atomic_rmw(rmwOp, ptr, val, mask, sem, scope)

    def create_extern_elementwise(
        self, libName: Any, libPath: Any, symbol: Any, argList: Any, retType: Any, isPure: Any
    ) -> Any:
        raise Unfaithful(f"the library function {symbol}")

    def create_inline_asm(
        self, inlineAsm: Any, constraints: Any, values: Any, type: Any, isPure: Any, pack: Any
    ) -> Any:
        raise Unfaithful("inline assembly")

    def _no_bfloat16(self, what: str, handle: Any) -> None:
        if _has_bfloat16(handle):
            raise Unfaithful(f"{what} of bfloat16")


def _has_bfloat16(*handles: Any) -> bool:
    return any(handle.dtype.scalar == tl.bfloat16 for handle in handles)


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16 or handle.data.dtype == np.bool_:
        return handle
    return TensorHandle(rounding.bfloat16_values(handle.data), tl.float32)


def _narrowed(handle: Any) -> Any:
    if handle.data.dtype != np.float32:
        return handle
    return TensorHandle(rounding.bfloat16_bits(handle.data), tl.bfloat16)


def _floating(data: np.ndarray) -> np.ndarray:
    return data if data.dtype in (np.float32, np.float64) else data.astype(np.float32)


def _float16_values(data: np.ndarray) -> np.ndarray:
    return data.astype(np.float32)
