"""How a deviation grows: the condition that failed, over more shards and over longer contexts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feedback.operators.cases import checked_cases, free_axes
from feedback.oracle import OracleFailure
from feedback.sharding.compare import ratio_of, relative_error
from feedback.sharding.conditions import Condition
from feedback.sharding.growth import Growth, fit
from feedback.sharding.precision import Attribution, attribute
from feedback.sharding.trial import Outcome, Trials
from feedback.workers.failures import WorkerFailure

SHARDS = (2, 4, 8, 16)
LENGTHS = (64, 128, 256, 512)

#: Errors are the largest over so many draws of the inputs: one draw may happen to be a kind one.
DRAWS = ("A", "B")


def growths(trials: Trials, condition: Condition, brief: bool = False) -> list[Growth]:
    """Growth with the number of shards, and with the number of tokens where it may vary alone; nothing for inputs that
    were not drawn.
    """
    if condition.inputs is not None:
        return []
    case, cut = condition.case, trials.cut
    long = max(LENGTHS if not brief else LENGTHS[:2])
    lengths = "N" in free_axes(checked_cases(cut.info.cases)) and case.dims.get("N", 0) > 0
    base = case.model_copy(update={"dims": {**case.dims, "N": long}}) if lengths else case
    found = [fit("shards", _points(trials, ((n, Condition(base, n)) for n in (SHARDS[:3] if brief else SHARDS))))]
    if lengths:
        sizes = LENGTHS[:3] if brief else LENGTHS
        cases = ((n, case.model_copy(update={"dims": {**case.dims, "N": n}})) for n in sizes)
        found.append(fit("tokens", _points(trials, ((n, Condition(each, condition.ranks)) for n, each in cases))))
    return [growth for growth in found if growth is not None]


def _points(trials: Trials, conditions: Iterable[tuple[int, Condition]]) -> list[tuple[float, float]]:
    """(x, relative error); what cannot be cut, is refused or fails is left out."""
    points = []
    for x, condition in conditions:
        errors = [error for label in DRAWS if (error := _error(trials, condition, label)) is not None]
        if errors:
            points.append((float(x), max(errors)))
    return points


def _error(trials: Trials, condition: Condition, label: str) -> float | None:
    try:
        question = trials.question(condition, label)
        if question is None or not trials.subject.alive:
            return None
        answers = trials.ask(condition, question)
    except (OracleFailure, WorkerFailure):
        return None
    error = max(relative_error(trials.cut.info, question, answer) for answer in answers)
    return error if np.isfinite(error) else None


def attribution(trials: Trials, outcome: Outcome) -> Attribution | None:
    """Rounding or logic, from the same inputs at higher precision; None when it cannot be asked again."""
    condition = outcome.condition
    question = trials.question(condition, outcome.label)
    if question is None or not trials.subject.alive:
        return None

    def ask(exact: tuple[str, ...], wide: bool) -> float | None:
        try:
            answers = trials.ask(condition, question, exact, wide)
        except WorkerFailure:
            return None
        if any(answer.failed for answer in answers):
            return None
        return max(ratio_of(question, answer, trials.tolerance) for answer in answers)

    return attribute(ask, outcome.used, outcome.relative)
