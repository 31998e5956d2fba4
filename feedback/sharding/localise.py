"""Which step of the combination goes wrong first, and on which inputs: statements from what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedback.operators.conditions import failing_condition
from feedback.operators.patterns import ErrorPattern, compare
from feedback.sharding.compare import Answer, Question
from feedback.sharding.conditions import Condition
from feedback.target import Tolerance


@dataclass(frozen=True)
class Step:
    """Where a run first leaves what is expected: a named step, the ranks, an array of it and its pattern.

    `unknown` says why inner steps could not be told apart, empty where they could.
    """

    name: str
    ranks: tuple[int, ...] = ()
    tensor: str = ""
    pattern: ErrorPattern | None = None
    unknown: str = ""


def first_wrong_step(steps: Sequence[str], question: Question, answer: Answer, tolerance: Tolerance) -> Step:
    """The first step in order that is outside the tolerance on any rank, or that a rank did not reach; else the last,
    the outputs.
    """
    unknown = "" if question.steps is not None or len(steps) == 1 else "the reference has no inner steps"
    for name in steps[:-1]:
        found: dict[int, tuple[str, ErrorPattern]] = {}
        absent = [rank for rank, reached in enumerate(answer.steps) if name not in reached]
        for rank, reached in enumerate(answer.steps):
            if question.steps is None or rank in absent or name not in question.steps[rank]:
                continue
            wrong = _wrong_array(reached[name], question.steps[rank][name], tolerance)
            if isinstance(wrong, str):
                unknown = unknown or f"step {name} is recorded otherwise: {wrong}"
            elif wrong is not None:
                found[rank] = wrong
        if found:
            worst = max(found, key=lambda rank: (found[rank][1].worst, -rank))
            return Step(name, tuple(found), *found[worst])
        if absent and answer.failed:
            return Step(name, tuple(absent))
        if absent:
            unknown = unknown or f"step {name} is not recorded"
    return Step(steps[-1], unknown=unknown)


def _wrong_array(got: dict, want: dict, tolerance: Tolerance) -> tuple[str, ErrorPattern] | str | None:
    """The first array of a step that is outside the tolerance; a string where they cannot be compared."""
    for name, array in want.items():
        if name not in got:
            return f"no {name}"
        if got[name].shape != array.shape:
            return f"{name} {list(got[name].shape)}, not {list(array.shape)}"
        pattern = compare(got[name], array, tolerance)
        if pattern is not None:
            return name, pattern
    return None


def where_it_fails(outcomes: Sequence[tuple[Condition, bool]]) -> str | None:
    """What separates the conditions that fail from those that pass, exactly, or None."""
    failed = [condition for condition, bad in outcomes if bad]
    passed = [condition for condition, bad in outcomes if not bad]
    if not failed or not passed:
        return None
    bad, good = ({condition.case.distribution for condition in some} for some in (failed, passed))
    if len(failed) > 1 and len(bad) <= 3 and len(good) > 1 and not bad & good:
        return f"only under {', '.join(sorted(bad))}"
    if len(failed) > 1 and all(c.cut for c in failed) and not any(c.cut for c in passed):
        return "only where pieces are uneven or empty"
    return failing_condition([(condition.dims, bad) for condition, bad in outcomes])
