"""Entropy, mutual information and Bayes' rule on small tables. Everything in bits, in float64.

A distribution over causes is an array [C] that sums to one; a likelihood is [C, O], P(outcome | cause), whose rows sum
to one. T. Cover, J. Thomas, Elements of Information Theory, chapter 2.
"""

from __future__ import annotations

import numpy as np

#: How far a sum of probabilities may be from one.
CLOSE = 1e-6


def entropy(distribution: np.ndarray) -> float:
    """Bits of uncertainty, 0 to log2(C). Raises `ValueError` for what is no distribution."""
    p = _distribution(distribution)
    held = p[p > 0]
    return max(0.0, float(-(held * np.log2(held)).sum()))


def information(prior: np.ndarray, likelihood: np.ndarray) -> float:
    """Bits that one outcome tells about the cause, in expectation: entropy now, less the expected entropy afterwards.

    Never negative, at most the prior's entropy, at most log2(O). Raises `ValueError` where rows are no distributions
    or the sizes differ.
    """
    p, q = _distribution(prior), np.asarray(likelihood, np.float64)
    if q.ndim != 2 or q.shape[0] != p.size or np.any(q < 0) or np.any(np.abs(q.sum(axis=1) - 1) > CLOSE):
        raise ValueError(f"a likelihood is [{p.size} causes, outcomes] with rows that sum to one, not {q.shape}")
    expected = p @ q
    joint = p[:, None] * q
    held = joint > 0  # so are the factors, and what is expected there
    ratio = np.log2(np.where(held, q, 1.0)) - np.log2(np.where(expected > 0, expected, 1.0))
    return max(0.0, float(np.where(held, joint * ratio, 0.0).sum()))


def posterior(prior: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Bayes: `seen` [C] is how likely each cause made the outcome that was seen, up to a common factor.

    Raises `ValueError` when no cause could have made it.
    """
    p, q = _distribution(prior), np.asarray(seen, np.float64)
    if q.shape != p.shape or np.any(q < 0):
        raise ValueError(f"one likelihood, at least 0, for each of {p.size} causes is needed")
    largest = float(np.max(np.where(p > 0, q, 0.0), initial=0.0))
    if not largest > 0:
        raise ValueError("an outcome that no cause can make: smooth the likelihoods")
    weights = p * (q / largest)
    return weights / weights.sum()


def least_calls(causes: int, outcomes: int) -> int:
    """Fewest calls of a probe with so many outcomes that can tell so many causes apart: outcomes ** calls >= causes.

    A bound from below, reached only if every call halves (or thirds, ...) what is left.
    """
    if causes < 1 or outcomes < 2:
        raise ValueError("at least one cause, and at least two outcomes")
    calls, told = 0, 1
    while told < causes:
        calls, told = calls + 1, told * outcomes
    return calls


def _distribution(values: np.ndarray) -> np.ndarray:
    p = np.asarray(values, np.float64)
    if p.ndim != 1 or p.size == 0 or np.any(p < 0) or not abs(float(p.sum()) - 1) <= CLOSE:
        raise ValueError("a distribution is a row of probabilities that sum to one")
    return p / p.sum()
