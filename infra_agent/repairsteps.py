"""The effects of a run that mends results, beyond those of every run. Through the ledger, like `steps`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from feedback.verdict import Status, Verdict
from feedback.workers.failures import one_line
from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.ledger import Ledger
from infra_agent.measurements import CandidateFailed, Openings, Repairing, Subject
from infra_agent.progress import Progress
from infra_agent.proposers import deviations
from infra_agent.proposers.causes import Facts
from infra_agent.records import AblationRecord, BaselineRecord, CandidateRecord, Ratio, Record, RegressionRecord
from infra_agent.steps import Made, Steps

#: Deviations smaller than this, as a multiple of what is allowed, are counted as this large.
NOTHING = 1e-9


class Said(Record):
    """Some lines."""

    lines: tuple[str, ...]


class Written(Record):
    """A file of a patch: where it lies in the target, and its text."""

    path: str
    text: str


class RepairSteps(Steps):
    """One run's effects."""

    def __init__(self, goal: Goal, ledger: Ledger, world: Repairing, show: Progress) -> None:
        super().__init__(goal, ledger, world, show)
        self._repairing = world

    def look_into(self, commit: str, verdict: Verdict) -> tuple[Facts, Openings]:
        """Facts about a state that deviates, and what could be done about it."""
        self.show.doing("looking into the deviation")
        seen, openings = self._seen(commit, lambda: self._repairing.deviation(commit, verdict))
        self.show.observed(seen, deviations.diagnosis(seen), sum(move.mends for move in openings.moves))
        return seen, openings

    def deviates(self, commit: str, ratio: float) -> None:
        """Record the start: by how much it deviates, as a multiple of what is allowed."""
        metrics = {self.goal.objective.metric: ratio} if ratio > 0 else {}
        record = BaselineRecord(label="start", commit=commit, metrics=metrics)
        self.ledger.note("baseline", "start", record)
        self.show.measured(record, self.goal.objective.metric)

    def part(self, label: str, base: str, move: Move, facts: Facts) -> tuple[dict[str, Any], Made]:
        """A repair at some of its places, as a candidate; with its change."""
        text = self._changed(label, base, move, facts)
        if text.change is None:
            return {}, Made(failed=text.failed)
        return text.change, self._attempt(label, base, move, text.change)

    def ablated(self, label: str, move: str, gain: Ratio | None, note: str, verdict: str | None = None) -> None:
        """Record what taking one place out showed."""
        record = AblationRecord(label=label, moves=(move,), gain=gain, note=note, verdict=verdict)
        self.ledger.note("ablation", label, record)
        self.show.ablated(record)

    def tested(
        self, base: str, candidate: CandidateRecord, change: Mapping[str, Any], move: Move, facts: Facts, found: Verdict
    ) -> tuple[CandidateRecord, RegressionRecord, Verdict]:
        """The candidate with a regression test in it, what the test says of base and patch, and whether the patch is
        still within its scope. Raises `CandidateFailed` when the test cannot be added.
        """
        name, world = f"{candidate.move} tested", self._repairing
        self.show.doing("writing a regression test and trying it on the base")

        if f"{deviations.PREFIX}operator" not in facts:
            raise CandidateFailed("no operator deviates, so there is none to write a regression test for")

        def write() -> Written:
            path, text = world.test_text(base, facts, found.observed)
            return Written(path=path, text=text)

        test = self._once("test", name, {"base": base}, write, Written)
        whole = {"files": {**change["files"], test.path: test.text}, "launch": dict(change["launch"])}
        made = self._attempt(name, base, move, whole, test=test.path)
        if made.candidate is None:
            raise CandidateFailed(f"the regression test cannot be added: {made.failed}")
        commit = made.candidate.commit
        record = self._once(
            "regression",
            candidate.move,
            {"base": base, "candidate": commit},
            lambda: world.regression(base, commit, test.path, test.text, facts),
            RegressionRecord,
        )
        subject = Subject(
            hypothesis=name, base=base, candidate=commit, move=move, changes_numerics=move.changes_numerics,
            changed=made.candidate.changed,
        )  # fmt: skip
        return made.candidate, record, self.ask("static", subject)

    def applicability(self, name: str, verdict: Verdict) -> tuple[str, ...]:
        """Where the kernels of a candidate cannot be used."""
        world = self._repairing
        return self._once(
            "applicability", name, {"verdict": verdict.id}, lambda: Said(lines=world.applicability(verdict)), Said
        ).lines

    def served(self, layer: str, base: str, candidate: str, move: Move) -> Verdict:
        """A layer asked of base and patch as this machine can serve them; once more where the answer broke."""
        world = self._repairing
        self.show.doing(f"serving the base and the patch: asking {layer}")
        for n in (1, 2):
            verdict = self._verdict(
                "served", base, candidate, layer, n,
                lambda n=n: world.served(layer, base, candidate, move.changes_numerics, n),
            )  # fmt: skip
            self.show.answered("served", verdict)
            if verdict.status is not Status.INVALID:
                break
        return verdict

    def not_served(self, base: str) -> tuple[str, ...]:
        """What serving a base and its patch on this machine leaves out."""

        def ask() -> Said:
            try:
                return Said(lines=self._repairing.not_served(base))
            except Exception as error:  # what is not known is a gap, and no reason to end a run
                return Said(lines=(f"what can be served here is not known: {one_line(str(error))}",))

        return self._once("not_served", base, {"base": base}, ask, Said).lines


def finite(value: object) -> float:
    """A number; not a number where there is none, or no finite one."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def shrunk(before: float, after: float) -> Ratio | None:
    """By how much a deviation shrank; None where one of the two was not measured."""
    if not (before > 0 and after >= 0):
        return None
    ratio = before / max(after, NOTHING)
    return Ratio(point=ratio, low=ratio, high=ratio)
