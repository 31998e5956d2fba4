"""What the timings of an operator say, condition by condition and over all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedback.statistics import Comparison, NoiseFloor, Observation, Pass, compare, compare_observations


@dataclass(frozen=True)
class Condition:
    """One input condition of one operator: passes of candidate against base and of base against base, one a replicate.

    `name` is the case's, `sizes` its axes in words (`N=16 K=576`).
    """

    operator: str
    name: str
    sizes: str
    comparisons: tuple[Pass, ...]
    controls: tuple[Pass, ...]

    @property
    def label(self) -> str:
        """`rms_norm model-decode-16`."""
        return f"{self.operator} {self.name}"


@dataclass(frozen=True)
class Judged:
    """One condition with its interval, or why there is none."""

    condition: Condition
    comparison: Comparison | None
    reason: str = ""

    @property
    def call_us(self) -> tuple[float, float]:
        """Microseconds a call of base and candidate, harness included; NaN without usable units."""
        usable = [item for item in self.condition.comparisons if item.usable]
        sides = [[unit for item in usable for unit in arm(item)] for arm in (lambda p: p.base, lambda p: p.candidate)]
        times = [
            1e6 * sum(unit.seconds for unit in units) / sum(unit.tokens for unit in units) if units else float("nan")
            for units in sides
        ]
        return times[0], times[1]


@dataclass(frozen=True)
class Grid:
    """All conditions, and their geometric mean. `overall` is None where nothing could be used."""

    conditions: tuple[Judged, ...]
    overall: Comparison | None
    floor: NoiseFloor | None

    def slower(self) -> tuple[Judged, ...]:
        """Conditions whose whole interval is below 1."""
        return tuple(item for item in self.conditions if item.comparison and item.comparison.high < 1.0)

    def faster(self) -> tuple[Judged, ...]:
        """Conditions whose whole interval is above 1."""
        return tuple(item for item in self.conditions if item.comparison and item.comparison.low > 1.0)


def judge_grid(conditions: Sequence[Condition], margin: float) -> Grid:
    """Intervals at 95 %: one for each condition, and one for the geometric mean over just these conditions.

    A condition's interval stands on its replicates, with a noise floor from the controls of all conditions. For the
    mean the replicate (three fresh processes) is the sampling unit, since conditions timed in the same processes share
    what is peculiar to them; conditions that were not timed in every replicate are left out of it.
    """
    controls = [item for condition in conditions for item in condition.controls if item.usable]
    if not controls:
        return Grid(tuple(Judged(c, None, "no undisturbed control units") for c in conditions), None, None)
    floor = NoiseFloor.of(controls)
    judged = []
    for condition in conditions:
        usable = [item for item in condition.comparisons if item.usable]
        if usable:
            judged.append(Judged(condition, compare(usable, floor, margin)))
        else:
            judged.append(Judged(condition, None, "every replicate was disturbed by other processes"))
    return Grid(tuple(judged), _overall(conditions, margin), floor)


def _overall(conditions: Sequence[Condition], margin: float) -> Comparison | None:
    replicates = max(len(condition.comparisons) for condition in conditions)
    whole = [
        condition
        for condition in conditions
        if len(condition.comparisons) == replicates
        and all(item.usable for item in (*condition.comparisons, *condition.controls))
    ]
    if not whole:
        return None
    compared = [_replicate([condition.comparisons[number] for condition in whole]) for number in range(replicates)]
    controls = [_replicate([condition.controls[number] for condition in whole]) for number in range(replicates)]
    discarded = sum(item.discarded for condition in whole for item in condition.comparisons)
    floor = NoiseFloor.of_observations(controls)
    return compare_observations(compared, floor, margin, n=len(whole) * replicates, discarded=discarded)


def _replicate(passes: Sequence[Pass]) -> Observation:
    """The mean over conditions in one replicate."""
    ratios, variances = zip(*(item.log_ratio() for item in passes), strict=True)
    mean = sum(ratios) / len(ratios)
    return Observation(mean, sum(variances) / len(ratios) ** 2, (mean,))
