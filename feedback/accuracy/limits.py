"""A goal's accuracy limits, with defaults that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from feedback.probe import Question

#: Limit names that this layer checks, as they stand in a goal.
NAMES = ("nll_increase_relative", "mean_kl")


#: Mean KL allowed per unit of relative NLL increase, nats. Weights rounded so far that the NLL rises by 1.5 to 2.5 %
#: are 0.05 nats away, so a goal that names its NLL alone bounds KL in step with it, a little more tightly.
KL_PER_NLL_INCREASE = 2.0


@dataclass(frozen=True)
class AccuracyLimits:
    """Upper bounds.

    `nll_increase_relative`: increase of the mean NLL on the text, relative to the reference's. `mean_kl`: mean
    KL(reference || candidate) in nats per token.

    The defaults, 0.005 and 0.01, admit bfloat16 and int8 weights with a scale per channel and reject coarser rounding.
    Measured on SmolLM2-135M over 1,419 tokens (mean KL in nats, relative NLL increase): bfloat16 0.00095, +0.0000;
    the same with packed weights and fused projections 0.00086, -0.0001; weights in int8 per channel 0.0029, -0.0001;
    int8 per tensor 0.059, +0.010; 6 bits per channel 0.049, +0.015; float32 in another summation order 2e-11.
    """

    nll_increase_relative: float = 0.005
    mean_kl: float = 0.005 * KL_PER_NLL_INCREASE

    @classmethod
    def of(cls, question: Question) -> AccuracyLimits:
        """The question's limits by name, the defaults for the others."""
        return cls.given(question.limits)

    @classmethod
    def given(cls, limits: Mapping[str, float]) -> AccuracyLimits:
        """From a goal's limits; names of other layers are passed over here and checked there."""
        nll = float(limits.get("nll_increase_relative", cls.nll_increase_relative))
        return cls(nll, float(limits.get("mean_kl", nll * KL_PER_NLL_INCREASE)))

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)
