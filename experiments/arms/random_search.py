"""Random search over launch parameters: the proposer that knows nothing, and the world that makes what it draws."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from feedback.target import Parameter
from infra_agent.goal import Goal
from infra_agent.hypothesis import Hypothesis, Move, prediction
from infra_agent.ladder import Experience, expected_seconds
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.proposers.causes import Facts
from infra_agent.proposers.embedded import Aim, Estimate, Proposal, Stop, Trial

#: Launch parameters that choose among implementations: the start has none to choose from, so they are no part of it.
NOT_DRAWN = "operators."


class LaunchAssignments(LiveMeasurements):
    """The live world, for moves that say themselves which parameters they set."""

    def change(self, commit: str, move: Move, facts: Facts) -> dict[str, Any]:
        """The move's own launch parameters."""
        return {"files": {}, "launch": dict(move.launch)}


def space_of(goal: Goal, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """The parameters that are drawn, each with the values that the goal allows."""
    found = []
    for parameter in parameters:
        values = tuple(value for value in parameter.values if goal.may_launch(parameter.name, value))
        if values and not parameter.name.startswith(NOT_DRAWN):
            found.append(parameter.model_copy(update={"values": values}))
    return tuple(found)


def drawn(space: Sequence[Parameter], seed: int, number: int) -> dict[str, Any]:
    """The assignment of one draw: every parameter uniformly from its values, all independent."""
    rng = random.Random(f"launch {seed} {number}")
    return {parameter.name: rng.choice(parameter.values) for parameter in space}


class RandomSearch:
    """Proposes one drawn assignment after another. A function of the seed and of how many were tried."""

    def __init__(self, space: Sequence[Parameter]) -> None:
        self.space = tuple(space)

    def __call__(
        self,
        aim: Aim,
        history: Sequence[Trial],
        openings: Sequence[Move],
        facts: Facts,
        experience: Experience,
        seconds_left: float,
        seed: int,
        state: str = "",
    ) -> Proposal | Stop:
        """The next draw, or that the time does not allow another."""
        move = self.move(drawn(self.space, seed, len(history)), len(history), facts)
        needed = expected_seconds(move, experience)
        if needed > seconds_left:
            return Stop(f"{seconds_left:.0f} s are left, and a draw needs {needed:.0f} s")
        hypothesis = Hypothesis(
            observation="nothing is known",
            cause=move.cause,
            move=move,
            metric=aim.metric,
            predicted=prediction(move.gain, move.spread),
            refuted_by="load",
        )
        return Proposal(hypothesis, Estimate(move, move.gain, move.spread, 0.5, move.gain, needed))

    def move(self, launch: Mapping[str, Any], number: int, facts: Facts) -> Move:
        """A move that sets these parameters. It changes numerics where one that does differs from the present value."""
        numerics = any(
            parameter.changes_numerics and launch[parameter.name] != facts.get(f"launch.{parameter.name}")
            for parameter in self.space
        )
        told = ", ".join(f"{name}={value}" for name, value in sorted(launch.items()))
        return Move(
            key=f"draw {number}",
            skeletons=("random_launch",),
            kind="launch",
            cause="chance",
            title=told,
            gain=math.log(1.0),
            spread=0.7,
            changes_numerics=numerics,
            launch=dict(launch),
        )
