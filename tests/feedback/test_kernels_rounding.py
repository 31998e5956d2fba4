"""Rounding to narrow types, against exact arithmetic on rationals."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.kernels import rounding
from feedback.kernels.golden_cases import CASES, OPERANDS

FINITE = st.integers(0, 0xFFFFFFFF).filter(lambda bits: bits & 0x7F800000 != 0x7F800000)
NORMAL = FINITE.filter(lambda bits: bits & 0x7F800000 != 0)
NAN = st.integers(1, 0x7FFFFF).flatmap(lambda payload: st.sampled_from([0x7F800000 | payload, 0xFF800000 | payload]))
SPECIAL = (0x7F800000, 0xFF800000, 0x00000000, 0x80000000)
ROUNDINGS = (
    rounding.tf32_truncated,
    rounding.tf32_rounded,
    rounding.bfloat16_rounded,
    rounding.bfloat16_truncated,
    rounding.float16_rounded,
    rounding.float16_truncated,
)


def number(bits: int) -> np.ndarray:
    return np.array([bits], np.uint32).view(np.float32)


def bits_of(x: np.ndarray) -> int:
    return int(x.view(np.uint32)[0])


def exactly(x: np.ndarray) -> Fraction:
    return Fraction(float(x[0]))


def rounded(x: Fraction, digits: int, ties: str) -> Fraction:
    """`x` with so many significant binary digits. `ties`: `even`, `away`, or `zero` for truncation."""
    if x == 0:
        return x
    size, exponent = abs(x), 0
    while size >= 2 ** (exponent + 1):
        exponent += 1
    while size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - digits + 1)
    count, rest = divmod(size / unit, 1)
    half = Fraction(1, 2)
    if ties != "zero" and (rest > half or (rest == half and (ties == "away" or count % 2))):
        count += 1
    return (1 if x > 0 else -1) * count * unit


@given(NORMAL)
def test_tf32_keeps_eleven_digits(bits):
    x = number(bits)
    assert exactly(rounding.tf32_truncated(x)) == rounded(exactly(x), 11, "zero")
    nearest = rounding.tf32_rounded(x)
    if np.isfinite(nearest[0]):
        assert exactly(nearest) == rounded(exactly(x), 11, "away")
    else:
        assert abs(exactly(x)) >= Fraction(2) ** 128 - Fraction(2) ** 116


@given(NORMAL)
def test_bfloat16_keeps_eight_digits(bits):
    x = number(bits)
    assert exactly(rounding.bfloat16_truncated(x)) == rounded(exactly(x), 8, "zero")
    nearest = rounding.bfloat16_rounded(x)
    if np.isfinite(nearest[0]):
        assert exactly(nearest) == rounded(exactly(x), 8, "even")
    np.testing.assert_array_equal(rounding.bfloat16_values(rounding.bfloat16_bits(x)), nearest)


@given(FINITE)
def test_float16_is_what_the_standard_library_makes_of_it(bits):
    x = number(bits)
    try:
        expected = struct.unpack("<e", struct.pack("<e", float(x[0])))[0]
    except OverflowError:
        expected = float("inf") * np.sign(x[0])
    assert float(rounding.float16_rounded(x)[0]) == expected
    truncated = float(rounding.float16_truncated(x)[0])
    assert abs(truncated) <= abs(float(x[0]))
    assert truncated == expected or abs(expected) > abs(float(x[0]))


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e38, max_value=1e38))
def test_a_float64_becomes_bfloat16_in_one_rounding(value):
    got = rounding.bfloat16_values(rounding.bfloat16_bits(np.array([value])))
    if abs(value) > 1e-37 and np.isfinite(got[0]):
        assert exactly(got) == rounded(Fraction(value), 8, "even")


@given(FINITE)
def test_rounding_twice_is_rounding_once(bits):
    for way in ROUNDINGS:
        once = way(number(bits))
        assert bits_of(way(once)) == bits_of(once)


@given(FINITE, FINITE)
def test_rounding_keeps_order_and_sign(first, second):
    low, high = sorted([number(first), number(second)], key=lambda x: float(x[0]))
    for way in ROUNDINGS:
        assert way(low)[0] <= way(high)[0]
        assert np.signbit(way(low)[0]) == np.signbit(low[0])


@given(NAN)
def test_nan_stays_nan(bits):
    for way in ROUNDINGS:
        assert np.isnan(way(number(bits))[0])
    assert np.isnan(rounding.bfloat16_values(rounding.bfloat16_bits(number(bits)))[0])


@pytest.mark.parametrize("bits", SPECIAL)
def test_infinities_and_zeros_stay(bits):
    for way in ROUNDINGS:
        assert bits_of(way(number(bits))) == bits


def test_shapes_stay():
    for way in ROUNDINGS:
        for shape in ((), (0,), (2, 3), (2, 0, 4)):
            assert way(np.ones(shape, np.float32)).shape == shape
        assert way(np.ones((4, 6), np.float32)[::2, 1::2].T).shape == (3, 2)


def matrices(seed: int, n: int = 32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((n, n)).astype(np.float32) for _ in range(3))


@given(st.integers(0, 2**32), st.sampled_from(rounding.MODES))
def test_the_ways_of_a_product_differ_by_their_digits(seed, mode):
    a, b, c = matrices(seed)
    exact = a.astype(np.float64) @ b + c
    scale = np.abs(a.astype(np.float64)) @ np.abs(b) + np.abs(c)
    error = {
        way: float((np.abs(rounding.dot(a, b, c, way, mode) - exact) / scale).max()) for way in rounding.PRECISIONS
    }
    assert error["tf32"] < 2 * 2.0**-10
    assert error["bf16x3"] < 4 * 2.0**-16
    assert error["tf32x3"] < 32 * 2.0**-22
    assert error["ieee"] < 32 * 2.0**-23
    assert error["tf32"] > 20 * error["bf16x3"] > 20 * error["tf32x3"]


@given(st.integers(0, 2**32), st.sampled_from(rounding.PRECISIONS))
def test_exact_products_are_rounded_once(seed, precision):
    a, b, c = matrices(seed, 8)
    got = rounding.dot(a, b, c, precision, "exact")
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32))


def test_infinities_pass_through_products_in_three_parts():
    a = np.array([[1.0, np.inf]], np.float32)
    b = np.array([[2.0], [3.0]], np.float32)
    for precision in ("tf32x3", "bf16x3", "ieee"):
        assert rounding.dot(a, b, np.zeros((1, 1), np.float32), precision, "truncation")[0, 0] == np.inf


def test_a_precision_that_is_not_modelled_is_refused():
    a = np.eye(4, dtype=np.float32)
    with pytest.raises(ValueError, match="'bf16x6' is not modelled"):
        rounding.dot(a, a, a, "bf16x6", "truncation")


@pytest.mark.parametrize("case", [case for case in CASES if case.kind == "dot"], ids=lambda case: case.name)
@pytest.mark.parametrize("mode", rounding.MODES)
def test_golden_products_by_the_identity(case, mode):
    x = np.array(OPERANDS, np.uint32).view(np.float32)
    rows = np.stack([np.roll(x, turn) for turn in range(len(x))])
    got = rounding.dot(rows, np.eye(len(x), dtype=np.float32), np.zeros_like(rows), case.precision, mode)
    for turn, row in enumerate(got):
        np.testing.assert_array_equal(np.roll(row, -turn).view(np.uint32), np.array(case.expected[mode], np.uint32))
