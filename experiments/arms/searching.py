"""One arm's search: the loop's own steps and acceptance with the arm's proposer, world and library, and no end.

The end of a run (rebuilds, references, ablation) is left out: the arms' best states are compared with one another
instead. What is measured goes into a ledger in the arm's folder, so a search that is begun again goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.arms.random_search import LaunchAssignments, RandomSearch, space_of
from experiments.worlds import FixedLibrary, opened, place_of
from feedback.probe import Tree
from infra_agent.goal import Goal
from infra_agent.ledger import Ledger
from infra_agent.loop import try_move
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.measurements.setup import Ground
from infra_agent.progress import Lines
from infra_agent.proposers.embedded import Aim, Proposal, Stop, propose
from infra_agent.records import MoveRecord, Outcome, RunRecord
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


def searched(arm: Arm, goal: Goal, folder: Path, show: Lines | None = None) -> Searched:
    """Search with one arm until its budget or its proposer says stop."""
    goal, place = place_of(goal, folder)
    library = FixedLibrary(arm.kinds)
    with Ledger.open(place.ledger) as ledger, opened(goal, place, library, arm.world) as (world, ground):
        record = ledger.once("run", "run", {"goal": goal.digest}, ground.record, RunRecord)
        steps = Steps(goal, ledger, world, show or Lines(sys.stderr))
        kept, curve, reason = _search(steps, arm.proposer(goal, ground), record.base_commit)
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


def _search(steps: Steps, proposer: Proposer, start: str) -> tuple[list[MoveRecord], list[tuple[float, float]], str]:
    """The page of `infra_agent.loop.run` with another proposer and all of the budget for the search."""
    goal = steps.goal
    aim = Aim(goal.objective.metric, MARGIN)
    rules = steps.rules(steps.baseline(start))
    best, history, kept = start, [], list[MoveRecord]()
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
