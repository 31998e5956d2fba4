"""How far one model's distributions are from another's: KL, agreement, NLL, with intervals. Pure numpy, float64.

Everything is computed from logits by the parent. A log-probability that a candidate reports of itself is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

#: Neighbouring tokens of a text err together, so the standard error is taken between means of blocks of this many
#: tokens.
BLOCK = 16

#: Two-sided 95 % of a normal distribution.
Z = 1.96


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over `n` tokens; infinite half-width with fewer than two blocks."""

    mean: float
    low: float
    high: float
    n: int

    def against(self, limit: float) -> Literal["within", "beyond", "open"]:
        """Whether the whole interval is at most `limit`, above it, or holds it."""
        if self.high <= limit:
            return "within"
        return "beyond" if self.low > limit else "open"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log-probabilities over the last axis, float64. A row with NaN or +Inf comes out as NaN."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = wide - top
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def kl_divergence(reference: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """KL(reference || candidate) in nats per row of log-probabilities; NaN where the candidate is not finite.

    Where the reference gives no probability the candidate's does not count; where only the candidate gives none, KL is
    infinite.
    """
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isneginf(reference), 0.0, np.exp(reference) * (reference - candidate))
        return np.maximum(terms.sum(axis=-1), 0.0)


def token_nll(logp: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """-log p(token) in nats per row of log-probabilities."""
    return -np.take_along_axis(logp, tokens.astype(np.int64)[:, None], axis=-1)[:, 0]


def agreement(reference: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Per row: whether both have the same most likely token."""
    return reference.argmax(axis=-1) == candidate.argmax(axis=-1)


def estimate(values: np.ndarray) -> Estimate:
    """Mean and interval of per-token values in text order, by block means (`BLOCK`). NaN values make all of it NaN."""
    n = values.size
    mean = float(values.mean()) if n else float("nan")
    blocks = n // BLOCK
    if blocks < 2:
        return Estimate(mean, -np.inf, np.inf, n)
    means = values[: blocks * BLOCK].reshape(blocks, BLOCK).mean(axis=1)
    half = Z * float(means.std(ddof=1)) / np.sqrt(blocks)
    return Estimate(mean, mean - half, mean + half, n)


def nll_increase(reference_nll: np.ndarray, candidate_nll: np.ndarray) -> Estimate:
    """Relative increase of the mean NLL, tokens paired: what the text's own difficulty adds to both drops out."""
    scale = float(reference_nll.mean())
    return estimate((candidate_nll - reference_nll) / scale)
