"""The describer of errors recovers what was planted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedback.operators.conditions import failing_condition, growth
from feedback.operators.indices import describe_indices
from feedback.operators.patterns import compare, error_rank
from feedback.target import Tolerance

TOLERANCE = Tolerance(atol=1e-4, rtol=1e-4, reason="single precision")


@given(hnp.arrays(bool, st.integers(1, 80)))
def test_a_description_that_is_not_scattered_is_exact(wrong):
    described = describe_indices(wrong)
    assert described.count == int(wrong.sum())
    if described.kind != "scattered":
        assert np.array_equal(described.members(), np.flatnonzero(wrong))
    else:
        assert 4 < described.count < wrong.size


@given(st.integers(2, 16), st.data())
def test_every_nth_is_recovered(step, data):
    size = step * data.draw(st.integers(4, 8)) + data.draw(st.integers(0, step - 1))
    start = data.draw(st.integers(0, step - 1))
    wrong = np.arange(size) % step == start
    described = describe_indices(wrong)
    assert (described.kind, described.step, described.first) == ("every", step, start)


@given(st.integers(3, 24), st.integers(2, 5), st.data())
def test_blocks_of_a_period_are_recovered(period, times, data):
    low = data.draw(st.integers(0, period - 2))
    high = data.draw(st.integers(low + 1, period - 1).filter(lambda h: h - low + 1 < period))
    residue = np.arange(period * times) % period
    described = describe_indices((residue >= low) & (residue <= high))
    assert (described.kind, described.step, described.ranges) == ("periodic", period, ((low, high),))


def test_the_words():
    size = np.arange(64)
    assert describe_indices(size < 26).text("columns") == "columns 0-25"
    assert describe_indices(size >= 48).text("columns") == "columns 48-63 (tail)"
    assert describe_indices(size % 16 == 3).text("columns") == "every 16th of columns from 3"
    assert describe_indices(size % 16 >= 12).text("columns") == "columns 12-15 of every 16"
    assert describe_indices((size == 5) | (size == 40)).text("rows") == "rows 5, 40"


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(8, 40), st.integers(8, 60), st.data())
def test_place_and_rank_of_a_planted_error_are_recovered(seed, rank, rows, columns, data):
    low = data.draw(st.integers(0, columns - rank - 1))
    high = data.draw(st.integers(low + rank, columns - 1))
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal((rows, columns))
    # Orthonormal factors keep the planted singular values equal, hence far from the noise; the entries stay above the
    # tolerance only on average, so the place is checked through the densest columns.
    left = np.linalg.qr(rng.standard_normal((rows, rank)))[0]
    right = np.linalg.qr(rng.standard_normal((high - low + 1, rank)))[0]
    planted = np.zeros_like(expected)
    planted[:, low : high + 1] = 50.0 * left @ right.T
    got = (expected + planted).astype(np.float32)
    pattern = compare(got, expected, TOLERANCE)
    assert pattern is not None
    assert pattern.axes[1].first >= low
    assert pattern.axes[1].last <= high
    assert pattern.rank == rank
    assert pattern.nan == pattern.inf == 0


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(0, 5))
def test_unexpected_nan_and_infinity_are_counted(seed, nans, infinities):
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal((7, 9))
    got = expected.copy().reshape(-1)
    at = rng.permutation(got.size)[: nans + infinities]
    got[at[:nans]], got[at[nans:]] = np.nan, np.inf
    pattern = compare(got.reshape(7, 9), expected, TOLERANCE)
    assert pattern is not None
    assert (pattern.nan, pattern.inf, pattern.wrong, pattern.worst) == (nans, infinities, nans + infinities, np.inf)
    assert f"{nans} NaN" in pattern.text()


def test_within_tolerance_is_silent_and_expected_infinities_are_right():
    expected = np.array([[1.0, -np.inf, np.nan, 1e6]])
    assert compare(expected + np.array([[5e-5, 0, 0, 50.0]]), expected, TOLERANCE) is None
    assert compare(np.array([3, 4]), np.array([3, 5]), TOLERANCE) is not None  # token ids are exact
    assert compare(np.float32(2.0) * np.ones(()), np.ones(()), TOLERANCE) is not None


def test_the_sentence_names_place_rank_and_size():
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((64, 126))
    got = expected.astype(np.float32)
    got[:, :26] += (rng.standard_normal((64, 3)) @ rng.standard_normal((3, 26)) + 20).astype(np.float32)
    pattern = compare(got, expected, TOLERANCE, nouns=("tokens", "columns"))
    assert pattern is not None
    assert pattern.text().startswith("columns 0-25 wrong, rank 4 of 64, max error ")


def test_rank_of_noise_is_nothing():
    noise = np.random.default_rng(1).standard_normal((50, 70)) * 1e-6
    assert error_rank(noise, 1e-6) is None


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shapes differ"):
        compare(np.zeros(3), np.zeros(4), TOLERANCE)


def dims(**sizes):
    return sizes


def test_conditions_separate_exactly_or_not_at_all():
    aligned = [(dims(batch=4, context=c), False) for c in (16, 32, 64)]
    odd = [(dims(batch=4, context=c), True) for c in (17, 33, 97)]
    assert failing_condition(aligned + odd) == "only where context is not a multiple of 16"
    large = [(dims(batch=b), b > 8) for b in (1, 3, 8, 16, 33)]
    assert failing_condition(large) == "only where batch > 8 (first seen at 16)"
    assert (
        failing_condition(
            [(dims(batch=1), True), (dims(batch=1), True), (dims(batch=1), False), (dims(batch=2), False)]
        )
        is None
    )
    assert failing_condition([(dims(batch=1), True)]) is None


@given(st.integers(1, 500), st.sampled_from([7, 16, 33]))
def test_a_threshold_is_recovered_from_any_sizes_beyond_it(threshold, extra):
    sizes = [threshold - 0, threshold + extra, threshold + 2 * extra, max(1, threshold - 1), 1]
    outcomes = [(dims(context=s), s > threshold) for s in sizes]
    text = failing_condition(outcomes)
    assert text is not None
    assert "context" in text


def test_growth_names_the_axis():
    errors = [(dims(batch=b, context=c), 1e-6 * c) for b in (1, 4, 3) for c in (16, 128, 1024)]
    assert growth(errors) == "grows with context, 64x from 16 to 1024"
    flat = [(dims(batch=b), 1e-6) for b in (1, 2, 4)]
    assert growth(flat) is None
