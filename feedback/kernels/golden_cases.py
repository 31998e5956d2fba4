"""Micro-kernels with results known bit for bit, worked out in exact arithmetic, not with the code they check. Pure.

Each takes sixteen numbers whose rounding tells the ways apart (ties, just above and below them, just below a power of
two) and gives sixteen back. Products are with the identity, so that what comes out is what the product made of its
operand, in whatever order sums are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .rounding import MODES, Mode

Kind = Literal["dot", "bfloat16", "float16", "difference", "product"]

#: float32 bit patterns.
OPERANDS = (
    *(0x3F800000, 0x3F801000, 0x3F801001, 0x3F800FFF, 0x3F803000, 0xBF801000, 0x40490FDB, 0x3EAAAAAB),
    *(0x3DCCCCCD, 0xC2F6E979, 0x3F7FFFFF, 0x3F801FFF, 0x33D6BF95, 0x42280001, 0xC0A00FFF, 0x00000000),
)

_TF32_TRUNCATED = (
    *(0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000, 0x3F802000, 0xBF800000, 0x40490000, 0x3EAAA000),
    *(0x3DCCC000, 0xC2F6E000, 0x3F7FE000, 0x3F800000, 0x33D6A000, 0x42280000, 0xC0A00000, 0x00000000),
)
_TF32_ROUNDED = (
    *(0x3F800000, 0x3F802000, 0x3F802000, 0x3F800000, 0x3F804000, 0xBF802000, 0x40490000, 0x3EAAA000),
    *(0x3DCCC000, 0xC2F6E000, 0x3F800000, 0x3F802000, 0x33D6C000, 0x42280000, 0xC0A00000, 0x00000000),
)
_TF32X3_TRUNCATED = (
    *(0x3F800000, 0x3F801000, 0x3F801002, 0x3F800FFE, 0x3F803000, 0xBF801000, 0x40490FDA, 0x3EAAAAAA),
    *(0x3DCCCCCC, 0xC2F6E978, 0x3F7FFFFF, 0x3F801FFF, 0x33D6BF95, 0x42280001, 0xC0A00FFE, 0x00000000),
)
_TF32X3_ROUNDED = (
    *(0x3F800000, 0x3F801000, 0x3F801000, 0x3F801000, 0x3F803000, 0xBF801000, 0x40490FDC, 0x3EAAAAAC),
    *(0x3DCCCCCE, 0xC2F6E97A, 0x3F7FFFFF, 0x3F801FFF, 0x33D6BF95, 0x42280001, 0xC0A01000, 0x00000000),
)
_BF16X3 = (
    *(0x3F800000, 0x3F801000, 0x3F801000, 0x3F801000, 0x3F803000, 0xBF801000, 0x40490FE0, 0x3EAAAA80),
    *(0x3DCCCCC0, 0xC2F6E980, 0x3F7FFFFF, 0x3F802000, 0x33D6BF80, 0x42280001, 0xC0A01000, 0x00000000),
)
_BFLOAT16 = (
    *(0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000, 0xBF800000, 0x40490000, 0x3EAB0000),
    *(0x3DCD0000, 0xC2F70000, 0x3F800000, 0x3F800000, 0x33D70000, 0x42280000, 0xC0A00000, 0x00000000),
)
_FLOAT16 = (
    *(0x3F800000, 0x3F800000, 0x3F802000, 0x3F800000, 0x3F804000, 0xBF800000, 0x40490000, 0x3EAAA000),
    *(0x3DCCC000, 0xC2F6E000, 0x3F800000, 0x3F802000, 0x34000000, 0x42280000, 0xC0A00000, 0x00000000),
)
#: Each bfloat16 number less the next one, and times it.
_DIFFERENCE = (
    *(0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x40000000, 0xC0840000, 0x40340000, 0x3E700000),
    *(0x42F70000, 0xC2F90000, 0x00000000, 0x3F800000, 0xC2280000, 0x423C0000, 0xC0A00000, 0xBF800000),
)
_PRODUCT = (
    *(0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000, 0xBF800000, 0xC0490000, 0x3F860000, 0x3D090000),
    *(0xC1460000, 0xC2F70000, 0x3F800000, 0x33D70000, 0x368D0000, 0xC3520000, 0x80000000, 0x00000000),
)


@dataclass(frozen=True)
class Golden:
    """One micro-kernel: what it does, the precision of its product, and the bit patterns to expect under each mode."""

    name: str
    kind: Kind
    precision: str
    expected: dict[Mode, tuple[int, ...]]

    def agrees(self, bits: np.ndarray) -> tuple[Mode, ...]:
        """The modes whose expectation these bit patterns [16] are."""
        return tuple(mode for mode, want in self.expected.items() if np.array_equal(bits, np.array(want, np.uint32)))


def _alike(bits: tuple[int, ...]) -> dict[Mode, tuple[int, ...]]:
    return dict.fromkeys(MODES, bits)


CASES = (
    Golden("tf32", "dot", "tf32", {"truncation": _TF32_TRUNCATED, "rounding": _TF32_ROUNDED}),
    Golden("tf32x3", "dot", "tf32x3", {"truncation": _TF32X3_TRUNCATED, "rounding": _TF32X3_ROUNDED}),
    Golden("bf16x3", "dot", "bf16x3", _alike(_BF16X3)),
    Golden("ieee", "dot", "ieee", _alike(OPERANDS)),
    Golden("to bfloat16", "bfloat16", "", _alike(_BFLOAT16)),
    Golden("to float16", "float16", "", _alike(_FLOAT16)),
    Golden("bfloat16 difference", "difference", "", _alike(_DIFFERENCE)),
    Golden("bfloat16 product", "product", "", _alike(_PRODUCT)),
)
