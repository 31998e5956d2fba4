"""Units and passes: what the clock gave, and what it says of the two arms once disturbed units are dealt with.

A unit in which other processes took more than 5 % of the CPU says nothing about the arm, yet leaving out its tokens and
its time would change what the arm is seen to do: drop a prefill and it looks faster. So its tokens stay, and its time
is replaced by what the arm's undisturbed units predict for the same work (steps, output tokens, prompt tokens finished;
least squares with non-negative costs), never more than was observed, since others only ever slow an arm down. The error
of that prediction is added to the within-pass variance. A pass with more than a fifth of an arm's units disturbed is
not used at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

DISTURBED_SHARE = 0.05  # of all CPU time, by other processes: the unit is discarded
MAX_DISCARDED = 0.2  # of an arm's units: the pass is not used


@dataclass(frozen=True, slots=True)
class Unit:
    """One uninterrupted stretch of one arm's work, timed by the parent.

    `tokens` came out of it (calls, in a microbenchmark), `steps` engine steps were taken, `prompt_tokens` is the prompt
    length of the requests whose first token it brought. `other_cpu_share` is what other processes took of all CPU time
    meanwhile.
    """

    seconds: float
    tokens: int
    other_cpu_share: float = 0.0
    steps: int = 1
    prompt_tokens: int = 0

    @property
    def disturbed(self) -> bool:
        return self.other_cpu_share > DISTURBED_SHARE


@dataclass(frozen=True, slots=True)
class ArmTime:
    """An arm's whole pass: `seconds` with disturbed units replaced, `variance` of log(seconds) from within the pass."""

    seconds: float
    tokens: int
    units: int
    discarded: int
    variance: float

    @property
    def throughput(self) -> float:
        """Tokens per second of the arm's own time."""
        return self.tokens / self.seconds


def arm_time(units: Sequence[Unit]) -> ArmTime:
    """Sum an arm's units; see the module docstring for what is done with disturbed ones.

    Raises `ValueError` when none is clean.
    """
    clean = [unit for unit in units if not unit.disturbed]
    if not clean:
        raise ValueError("every unit of the arm was disturbed by other processes")
    disturbed = [unit for unit in units if unit.disturbed]
    replaced, imputation = _replace(clean, disturbed) if disturbed else ([], 0.0)
    seconds = sum(unit.seconds for unit in clean) + sum(replaced)
    spread = _relative_spread(units)
    white = spread**2 * (sum(unit.seconds**2 for unit in clean) + sum(value**2 for value in replaced))
    return ArmTime(
        seconds=seconds,
        tokens=sum(unit.tokens for unit in units),
        units=len(units),
        discarded=len(disturbed),
        variance=(white + imputation) / seconds**2,
    )


def _work(units: Iterable[Unit]) -> np.ndarray:
    return np.array([[unit.steps, unit.tokens, unit.prompt_tokens] for unit in units], dtype=float)


def _replace(clean: Sequence[Unit], disturbed: Sequence[Unit]) -> tuple[list[float], float]:
    """Predicted seconds of the disturbed units, and the variance of their sum."""
    work, seconds = _work(clean), np.array([unit.seconds for unit in clean])
    active = [column for column in range(work.shape[1]) if work[:, column].any()]
    cost = np.zeros(work.shape[1])
    while active:
        solution = np.linalg.lstsq(work[:, active], seconds, rcond=None)[0]
        if (solution >= 0).all():
            cost[active] = solution
            break
        active = [column for column, value in zip(active, solution, strict=True) if value >= 0]
    residual = seconds - work @ cost
    variance = float(residual @ residual) / max(len(clean) - len(active), 1)
    predicted = [
        min(unit.seconds, float(value)) for unit, value in zip(disturbed, _work(disturbed) @ cost, strict=True)
    ]
    return predicted, variance * len(disturbed)


def _relative_spread(units: Sequence[Unit]) -> float:
    """Relative noise of a unit, from differences of neighbours: what the work itself changes slowly does not count."""
    rates = [math.log(unit.seconds / max(unit.steps, 1)) if not unit.disturbed else math.nan for unit in units]
    steps = np.diff(np.array(rates))
    steps = steps[np.isfinite(steps)]
    if len(steps) < 3:
        return 0.0
    return 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2.0)


@dataclass(frozen=True)
class Pass:
    """Both arms through the whole workload once, interleaved. `instances` labels the two processes that were timed."""

    base: tuple[Unit, ...]
    candidate: tuple[Unit, ...]
    instances: tuple[str, str] = ("base", "candidate")

    @property
    def discarded_share(self) -> float:
        """The larger share of disturbed units of the two arms."""
        return max(sum(unit.disturbed for unit in arm) / len(arm) for arm in (self.base, self.candidate))

    @property
    def usable(self) -> bool:
        return self.discarded_share <= MAX_DISCARDED

    @property
    def discarded(self) -> int:
        return sum(unit.disturbed for unit in (*self.base, *self.candidate))

    def log_ratio(self) -> tuple[float, float]:
        """log(throughput of the candidate / of the base), and its variance from within the pass."""
        base, candidate = arm_time(self.base), arm_time(self.candidate)
        return math.log(candidate.throughput / base.throughput), base.variance + candidate.variance


@dataclass(frozen=True)
class Observation:
    """What one set of connected instances says: mean log ratio, within-pass variance of that mean.

    The passes' log ratios.
    """

    mean: float
    variance: float
    passes: tuple[float, ...]


def observations(passes: Sequence[Pass]) -> tuple[Observation, ...]:
    """Group passes that share an instance with one another, directly or through a third; one observation a group."""
    groups: list[tuple[set[str], list[Pass]]] = []
    for item in passes:
        labels, members = set(item.instances), [item]
        apart = []
        for other_labels, other_members in groups:
            if labels & other_labels:
                labels, members = labels | other_labels, other_members + members
            else:
                apart.append((other_labels, other_members))
        groups = [*apart, (labels, members)]
    found = []
    for _, members in groups:
        ratios, variances = zip(*(member.log_ratio() for member in members), strict=True)
        count = len(ratios)
        within = sum(variances) / count
        if count > 1:
            within = max(within, float(np.var(ratios, ddof=1)))
        found.append(Observation(float(np.mean(ratios)), within / count, tuple(ratios)))
    return tuple(found)
