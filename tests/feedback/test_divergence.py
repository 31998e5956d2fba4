"""Measures between distributions, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.accuracy.divergence import (
    agreement,
    estimate,
    kl_divergence,
    log_softmax,
    nll_increase,
    token_nll,
)

seeds = st.integers(0, 2**31)


def logits_of(seed: int, rows: int = 6, vocabulary: int = 11, scale: float = 3.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((rows, vocabulary))).astype(np.float32)


@given(seeds, st.floats(-1e4, 1e4))
def test_log_softmax_sums_to_one_and_ignores_a_constant(seed, shift):
    logits = logits_of(seed)
    assert np.allclose(np.exp(log_softmax(logits)).sum(-1), 1.0)
    assert np.allclose(log_softmax(logits), log_softmax(logits.astype(np.float64) + shift), atol=1e-6)


@given(seeds, seeds)
def test_kl_is_zero_only_between_equals(a, b):
    p, q = log_softmax(logits_of(a)), log_softmax(logits_of(b))
    assert np.allclose(kl_divergence(p, log_softmax(logits_of(a) + 7.0)), 0.0, atol=1e-6)
    assert (kl_divergence(p, q) >= 0).all()
    if a != b:
        assert (kl_divergence(p, q) > 0).all()


def test_kl_of_two_known_distributions():
    p, q = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    assert kl_divergence(p, q)[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    certain = log_softmax(np.array([[0.0, -np.inf]]))
    assert np.isinf(kl_divergence(p, certain)[0])
    assert kl_divergence(certain, p)[0] == pytest.approx(np.log(2))
    assert np.isnan(kl_divergence(p, log_softmax(np.array([[np.nan, 0.0]])))[0])


@given(seeds)
def test_nll_is_least_for_the_greedy_token(seed):
    logp = log_softmax(logits_of(seed))
    assert np.allclose(token_nll(logp, logp.argmax(-1)), -logp.max(-1))
    assert np.allclose(token_nll(logp, logp.argmin(-1)), -logp.min(-1))


def test_agreement_counts_equal_choices():
    a = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert agreement(a, a[:, ::-1]).tolist() == [False, False]
    assert agreement(a, 3 * a).tolist() == [True, True]


def test_the_interval_covers_the_mean_of_dependent_tokens_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        noise = rng.standard_normal(512 + 3)
        values = noise[3:] + noise[2:-1] + noise[1:-2] + noise[:-3]  # neighbours share three of four terms
        found = estimate(values)
        hits += found.low <= 0.0 <= found.high
    assert 0.88 <= hits / 300 <= 0.98


def test_limits_are_decided_by_the_whole_interval():
    rng = np.random.default_rng(1)
    reference = rng.uniform(1, 4, 512)
    same = nll_increase(reference, reference + 0.001 * rng.standard_normal(512))
    worse = nll_increase(reference, reference + 0.05)
    few = estimate(np.ones(20))
    assert same.against(0.005) == "within"
    assert worse.against(0.005) == "beyond"
    assert few.against(0.005) == "open"
    assert nll_increase(reference, reference * np.nan).against(0.005) == "open"
