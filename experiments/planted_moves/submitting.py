"""Submitting a planted move to the ladder of a run, and how long its verdict takes."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.planted_moves.plants import HONEST, PLANTS, Plant
from experiments.worlds import FixedLibrary, goal_of, opened, place_of
from feedback.verdict import Status, Verdict
from infra_agent.decision import Decision, Rules
from infra_agent.hypothesis import Hypothesis, Move, prediction
from infra_agent.ledger import Ledger
from infra_agent.loop import judge
from infra_agent.measurements import Subject
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.measurements.setup import Ground
from infra_agent.progress import Lines
from infra_agent.proposers.embedded import Estimate, Proposal
from infra_agent.records import Outcome
from infra_agent.steps import MARGIN, Steps

#: What an honest move must pass; timing is not asked of it here.
CORRECTNESS = ("static", "smoke", "operators")


@dataclass(frozen=True)
class Submission:
    """One planted move, submitted once. `seconds` from the change's text to the decision, with everything that had to
    be started first when `cold`.
    """

    plant: Plant
    cold: bool
    seconds: float
    verdicts: tuple[Verdict, ...]
    decision: str
    reason: str

    @property
    def refuting(self) -> Verdict | None:
        """The verdict that turned it down."""
        return next((verdict for verdict in self.verdicts if verdict.status is Status.REFUTED), None)

    @property
    def asked(self) -> tuple[str, ...]:
        """The layers that were asked, in order."""
        return tuple(verdict.layer for verdict in self.verdicts)


@dataclass
class Desk:
    """Takes submissions in one open world."""

    world: LiveMeasurements
    ground: Ground
    ledger: Ledger
    count: int = 0

    def submit(self, plant: Plant, cold: bool = False, begun: float | None = None) -> Submission:
        """One planted move through the ladder, with nothing learnt from those before it."""
        begun = time.perf_counter() if begun is None else begun
        self.count += 1
        name, base, move = f"p{self.count:02d}", self.ground.workspace.base, move_of(plant)
        # What a proposer would hand in is text: the change is made from the sources of the state.
        change = {"files": plant.edit(self.ground.workspace.sources(base)), "launch": {}}
        candidate = self.world.candidate(name, base, move, change)
        steps = Steps(self.ground.goal, self.ledger, self.world, Lines(io.StringIO()))
        rules = Rules(margin=MARGIN)
        decision, verdicts = judge(steps, rules, proposal_of(move, steps.goal.objective.metric), candidate, False)
        return _submission(plant, cold, time.perf_counter() - begun, verdicts, decision)

    def check(self, plant: Plant) -> Submission:
        """An honest move through the layers that say whether it is right."""
        begun = time.perf_counter()
        self.count += 1
        base, move = self.ground.workspace.base, move_of(plant)
        change = {"files": plant.edit(self.ground.workspace.sources(base)), "launch": {}}
        made = self.world.candidate(f"p{self.count:02d}", base, move, change)
        subject = Subject(
            hypothesis=f"p{self.count:02d}", base=base, candidate=made.commit, move=move, changed=made.changed
        )
        verdicts = [self.world.ask(layer, subject) for layer in CORRECTNESS]
        return _submission(plant, False, time.perf_counter() - begun, verdicts, None)


def _submission(
    plant: Plant, cold: bool, seconds: float, verdicts: Sequence[Verdict], decision: Decision | None
) -> Submission:
    outcome, reason = (decision.outcome.value, decision.reason) if decision else ("", "")
    return Submission(plant, cold, seconds, tuple(verdicts), outcome, reason)


def move_of(plant: Plant) -> Move:
    """The move as its proposer would describe it: faster, of course."""
    return Move(
        key=plant.name.replace(" ", "_"),
        skeletons=(plant.name.replace(" ", "_"),),
        kind="code",
        cause="planted",
        title=plant.name,
        share=0.5,
        gain=math.log(1.3),
        spread=0.1,
        operators=plant.operators,
    )


def proposal_of(move: Move, metric: str) -> Proposal:
    """The proposal around a move."""
    told = prediction(move.gain, move.spread)
    hypothesis = Hypothesis(
        observation="somebody says so", cause=move.cause, move=move, metric=metric, predicted=told, refuted_by="load"
    )
    return Proposal(hypothesis, Estimate(move, move.gain, move.spread, 1.0, move.gain, 1.0))


def session(
    folder: Path, plants: Sequence[Plant], model: str, cold: bool, honest: Sequence[Plant] = ()
) -> list[Submission]:
    """Submissions in one world, in order; the first of them pays for everything that is started when it is `cold`.

    A warm session first takes an honest move, which starts the oracle and all that stays alive.
    """
    begun = time.perf_counter()
    goal, place = place_of(goal_of("first_run", model=model, name="planted_moves"), folder)
    with Ledger.open(place.ledger) as ledger, opened(goal, place, FixedLibrary(), LiveMeasurements) as (world, ground):
        desk = Desk(world, ground, ledger)
        if cold:
            return [desk.submit(plants[0], cold=True, begun=begun)]
        desk.check(HONEST[0])
        return [*(desk.submit(plant) for plant in plants), *(desk.check(plant) for plant in honest)]


def right(submission: Submission) -> str:
    """Why a submission was not handled as it should be; empty when it was. Pure."""
    plant, refuting = submission.plant, submission.refuting
    if not plant.layers:
        unsure = [v for v in submission.verdicts if v.status is not Status.CONFIRMED]
        return f"an honest move was not confirmed: {unsure[0].line()}" if unsure else ""
    if submission.decision != Outcome.REJECT.value:
        return f"it was not rejected: {submission.decision} ({submission.reason})"
    if refuting is None:
        return f"no layer refuted it: {submission.reason}"
    if refuting.layer not in plant.layers:
        return f"{refuting.layer} refuted it, not {' or '.join(plant.layers)}"
    if not any(words in refuting.line() for words in plant.says):
        return f"its line does not say {' or '.join(plant.says)}: {refuting.line()}"
    if not refuting.at:
        return f"its line names no place: {refuting.line()}"
    return ""


__all__ = ["HONEST", "PLANTS", "Submission", "right", "session"]
