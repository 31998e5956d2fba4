"""What the timings of an operator say, condition by condition and over all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedback.statistics import CONFIDENCE, Comparison, NoiseFloor, Pass, compare


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

    The noise floor pools the controls of all conditions: every one is a pair of base instances of its own. In the
    overall mean the replicates of a condition count as one observation, and conditions may differ from one another
    without widening the interval.
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
    passes = [item for entry in judged if entry.comparison for item in entry.condition.comparisons if item.usable]
    overall = compare(passes, floor, margin, CONFIDENCE, pool_spread=False) if passes else None
    return Grid(tuple(judged), overall, floor)
