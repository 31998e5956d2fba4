"""What a gate concludes. Pure: verdicts and counters in, checks and an exit code out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from feedback.verdict import Status, Verdict
from infra_agent.gate.budgets import Counter


class Answer(StrEnum):
    """What a check says about the head commit."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    BROKEN = "broken"  # the check itself did not work; nothing is known about the head
    SKIPPED = "skipped"  # not run, since the answer is clear without it


EXIT = {"pass": 0, "regression": 1, "broken": 2, "inconclusive": 3}


@dataclass(frozen=True)
class Check:
    """One check. `line` says what was found; `figures` are numbers worth keeping."""

    name: str
    answer: Answer
    line: str
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All checks of one gate."""

    base: str
    head: str
    checks: tuple[Check, ...]
    seconds: float
    evidence: str = ""

    @property
    def outcome(self) -> str:
        """A regression outweighs everything, a broken check what could not be decided, and that a pass."""
        answers = {check.answer for check in self.checks}
        if Answer.FAIL in answers:
            return "regression"
        if Answer.BROKEN in answers or not self.checks:
            return "broken"
        return "inconclusive" if Answer.INCONCLUSIVE in answers else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regression, 2 usage or infrastructure, 3 inconclusive."""
        return EXIT[self.outcome]

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return {
            "schema_version": 1,
            "base": self.base,
            "head": self.head,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "evidence": self.evidence,
            "checks": [
                {
                    "name": check.name,
                    "answer": check.answer.value,
                    "line": check.line,
                    "seconds": check.seconds,
                    "figures": dict(check.figures),
                }
                for check in self.checks
            ],
        }


def of_verdict(name: str, verdict: Verdict, timing: bool = False) -> Check:
    """A probe's verdict as a check. What a target cannot show was not shown: unsupported is inconclusive, never a
    pass.
    """
    answer = {
        Status.CONFIRMED: Answer.PASS,
        Status.REFUTED: Answer.FAIL,
        Status.INCONCLUSIVE: Answer.INCONCLUSIVE,
        Status.INVALID: Answer.INCONCLUSIVE if timing else Answer.BROKEN,
        Status.UNSUPPORTED: Answer.INCONCLUSIVE,
    }[verdict.status]
    figures: dict[str, Any] = {"verdict": verdict.id, "evidence": verdict.evidence}
    if verdict.effect is not None and verdict.interval is not None:
        figures |= {"effect": verdict.effect, "low": verdict.interval[0], "high": verdict.interval[1]}
    return Check(name, answer, verdict.line(), verdict.cost_seconds, figures)


def of_counters(
    bounds: Mapping[str, Counter], base: Mapping[str, float], head: Mapping[str, float], seconds: float
) -> list[Check]:
    """One check a bounded counter."""
    return [_counter(name, bound, base, head, seconds / max(1, len(bounds))) for name, bound in sorted(bounds.items())]


def _counter(name: str, bound: Counter, base: Mapping[str, float], head: Mapping[str, float], seconds: float) -> Check:
    title = f"counter {name}"
    if name not in base or name not in head:
        known = ", ".join(sorted(base.keys() & head.keys()))
        return Check(title, Answer.BROKEN, f"the target has no counter {name}; it has {known or 'none'}", seconds)
    figures = {"base": base[name], "head": head[name]}
    breach = bound.breach(base[name], head[name])
    if breach is not None:
        return Check(title, Answer.FAIL, f"{name}: {breach}", seconds, figures)
    return Check(title, Answer.PASS, f"{name}: {base[name]:g} -> {head[name]:g}", seconds, figures)


def unsteady(checks: Sequence[Check], again: Mapping[str, float]) -> list[Check]:
    """Counter checks after the base was run a second time: a breach of a counter that the base itself does not repeat
    is no regression but says that the counter is not deterministic.
    """
    found = []
    for check in checks:
        name = check.name.removeprefix("counter ")
        if check.answer is Answer.FAIL and again.get(name) != check.figures["base"]:
            line = (
                f"{name} is not deterministic: the base gave {check.figures['base']:g}, then {again.get(name, 0.0):g}"
            )
            found.append(Check(check.name, Answer.INCONCLUSIVE, line, check.seconds, check.figures))
        else:
            found.append(check)
    return found
