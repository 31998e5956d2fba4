"""What a probe is worth under a belief, which one to ask next, and what no probe can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feedback.information import bits
from feedback.information.belief import Belief
from feedback.information.outcomes import Likelihood

By = Literal["bits", "bits per second"]

#: Probes whose bits differ by less than this are equally informative: counted likelihoods are no finer.
RESOLUTION = 0.05

#: Two causes are told apart by a probe whose answers to them differ with at least this probability (total variation).
TOLD_APART = 0.5


@dataclass(frozen=True)
class Worth:
    """Expected information of asking a probe once, in bits, and the seconds it is expected to take."""

    probe: str
    bits: float
    seconds: float

    @property
    def rate(self) -> float:
        """Bits per second."""
        return self.bits / self.seconds

    def words(self) -> str:
        """`detailed/edge: 2.09 bits in 3 s, 0.70 bit/s`."""
        return f"{self.probe}: {self.bits:.2f} bits in {self.seconds:g} s, {self.rate:.2g} bit/s"


def worth(belief: Belief, likelihood: Likelihood) -> Worth:
    """What asking this probe tells about the cause, and costs, in expectation."""
    if likelihood.causes != belief.causes:
        raise ValueError(f"{likelihood.probe} was measured on other causes")
    told = min(bits.information(belief.array, likelihood.matrix), belief.entropy)
    return Worth(likelihood.probe, told, float(belief.array @ likelihood.seconds))


def ranked(belief: Belief, likelihoods: Sequence[Likelihood], by: By = "bits per second") -> list[Worth]:
    """The probes, best first. By bits, those within `RESOLUTION` of the best are equals, and the cheapest of them comes
    first; equal to nine digits, the name decides.
    """
    found = [worth(belief, likelihood) for likelihood in likelihoods]
    if by == "bits per second":
        return sorted(found, key=lambda w: (-float(f"{w.rate:.9g}"), w.probe))
    best = max((w.bits for w in found), default=0.0)

    def place(w: Worth) -> tuple[float, float, float, str]:
        equal = w.bits >= best - min(RESOLUTION, best / 2)
        return (0.0, w.seconds, -w.bits, w.probe) if equal else (1.0, -w.bits, w.seconds, w.probe)

    return sorted(found, key=place)


def choose(
    belief: Belief, likelihoods: Sequence[Likelihood], by: By = "bits per second", least_bits: float = 0.0
) -> Worth | None:
    """The probe to ask next, or None where none tells as much as `least_bits`."""
    worthy = [w for w in ranked(belief, likelihoods, by) if w.bits >= least_bits]
    return worthy[0] if worthy else None


def alike(likelihoods: Sequence[Likelihood], apart: float = TOLD_APART) -> list[tuple[str, str]]:
    """Pairs of causes that none of these probes tells apart: their answers differ with a probability below `apart`."""
    if not likelihoods:
        return []
    causes = likelihoods[0].causes
    distance = np.zeros((len(causes), len(causes)))
    for likelihood in likelihoods:
        between = 0.5 * np.abs(likelihood.matrix[:, None] - likelihood.matrix[None, :]).sum(axis=2)
        distance = np.maximum(distance, between)
    pairs = np.argwhere(np.triu(distance < apart, 1))
    return [(causes[i], causes[j]) for i, j in pairs.tolist()]
