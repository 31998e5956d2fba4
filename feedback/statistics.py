"""Speed as a ratio with an interval: what interleaved units say about a candidate, and how far to believe it.

**Estimand.** Two live engines each finish the whole workload in alternating units of 100-200 ms. An arm's time is the
sum of its own units; the ratio of a pass is tokens over time of the candidate, divided by the same of the base. All
arithmetic is on its logarithm y.

**What varies.** Within a pass the alternation cancels most drift, and what is left is small (0.2-0.5 % on two cores).
Between *instances* of one and the same engine it is not: where memory lands differs from start to start, and no number
of passes with the same two processes averages that away. So the instance pair is the sampling unit: passes that share a
base or a candidate instance are one observation (their mean), and only rebuilt instances narrow the interval.

**Estimator.** A/A passes (two instances of the base, true y = 0) give K observations, the comparison G. With

    s^2 = (sum over A/A of y^2  +  sum over the comparison of (y - mean)^2) / (K + G - 1)

and K + G - 1 degrees of freedom, the standard error of the mean is sqrt((s^2 + e) / G), and the interval is Student's t
around it. `e` widens the interval where the passes of the comparison were noisier inside than those of the A/A (a
shorter pass, more disturbance): the excess of the within-pass variance, which unit-to-unit differences estimate. It
never narrows. So one pass (G = 1) has an interval: the A/A's, widened by its own unrest. From three observations on, a
two-stage bootstrap (instances, then passes) is laid over it and the wider bounds count.

**Discarded units** are described in `feedback.units`.

**Looking more than once.** Passes are added until the interval clears the margin. Each look spends a part of the 5 %
(`Plan.spent`, more on the first), and the interval of a look has the confidence that its part leaves: over all looks
together they cover with >= 95 %, whatever the stopping rule (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from feedback.student import t_quantile
from feedback.units import DISTURBED_SHARE, MAX_DISCARDED, ArmTime, Observation, Pass, Unit, arm_time, observations
from feedback.verdict import Status

__all__ = [
    "CONFIDENCE",
    "DISTURBED_SHARE",
    "MAX_DISCARDED",
    "ArmTime",
    "Comparison",
    "Decision",
    "NoiseFloor",
    "Observation",
    "Pass",
    "Plan",
    "Unit",
    "amdahl_ceiling",
    "arm_time",
    "compare",
    "compare_observations",
    "impossible",
    "observations",
    "status",
]

CONFIDENCE = 0.95
POWER = 0.8  # at the minimal detectable effect


@dataclass(frozen=True)
class NoiseFloor:
    """What this machine makes of no difference at all, in this session: A/A passes of two instances of the base.

    `sd_log` is the root mean square of the log ratios of `n` independent instance pairs around the true value 0,
    `within` the mean variance inside the passes, `spread` the same as |ratio - 1|, `worst` the largest |ratio - 1|
    seen.
    """

    sd_log: float
    n: int
    within: float = 0.0
    worst: float = 0.0
    discarded: int = 0

    @property
    def spread(self) -> float:
        return math.expm1(self.sd_log)

    @classmethod
    def of(cls, passes: Sequence[Pass]) -> NoiseFloor:
        """From A/A passes; raises `ValueError` without a usable one."""
        usable = [item for item in passes if item.usable]
        if not usable:
            raise ValueError("no usable A/A pass: every one was disturbed by other processes")
        return cls.of_observations(observations(usable), sum(item.discarded for item in usable))

    @classmethod
    def of_observations(cls, seen: Sequence[Observation], discarded: int = 0) -> NoiseFloor:
        """From independent observations whose true mean is 0 (at least one)."""
        means = np.array([item.mean for item in seen])
        return cls(
            sd_log=float(np.sqrt(np.mean(means**2))),
            n=len(seen),
            within=float(np.mean([item.variance for item in seen])),
            worst=float(np.max(np.abs(np.expm1(means)))),
            discarded=discarded,
        )


@dataclass(frozen=True)
class Comparison:
    """An effect with its interval; `effect`, `low`, `high` and `margin` are ratios candidate / base, above 1 is better.

    `n` counts passes and `groups` the independent instance pairs among them; `mde` is the smallest |ratio - 1| that
    would have been told from none with a chance of 80 %; `confidence` is that of this interval (higher than 95 % where
    several looks share the 5 %).
    """

    effect: float
    low: float
    high: float
    n: int
    groups: int
    noise_floor: float
    margin: float
    mde: float
    discarded: int
    confidence: float
    df: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


def compare(
    passes: Sequence[Pass], floor: NoiseFloor, margin: float = 1.0, confidence: float = CONFIDENCE
) -> Comparison:
    """Judge usable passes against the session's noise floor. Raises `ValueError` without a usable pass."""
    usable = [item for item in passes if item.usable]
    if not usable:
        raise ValueError("no usable pass: every one was disturbed by other processes")
    discarded = sum(item.discarded for item in usable)
    return compare_observations(observations(usable), floor, margin, confidence, n=len(usable), discarded=discarded)


def compare_observations(
    seen: Sequence[Observation],
    floor: NoiseFloor,
    margin: float = 1.0,
    confidence: float = CONFIDENCE,
    *,
    n: int | None = None,
    discarded: int = 0,
) -> Comparison:
    """Judge independent observations (at least one) of one true log ratio; `n` passes stand behind them."""
    means = np.array([item.mean for item in seen])
    count, mean = len(seen), float(np.mean(means))
    df = float(floor.n + count - 1)
    squares = floor.sd_log**2 * floor.n + float(np.sum((means - mean) ** 2))
    excess = max(0.0, float(np.mean([item.variance for item in seen])) - floor.within)
    error = math.sqrt((squares / df + excess) / count)
    reach = t_quantile(0.5 + confidence / 2, df) * error
    low, high = mean - reach, mean + reach
    if count >= 3:
        left, right = _bootstrap(seen, confidence)
        low, high = min(low, left), max(high, right)
    return Comparison(
        effect=math.exp(mean),
        low=math.exp(low),
        high=math.exp(high),
        n=count if n is None else n,
        groups=count,
        noise_floor=floor.spread,
        margin=margin,
        mde=math.expm1(reach + t_quantile(POWER, df) * error),
        discarded=discarded,
        confidence=confidence,
        df=df,
    )


def _bootstrap(seen: Sequence[Observation], confidence: float, rounds: int = 2000) -> tuple[float, float]:
    """Percentile bounds of the mean of log ratios, resampling instance pairs and then the passes within each."""
    rng = np.random.default_rng(0)  # equal samples give equal bounds
    picks = rng.integers(len(seen), size=(rounds, len(seen)))
    means = np.empty(picks.shape)
    for index, item in enumerate(seen):
        places = picks == index
        values = np.array(item.passes)
        draws = rng.integers(len(values), size=(int(places.sum()), len(values)))
        means[places] = values[draws].mean(axis=1)
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means.mean(axis=1), [tail, 1.0 - tail])
    return float(low), float(high)


def status(comparison: Comparison) -> Status:
    """Confirmed when the whole interval reaches the margin, refuted when all of it stays below, else inconclusive."""
    if comparison.low >= comparison.margin:
        return Status.CONFIRMED
    if comparison.high < comparison.margin:
        return Status.REFUTED
    return Status.INCONCLUSIVE


Decision = Literal["confirmed", "refuted", "futile", "exhausted", "continue"]


@dataclass(frozen=True)
class Plan:
    """How many passes may be spent on one question, and how the 5 % is spread over the looks.

    The first look is the cheap one that most candidates end at, so it may spend most: `first_share` of the whole, the
    others equally.
    """

    margin: float = 1.0
    max_passes: int = 1
    confidence: float = CONFIDENCE
    first_share: float = 0.6
    spent: tuple[float, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.max_passes < 1 or not 0 < self.first_share <= 1 or not 0 < self.confidence < 1:
            raise ValueError(f"a plan needs max_passes >= 1 and shares between 0 and 1, not {self}")
        alpha, later = 1.0 - self.confidence, self.max_passes - 1
        first = alpha if not later else alpha * self.first_share
        object.__setattr__(self, "spent", (first, *([(alpha - first) / later] * later if later else [])))

    def look(self, passes: Sequence[Pass], floor: NoiseFloor) -> tuple[Comparison, Decision]:
        """Judge the passes so far and say whether another is worth it. One look a pass, in order."""
        number = min(len(passes), self.max_passes)
        comparison = compare(passes, floor, self.margin, 1.0 - self.spent[number - 1])
        verdict = status(comparison)
        if verdict is Status.CONFIRMED:
            return comparison, "confirmed"
        if verdict is Status.REFUTED:
            return comparison, "refuted"
        if number >= self.max_passes:
            return comparison, "exhausted"
        return comparison, "futile" if self._futile(comparison) else "continue"

    def _futile(self, now: Comparison) -> bool:
        """Whether even a lucky remainder (the estimate moving by one standard error either way) would leave it open."""
        spent = 1.0 - now.confidence
        error = math.log(now.high / now.effect) / t_quantile(1.0 - spent / 2, now.df)
        left = self.max_passes - now.n
        reach = (
            t_quantile(1.0 - self.spent[-1] / 2, now.df + left) * error * math.sqrt(now.groups / (now.groups + left))
        )
        estimate, line = math.log(now.effect), math.log(self.margin)
        return estimate + error - reach < line <= estimate - error + reach


def amdahl_ceiling(share: float) -> float:
    """The largest possible speed-up of the whole when what takes `share` of its time becomes free."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share lies between 0 and 1, not {share}")
    return math.inf if share == 1.0 else 1.0 / (1.0 - share)


def impossible(comparison: Comparison, share: float) -> str | None:
    """Why the speed-up cannot be true when only `share` of the base's time was touched; None when it can."""
    ceiling = amdahl_ceiling(share)
    if comparison.low <= ceiling:
        return None
    return (
        f"speed-up {comparison.effect:.2f}x [{comparison.low:.2f}, {comparison.high:.2f}] is more than the "
        f"{ceiling:.2f}x that freeing the touched {share:.0%} of the time could give: the share or the measurement "
        "is wrong, or work was left out"
    )
