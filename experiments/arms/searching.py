"""One arm's search: the loop's own steps and acceptance with the arm's proposer, world and library, and no end.

The end of a run (rebuilds, references, ablation) is left out: the arms' best states are compared with one another
instead. What is measured goes into a ledger in the arm's folder, so a search that is begun again goes on.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.arms.random_search import LaunchAssignments, RandomSearch, space_of
from experiments.worlds import FixedLibrary, opened, place_of
from feedback.errors import UserError
from feedback.probe import Tree
from feedback.statistics import NoiseFloor
from infra_agent.goal import Goal
from infra_agent.ledger import Ledger
from infra_agent.loop import try_move
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.measurements.setup import Ground
from infra_agent.progress import Lines
from infra_agent.proposers.embedded import Aim, Proposal, Stop, propose
from infra_agent.records import BaselineRecord, MoveRecord, Outcome, RunRecord
from infra_agent.steps import MARGIN, Steps

#: What stands in the place of `propose`, with its arguments.
Proposer = Callable[..., Proposal | Stop]


@dataclass(frozen=True)
class Arm:
    """One way to search. `kinds`: the skeletons it may use (empty: all); `launch_only`: whether it sets nothing but
    launch parameters.
    """

    name: str
    kinds: frozenset[str]
    launch_only: bool
    world: Callable[[Ground, Any], LiveMeasurements]
    proposer: Callable[[Goal, Ground], Proposer]


ARMS: tuple[Arm, ...] = (
    Arm(
        "random launch",
        frozenset({"launch"}),
        True,
        LaunchAssignments,
        lambda goal, ground: RandomSearch(space_of(goal, ground.description.launch_space)),
    ),
    Arm("embedded launch", frozenset({"launch"}), True, LiveMeasurements, lambda goal, ground: propose),
    Arm("embedded launch and code", frozenset(), False, LiveMeasurements, lambda goal, ground: propose),
)


@dataclass(frozen=True)
class Searched:
    """What one search found. `state` is its best state on disk, `curve` (seconds spent, estimate over the start) after
    every decision.
    """

    arm: Arm
    seed: int
    state: Tree
    trusted: Tree
    workload: Path
    candidates: int
    kept: tuple[MoveRecord, ...]
    seconds: float
    curve: tuple[tuple[float, float], ...]
    reason: str

    @property
    def over_start(self) -> float:
        """The product of what its kept moves measured."""
        return self.curve[-1][1]


class Floor:
    """The noise floor of this machine, measured on the start by the first search of the session and used by all: they
    begin from the same state, and none pays for it out of its budget. Kept in a file, for an experiment that goes on.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: tuple[BaselineRecord, NoiseFloor] | None = None
        if file.is_file():
            told = json.loads(file.read_text(encoding="utf-8"))
            self._found = BaselineRecord.model_validate(told["record"]), NoiseFloor(**told["noise"])

    def of(self, steps: Steps, world: LiveMeasurements, start: str) -> BaselineRecord:
        """The start as measured, now or before."""
        if self._found is None:
            record, noise = steps.baseline(start), world.noise
            assert noise is not None
            self._found = record, noise
            told = {"record": record.model_dump(mode="json"), "noise": asdict(noise)}
            self._file.write_text(json.dumps(told), encoding="utf-8")
        record, world.noise = self._found
        if record.commit != start:
            raise UserError(f"{self._file} is of another start: give the experiment an empty folder")
        steps.ledger.note("baseline", "start", record)
        steps.spent = 0.0
        return record


def searched(arm: Arm, goal: Goal, folder: Path, floor: Floor, show: Lines | None = None) -> Searched:
    """Search with one arm until its budget or its proposer says stop."""
    goal, place = place_of(goal, folder)
    library = FixedLibrary(arm.kinds)
    with Ledger.open(place.ledger) as ledger, opened(goal, place, library, arm.world) as (world, ground):
        record = ledger.once("run", "run", {"goal": goal.digest}, ground.record, RunRecord)
        steps = Steps(goal, ledger, world, show or Lines(sys.stderr))
        start = floor.of(steps, world, record.base_commit)
        kept, curve, reason = _search(steps, arm.proposer(goal, ground), start)
        best = kept[-1].commit if kept and kept[-1].commit else record.base_commit
        state = Tree(ground.workspace.worktree(best), best, ground.workspace.config(best))
        return Searched(
            arm=arm,
            seed=goal.seed,
            state=state,
            trusted=ground.trusted,
            workload=ground.workload(goal.objective.workload),
            candidates=steps.candidates,
            kept=tuple(kept),
            seconds=steps.spent,
            curve=tuple(curve),
            reason=reason,
        )


def _search(
    steps: Steps, proposer: Proposer, start: BaselineRecord
) -> tuple[list[MoveRecord], list[tuple[float, float]], str]:
    """The page of `infra_agent.loop.run` with another proposer and all of the budget for the search."""
    goal = steps.goal
    aim = Aim(goal.objective.metric, MARGIN)
    rules = steps.rules(start)
    best, history, kept = start.commit, [], list[MoveRecord]()
    curve = [(steps.spent, 1.0)]
    facts, openings = steps.observe(best)
    while True:
        left = steps.seconds_to_search()
        proposal = proposer(aim, history, openings.moves, facts, steps.experience, left, goal.seed, best)
        if isinstance(proposal, Stop):
            return kept, [*curve, (steps.spent, curve[-1][1])], proposal.reason
        trial, record = try_move(steps, rules, best, proposal, facts, kept)
        history.append(trial)
        if record.decision is Outcome.KEEP and record.commit is not None:
            kept.append(record)
            best = record.commit
            facts, openings = steps.observe(best)
        gain = math.prod(each.measured.point for each in kept if each.measured is not None)
        curve += [(steps.spent, curve[-1][1]), (steps.spent, gain)]
