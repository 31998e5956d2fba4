"""The effects of a run, each of them through the ledger, and what a run has spent and learnt.

The loop decides and these methods act. Whatever they return comes out of the ledger, so that a run which is begun
again goes the same way up to the point where it was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from feedback.verdict import Confidence, Predicate, Status, Verdict
from infra_agent.decision import Limit, Rules
from infra_agent.goal import Goal
from infra_agent.hypothesis import Hypothesis, Move
from infra_agent.ladder import Experience
from infra_agent.ledger import Ledger
from infra_agent.measurements import CandidateFailed, Measurements, Openings, Remembered, Subject, Traffic
from infra_agent.progress import Progress
from infra_agent.proposers.causes import Facts, diagnosis, with_found
from infra_agent.records import (
    BaselineRecord,
    CandidateRecord,
    MoveRecord,
    ProfileRecord,
    ProposalRecord,
    Record,
    VerdictRecord,
)

Model = TypeVar("Model", bound=Record)

#: By how much a kept move must beat its base, when the machine's own noise is not larger.
MARGIN = 0.02


#: What rebuilds, comparisons and the ablation may take at the end, as a share of the search's budget.
END_SHARE = 0.9

#: How a goal's names are spelt in the metrics of the verdicts that measure them.
SPELLING = {
    "mean_kl": "mean_kl_nats",
    "greedy_agreement": "forced_greedy_agreement",
}


class Made(Record):
    """A candidate, or the line that says why there is none."""

    candidate: CandidateRecord | None = None
    failed: str | None = None


class Text(Record):
    """The text of a change, or the line that says why there is none."""

    change: dict[str, Any] | None = None
    failed: str | None = None


class Tree(Record):
    """A commit, or the line that says why it could not be made; neither where nothing is made."""

    commit: str | None = None
    failed: str | None = None


@dataclass
class Steps:
    """One run's effects. `spent` counts seconds as recorded, so that it is the same after a resume."""

    goal: Goal
    ledger: Ledger
    world: Measurements
    show: Progress
    spent: float = 0.0
    candidates: int = 0
    judged: int = 0
    loads: list[float] = field(default_factory=list)
    experience: Experience = field(init=False)

    def __post_init__(self) -> None:
        self.experience = Experience(dict(self.world.guesses))

    # -- what a run has ------------------------------------------------------------------------------------------------

    def seconds_to_search(self, reserve: float = 0.0) -> float:
        """Seconds left for trying moves, when `reserve` is what the end will need."""
        wall = self.goal.budget.wall_seconds
        return min(wall - self.spent, self.seconds_to_end() - reserve)

    def seconds_to_end(self) -> float:
        """Seconds left for everything: the goal's budget is the search's, and the end comes on top of it."""
        return self.goal.budget.wall_seconds * (1 + END_SHARE) - self.spent

    def rules(self, start: BaselineRecord) -> Rules:
        """What a move must meet, given what was measured of the start."""
        sense = {bound.name: bound.at_most for bound in self.goal.bounds}
        bounds = self.goal.limits(start.metrics)
        limits = [Limit(name, SPELLING.get(name, name), bounds[name], sense[name]) for name in bounds]
        return Rules(margin=MARGIN, limits=tuple(limits), approvals=frozenset(self.goal.approval.kinds))

    # -- observing -----------------------------------------------------------------------------------------------------

    def baseline(self, commit: str) -> BaselineRecord:
        """The start, measured."""
        self.show.doing("measuring the start and the noise of this machine")
        record = self._once(
            "baseline", "start", {"commit": commit}, lambda: self.world.baseline(commit), BaselineRecord
        )
        self.show.measured(record, self.goal.objective.metric)
        return record

    def observe(self, commit: str) -> tuple[Facts, Openings]:
        """Facts about a state, and what could be done about it."""
        self.show.doing("profiling")
        seen, openings = self._seen(commit, lambda: self.world.profile(commit))
        offered = [move.cause for move in openings.moves if move.kind == "code"]
        facts = with_found(seen, offered, openings.looked_for)
        self.show.observed(facts, diagnosis(facts), len(openings.moves))
        return facts, openings

    def _seen(self, commit: str, look: Callable[[], ProfileRecord]) -> tuple[Facts, Openings]:
        inputs = {"commit": commit}
        seen = self._once("profile", commit, inputs, look, ProfileRecord).facts
        return seen, self._once("openings", commit, inputs, lambda: self.world.openings(commit, seen), Openings)

    # -- trying a move -------------------------------------------------------------------------------------------------

    def propose(
        self, base: str, hypothesis: Hypothesis, facts: Facts, considered: Sequence[str]
    ) -> tuple[ProposalRecord, Made]:
        """Record the hypothesis, then make its candidate. A move that cannot be made comes back with the reason."""
        self.candidates += 1
        move = hypothesis.move
        name = f"m{self.candidates:02d}-{_slug(move.family)}"
        self.show.proposed(name, hypothesis)
        text = self._changed(name, base, move, facts)
        proposal = ProposalRecord(
            id=name,
            kind=move.kind,
            title=move.title,
            hypothesis=hypothesis.sentence(),
            cause=move.cause,
            predicted=hypothesis.predicted,
            base=base,
            change=text.change or {"files": {}, "launch": {}},
            changes_numerics=move.changes_numerics,
            skeletons=move.skeletons,
            operators=move.operators,
            observations=(hypothesis.observation, *considered),
        )
        self.ledger.note("proposal", name, proposal)
        if text.change is None:
            return proposal, Made(failed=text.failed)
        made = self._attempt(name, base, move, text.change)
        if made.candidate is not None:
            self.ledger.note("candidate", name, made.candidate)
        return proposal, made

    def _changed(self, name: str, base: str, move: Move, facts: Facts) -> Text:
        inputs = {"base": base, "key": move.key}
        return self._once("change", name, inputs, lambda: self._text(base, move, facts), Text)

    def _attempt(self, name: str, base: str, move: Move, change: dict[str, Any], **more: str) -> Made:
        inputs = {"base": base, "key": move.key, **more}
        return self._once("attempt", name, inputs, lambda: self._made(name, base, move, change), Made)

    def _text(self, base: str, move: Move, facts: Facts) -> Text:
        try:
            return Text(change=self.world.change(base, move, facts))
        except CandidateFailed as error:
            return Text(failed=_line(error))

    def _made(self, name: str, base: str, move: Move, change: dict[str, Any]) -> Made:
        try:
            return Made(candidate=self.world.candidate(name, base, move, change))
        except CandidateFailed as error:
            return Made(failed=_line(error))

    def ask(self, layer: str, subject: Subject) -> Verdict:
        """One probe's verdict. What breaks in the asking is an `invalid` verdict: one candidate never ends the run."""
        self.show.doing(f"{subject.hypothesis}: asking {layer}")
        verdict = self._verdict(
            subject.hypothesis,
            subject.base,
            subject.candidate,
            layer,
            subject.n,
            lambda: self.world.ask(layer, subject),
        )
        self.experience = self.experience.learn(subject.move.kind, verdict)
        if layer == "load":
            self.loads.append(verdict.cost_seconds)
        self.show.answered(subject.hypothesis, verdict)
        return verdict

    def keep(self, record: MoveRecord, candidate: CandidateRecord) -> str:
        """Put the candidate on the run's branch; returns the kept commit."""
        inputs = {"commit": candidate.commit}
        kept = self._once("keep", record.id, inputs, lambda: Tree(commit=self.world.keep(candidate, record)), Tree)
        assert kept.commit is not None
        return kept.commit

    def decided(self, record: MoveRecord, best: float) -> None:
        """Record a decision; `best` is the estimate of best over start after it."""
        self.ledger.note("decision", record.id, record)
        self.show.decided(record, best)

    def remember(self, name: str, move: Move, outcome: Remembered) -> None:
        """Leave what was measured of a skeleton's move to later runs. A library that cannot be written ends no run."""
        if len(move.skeletons) != 1 or move.parts:
            return

        def note() -> Tree:
            try:
                self.world.remember(move, outcome)
            except Exception as error:
                return Tree(failed=_line(error))
            return Tree()

        self._once("evidence", f"{name}/{outcome.kind}", outcome, note, Tree)

    # -- closing -------------------------------------------------------------------------------------------------------

    def compare(self, base: str, candidate: str, traffic: Traffic, label: str, n: int = 1) -> Verdict:
        """Two states side by side in fresh instances; a comparison that breaks is `invalid`."""
        self.show.doing(f"comparing: {label}")
        about = f"{label}/{traffic}"
        verdict = self._verdict(
            about, base, candidate, "load", n, lambda: self.world.compare(base, candidate, traffic, label, n)
        )
        self.show.compared(label, traffic, verdict)
        return verdict

    def without(self, tip: str, commits: tuple[str, ...], label: str) -> Tree:
        """`tip` with kept commits taken out."""

        def take_out() -> Tree:
            try:
                return Tree(commit=self.world.without(tip, commits, label))
            except CandidateFailed as error:
                return Tree(failed=_line(error))

        return self._once("without", label, {"tip": tip, "commits": list(commits)}, take_out, Tree)

    # -- through the ledger --------------------------------------------------------------------------------------------

    def _verdict(
        self, about: str, base: str, candidate: str, layer: str, n: int, ask: Callable[[], Verdict]
    ) -> Verdict:
        def asked() -> VerdictRecord:
            try:
                verdict = ask()
            except Exception as error:
                verdict = _broken(about, layer, _line(error))
            return VerdictRecord(move=about, commit=candidate, base=base, verdict=verdict.model_dump(mode="json"))

        before = self.spent
        inputs = {"base": base, "candidate": candidate}
        record = self._once("verdict", f"{about}/{layer}/{n}", inputs, asked, VerdictRecord)
        verdict = Verdict.model_validate(record.verdict)
        self.spent = max(self.spent, before + verdict.cost_seconds)
        return verdict

    def _once(self, kind: str, key: str, payload: Any, fn: Callable[[], Model], model: type[Model]) -> Model:
        before = self.ledger.seconds
        result = self.ledger.once(kind, key, payload, fn, model)
        self.spent += self.ledger.seconds - before
        return result


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def _line(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, CandidateFailed) else f"{type(error).__name__}: {text}"


def _broken(about: str, layer: str, line: str) -> Verdict:
    predicate = Predicate(layer=layer, statement=f"{layer} can be asked")
    return Verdict(
        hypothesis=about,
        layer=layer,
        status=Status.INVALID,
        predicate=predicate.statement,
        predicate_digest=predicate.digest,
        observed=f"the probe broke: {line}"[:500],
        confidence=Confidence.DIRECT,
        gaps=(f"{layer} gave no answer",),
        cost_seconds=0.0,
    )
