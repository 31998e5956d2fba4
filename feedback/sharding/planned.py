"""What an operator plan says before anything runs: that it cannot run over its ranks, or that it cuts nothing. Pure."""

from __future__ import annotations

from feedback.judging import Finding
from feedback.target import OperatorPlan
from feedback.verdict import Confidence, Location, Status

UNCUT = "the launch configuration has one rank, nothing is cut: set tp or cp"


def refused(plan: OperatorPlan) -> Finding | None:
    """A refutation where the model cannot be cut over these ranks."""
    if not plan.problems:
        return None
    problem = plan.problems[0]
    observed = f"cannot run over these ranks: {problem.parameter}: {problem.message}"
    return Finding(Status.REFUTED, observed, Confidence.PROOF, at=(Location(parameter=problem.parameter),))


def uncut() -> Finding:
    """There is nothing to compare."""
    return Finding(Status.UNSUPPORTED, UNCUT, gaps=(UNCUT,))


def obstacle(plan: OperatorPlan) -> Finding | None:
    """Why a model over the plan's ranks is not compared with one on one rank."""
    return refused(plan) or (None if any(row.sharding for row in plan.rows) else uncut())
