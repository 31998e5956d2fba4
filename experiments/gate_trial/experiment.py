"""Does the gate let harmless commits through, stop wrong and slow ones, and never cry wolf, and how long does it take?

Ten commits of a scratch copy of the shipped engine: five harmless, two wrong (one of them only in long contexts), three
slower by 10, 20 and 30 per cent. Each is judged against its base with the gate's own probes: correctness, deterministic
counters, throughput of which 5 per cent may be lost. Then pairs of equal commits, of which none may be a regression.

Options: `pairs` of equal commits (20), `commits` (10, the first so many), `model`, `workload` (a file), `passes` (4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.gate_trial.commits import COMMITS, Commit, Scratch
from experiments.worlds import ADAPTER
from infra_agent import tomltext
from infra_agent.experiments import Context, Result
from infra_agent.gate import judge
from infra_agent.gate.budgets import Budgets
from infra_agent.gate.checks import Answer, Report
from infra_agent.report.svg import AMBER, BLUE, GREEN, RED, Canvas, spanning
from infra_agent.targetfiles import root_of

COLUMNS = ("commit", "kind", "outcome", "exit_code", "right", "throughput", "low", "high", "seconds", "why")
SAME = Commit("equal", "equal", lambda texts: {})
COLOURS = {"pass": GREEN, "regression": RED, "inconclusive": AMBER, "broken": BLUE}


@dataclass(frozen=True)
class Judged:
    """A commit and what the gate said."""

    commit: Commit
    report: Report

    @property
    def right(self) -> bool:
        """Whether the answer is the right one; of equal commits only a regression is wrong."""
        if self.commit.kind == "equal":
            return self.report.outcome != "regression"
        return self.report.outcome == self.commit.outcome


def run(context: Context) -> Result:
    """Judge all commits, then the equal pairs."""
    scratch = Scratch(context.out / "repository.git", root_of(ADAPTER))
    file = context.out / "budgets.toml"
    file.write_text(budgets(context), encoding="utf-8")
    asked = Budgets.load(file)
    found: list[Judged] = []

    def judged(commit: Commit, head: str) -> None:
        folder = context.out / "repository.git"
        report = judge(scratch.base, head, asked, file, folder, lambda check: None)
        found.append(Judged(commit, report))
        said = "" if found[-1].right else "NOT RIGHT, "
        context.say(f"{commit.name}: {said}{report.outcome} in {report.seconds:.0f} s")

    for commit in COMMITS[: int(context.option("commits", "10"))]:
        judged(commit, scratch.commit(commit))
    for number in range(int(context.option("pairs", "20"))):
        judged(SAME, scratch.same(number))
    return told(found)


def budgets(context: Context) -> str:
    """The budgets file of the trial."""
    model, workload = context.option("model", ""), context.option("workload", "")
    return tomltext.document(
        {
            "adapter": ADAPTER,
            "profile": "target_engine/profiles/production.toml",
            "reference": "target_engine/profiles/sequential.toml",
            "workload": workload or "main",
            "correctness": ["smoke", "operators"],
            **({"launch": {"model": model}} if model else {}),
            "counters": {"steps": 0.0, "scheduled_tokens": 0.0, "output_tokens": 0.0},
            "timing": {"may_lose": 0.05, "passes": int(context.option("passes", "4"))},
        }
    )


def told(found: Sequence[Judged]) -> Result:
    """Table, picture, claims. Pure."""
    ten = [one for one in found if one.commit.kind != "equal"]
    equal = [one for one in found if one.commit.kind == "equal"]
    right = sum(one.right for one in ten)
    alarms = sum(not one.right for one in equal)
    claims = {
        f"right answers on ten commits ({right} of {len(ten)})": len(ten) == len(COMMITS) and right == len(ten),
        f"no false alarm on twenty equal pairs ({alarms} of {len(equal)})": len(equal) >= 20 and alarms == 0,
    }
    passed = sum(one.report.outcome == "pass" for one in equal)
    notes = [f"{passed} of {len(equal)} equal pairs pass, the others could not be decided"]
    for title, group in (("commits", ten), ("equal pairs", equal)):
        if group:
            p50, p95 = np.quantile([one.report.seconds for one in group], [0.5, 0.95])
            notes.append(f"seconds a gate, {title}: p50 {p50:.0f}, p95 {p95:.0f}")
    return Result(
        columns=COLUMNS,
        rows=tuple(row(one) for one in found),
        picture=picture(found),
        notes=tuple(notes),
        claims=claims,
        data={"reports": [one.report.to_json() for one in found]},
    )


def row(one: Judged) -> tuple[object, ...]:
    """One row of the table: the outcome and the check that made it."""
    report = one.report
    timing = next((check.figures for check in report.checks if "effect" in check.figures), {})
    effect = tuple(timing.get(name) for name in ("effect", "low", "high"))
    deciding = next((check for check in report.checks if check.answer not in (Answer.PASS, Answer.SKIPPED)), None)
    why = f"{deciding.name}: {deciding.line}"[:140] if deciding else ""
    right = "yes" if one.right else "NO"
    return (one.commit.name, one.commit.kind, report.outcome, report.exit_code, right, *effect, report.seconds, why)


def picture(found: Sequence[Judged]) -> Canvas:
    """The measured throughput of every commit over its base with its interval, in the colour of the outcome."""
    timed = [(one, check.figures) for one in found for check in one.report.checks if "effect" in check.figures]
    canvas = Canvas(820, 60 + 20 * len(timed), "Throughput over the base, coloured by the gate's answer")
    scale = spanning([figures[name] for _, figures in timed for name in ("low", "high")], 270, 790, floor=1.0)
    for value, colour in ((1.0, "#8a8f98"), (0.95, RED)):
        canvas.line(scale(value), 14, scale(value), 24 + 20 * len(timed), colour, 0.8, "4 3")
        canvas.text(scale(value), 40 + 20 * len(timed), f"{value:g}x", anchor="middle")
    for line, (one, figures) in enumerate(timed):
        y, colour = 26.0 + 20 * line, COLOURS[one.report.outcome]
        canvas.text(262, y + 4, one.commit.name, anchor="end", size=11)
        canvas.line(scale(figures["low"]), y, scale(figures["high"]), y, colour, 3)
        canvas.dot(scale(figures["effect"]), y, colour)
    return canvas
