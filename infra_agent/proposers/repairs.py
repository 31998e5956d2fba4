"""Which repair to try next: the cheapest one that is likely to be enough, in the places that are to blame. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from infra_agent.hypothesis import Hypothesis, Move, prediction
from infra_agent.ladder import Experience, expected_seconds, refuting_probe
from infra_agent.proposers.causes import Facts
from infra_agent.proposers.deviations import PREFIX, blamed, diagnosis, observation
from infra_agent.proposers.embedded import Estimate, Proposal, Stop, Trial

#: A repair that is less likely than this to be enough is not tried.
LEAST_CHANCE = 0.05

#: A move that leaves out an operator which is to blame is as good as hopeless, and one that touches another is idle.
UNCOVERED = 0.02


def propose(
    metric: str,
    history: Sequence[Trial],
    openings: Sequence[Move],
    facts: Facts,
    experience: Experience,
    seconds_left: float,
    seed: int,
) -> Proposal | Stop:
    """The next hypothesis, or why to stop."""
    tried = {trial.move.key for trial in history}
    moves = [move for move in openings if move.mends and move.key not in tried]
    if not moves:
        said = f" ({len(history)} tried)" if history else ""
        return Stop(f"no repair is left whose conditions hold{said}")
    found = sorted((estimate(move, facts, experience) for move in moves), key=lambda e: _rank(e, facts, seed))
    worth = [each for each in found if each.chance >= LEAST_CHANCE]
    if not worth:
        return Stop(f"no repair is likely to be enough: the best, {found[0].move.title}, by {found[0].chance:.0%}")
    affordable = [each for each in worth if each.seconds <= seconds_left]
    if not affordable:
        best = worth[0]
        return Stop(f"{seconds_left:.0f} s are left, and {best.move.title} needs {best.seconds:.0f} s")
    best = affordable[0]
    hypothesis = Hypothesis(
        observation=observation(facts),
        cause=best.move.cause,
        move=best.move,
        metric=metric,
        predicted=prediction(best.gain, best.spread),
        refuted_by=refuting_probe(best.move, experience),
    )
    return Proposal(hypothesis, best, tuple(affordable[1:4]))


def estimate(move: Move, facts: Facts, experience: Experience) -> Estimate:
    """The chance that the move brings the deviation to what is allowed."""
    present = dict(diagnosis(facts)).get(move.cause, 0.0)
    ratio = facts.get(f"{PREFIX}ratio")
    needed = math.log(max(1.0, float(ratio))) if isinstance(ratio, (int, float)) else 0.0
    enough = 0.5 * math.erfc((needed - move.gain) / (max(1e-6, move.spread) * math.sqrt(2)))
    covers = 1.0 if blamed(facts) <= set(move.operators) else UNCOVERED
    chance = present * enough * covers
    return Estimate(move, move.gain, move.spread, chance, chance * move.gain, expected_seconds(move, experience))


def _rank(candidate: Estimate, facts: Facts, seed: int) -> tuple[bool, bool, float, int, int, str]:
    """Likely ones first, and among them the cheapest: what slows least, in the fewest places, none of them idle."""
    move = candidate.move
    idle = len(set(move.operators) - blamed(facts)) if blamed(facts) else 0
    tie = hashlib.sha256(f"{seed}:{move.key}".encode()).hexdigest()
    covers = blamed(facts) <= set(move.operators)
    return candidate.chance < LEAST_CHANCE, not covers, move.slowdown, idle, max(1, len(move.places)), tie
