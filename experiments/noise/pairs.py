"""What pairs say: spread within and between instances, bias against whole runs, what a pair can resolve. Pure.

A pair is one pass of both engines; `instance` numbers the two processes that it was taken with. All arithmetic is on
the log of candidate over base throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feedback.student import t_quantile

POWER = 0.8


@dataclass(frozen=True)
class Pair:
    """One pass of both engines by one method."""

    instance: int
    log_ratio: float


@dataclass(frozen=True)
class Spread:
    """A method on a move. `mean` with its `half` width (95 %, instances as the unit), `sd` of single pairs, and what of
    it lies within instances and between them.
    """

    pairs: int
    mean: float
    half: float
    sd: float
    within: float
    between: float

    @property
    def ratio(self) -> float:
        """Candidate over base, the geometric mean."""
        return math.exp(self.mean)

    def resolvable(self, count: int) -> float:
        """The smallest |ratio - 1| that `count` pairs of rebuilt instances would tell from none with a chance of 80 %,
        at 95 % confidence, were the sd known as well as it is here.
        """
        error = self.sd / math.sqrt(count)
        df = max(1.0, self.pairs - 1.0)
        return math.expm1((t_quantile(0.975, df) + t_quantile(POWER, df)) * error)


def spread(pairs: Sequence[Pair]) -> Spread:
    """The variance of pairs, split by a one-way analysis of variance (instances of any numbers of pairs).

    Raises `ValueError` for fewer than two pairs.
    """
    if len(pairs) < 2:
        raise ValueError(f"{len(pairs)} pairs say nothing about a spread: take more")
    values = np.array([pair.log_ratio for pair in pairs])
    groups = [np.array([p.log_ratio for p in pairs if p.instance == i]) for i in sorted({p.instance for p in pairs})]
    inner = sum(len(group) - 1 for group in groups)
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / inner if inner else math.nan
    means = np.array([group.mean() for group in groups])
    size = len(values) / len(groups)
    if len(groups) > 1:
        of_means = float(np.var(means, ddof=1))
        between = max(0.0, of_means - (within / size if inner else 0.0))
        half = t_quantile(0.975, len(groups) - 1.0) * math.sqrt(of_means / len(groups))
    else:
        between, half = (
            math.nan,
            t_quantile(0.975, len(values) - 1.0) * float(values.std(ddof=1)) / math.sqrt(len(values)),
        )
    centre = float(means.mean())
    return Spread(len(values), centre, half, float(values.std(ddof=1)), math.sqrt(within), math.sqrt(between))


@dataclass(frozen=True)
class Bias:
    """Mean difference of two methods' log ratios on the same instances, with the half width of its 95 % interval."""

    mean: float
    half: float

    def below(self, bound: float) -> bool:
        """Whether the whole interval lies within +-bound."""
        return abs(self.mean) + self.half <= bound

    @property
    def seen(self) -> bool:
        """Whether the interval leaves out zero."""
        return abs(self.mean) > self.half


def bias(interleaved: Sequence[Pair], whole: Sequence[Pair]) -> Bias:
    """What interleaving adds to or takes from a ratio: the difference instance by instance. `ValueError` for fewer than
    two instances that both methods measured.
    """
    shared = sorted({pair.instance for pair in interleaved} & {pair.instance for pair in whole})
    if len(shared) < 2:
        raise ValueError(f"{len(shared)} instances were measured by both methods: take more")

    def mean(pairs: Sequence[Pair], instance: int) -> float:
        return float(np.mean([pair.log_ratio for pair in pairs if pair.instance == instance]))

    differences = np.array([mean(interleaved, instance) - mean(whole, instance) for instance in shared])
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Bias(float(differences.mean()), t_quantile(0.975, len(differences) - 1.0) * error)
