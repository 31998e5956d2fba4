"""How likely each cause is, and what an answer changes about it. Immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feedback.information import bits
from feedback.information.outcomes import Likelihood, OutcomeTable

#: A cause below this probability is not spoken of as possible. It is never ruled out.
NEGLIGIBLE = 0.01


@dataclass(frozen=True)
class Belief:
    """A distribution over causes that exclude each other; the probabilities sum to one."""

    causes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(set(self.causes)) != len(self.causes) or len(self.causes) != len(self.probabilities):
            raise ValueError("one probability for each of some different causes")
        bits.entropy(self.array)

    @classmethod
    def uniform(cls, causes: Sequence[str]) -> Belief:
        """All equally likely."""
        return cls.weighted(dict.fromkeys(causes, 1.0))

    @classmethod
    def weighted(cls, weights: Mapping[str, float]) -> Belief:
        """In proportion to weights of at least 0, not all 0."""
        total = sum(weights.values())
        if not total > 0:
            raise ValueError("at least one cause must be possible")
        return cls(tuple(weights), tuple(weight / total for weight in weights.values()))

    @classmethod
    def before(cls, table: OutcomeTable) -> Belief:
        """What a table says before anything is asked: its prior, or all equally likely."""
        return cls.weighted({cause: table.prior.get(cause, 1.0) for cause in table.causes})

    @property
    def array(self) -> np.ndarray:
        """The probabilities [causes], float64."""
        return np.array(self.probabilities, np.float64)

    @property
    def entropy(self) -> float:
        """Bits that are still unknown."""
        return bits.entropy(self.array)

    @property
    def first(self) -> tuple[str, float]:
        """The likeliest cause and its probability; the earlier one of equals."""
        place = int(np.argmax(self.array))
        return self.causes[place], self.probabilities[place]

    def of(self, cause: str) -> float:
        """The probability of one cause."""
        return self.probabilities[self.causes.index(cause)]

    def ranked(self) -> list[tuple[str, float]]:
        """Most likely first."""
        return sorted(zip(self.causes, self.probabilities, strict=True), key=lambda pair: -pair[1])

    def possible(self, least: float = NEGLIGIBLE) -> list[str]:
        """Causes of at least this probability, most likely first."""
        return [cause for cause, probability in self.ranked() if probability >= least]

    def after(self, likelihood: Likelihood, outcome: str) -> Belief:
        """Updated by an answer (Bayes). An outcome that was never seen rules nothing out."""
        if likelihood.causes != self.causes:
            raise ValueError(f"{likelihood.probe} was measured on other causes")
        found = bits.posterior(self.array, likelihood.column(outcome))
        return Belief(self.causes, tuple(float(p) for p in found))
