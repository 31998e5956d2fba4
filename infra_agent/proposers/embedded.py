"""The default proposer: no model, no key. It takes the opening with the best expected gain per second of verification.

For each opening on the current state it computes

    value = P(cause is there) * P(it is right) * E[gain; gain beats the margin] / expected seconds of its ladder

where the gain is what the skeleton predicts, corrected by how earlier predictions of the same family turned out
(`skill`) and bounded by Amdahl's law. It stops when nothing is worth its cost. Everything is a function of the
arguments; ties fall to the content key, so the order in which openings are listed cannot matter.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra_agent.hypothesis import Hypothesis, Move, amdahl_ceiling, prediction
from infra_agent.ladder import Experience, expected_seconds, refuting_probe, required
from infra_agent.proposers.causes import Facts, observation, presence
from infra_agent.records import Outcome, Ratio

#: A move that was turned down is worth another look when the state has changed so much that it promises this many
#: times more.
RENEWED = 1.5

#: A move is tried at most so often in one run.
TRIES = 2

#: The least chance to pay, and the least expected gain as a part of the margin, that is worth a verification.
LEAST_CHANCE = 0.1
LEAST_GAIN = 0.2

#: Weight of "predictions are right as they stand" in `skill`, in squared log gain: so much evidence counts as much. One
#: prediction of 1.35x is enough to shake its own family, and says less about others of its kind.
TRUST_FAMILY = 0.3**2
TRUST_KIND = 0.6**2

#: Share of a measured near miss that is counted on when two are bundled: what almost cleared a margin was partly luck.
SHRINK = 0.8


@dataclass(frozen=True)
class Trial:
    """A move that was tried: what was expected (log gain as offered), what came out, and which layer turned it down
    (None: none did).
    """

    move: Move
    outcome: Outcome
    measured: Ratio | None
    refuted_by: str | None
    base: str


@dataclass(frozen=True)
class Aim:
    """What is sought: the metric's name, and the part by which a kept move must beat 1."""

    metric: str
    margin: float


@dataclass(frozen=True)
class Estimate:
    """What the proposer thinks of one opening: log gain and spread after learning, chances, expected gain, seconds,
    and gain per second.
    """

    move: Move
    gain: float
    spread: float
    chance: float
    expected: float
    seconds: float

    @property
    def value(self) -> float:
        """Expected log gain per second of verification."""
        return self.expected / self.seconds


@dataclass(frozen=True)
class Proposal:
    """The next hypothesis, with the estimate that it was chosen by and the best few that it was preferred to."""

    hypothesis: Hypothesis
    estimate: Estimate
    runners_up: tuple[Estimate, ...] = ()


@dataclass(frozen=True)
class Stop:
    """Nothing is worth its cost; the reason in one line."""

    reason: str


def propose(
    aim: Aim,
    history: Sequence[Trial],
    openings: Sequence[Move],
    facts: Facts,
    experience: Experience,
    seconds_left: float,
    seed: int,
    state: str = "",
) -> Proposal | Stop:
    """The next hypothesis, or why to stop. `state` identifies the tree that the openings and facts are of."""
    there = beliefs(facts, history, state)
    fresh = [move for move in openings if _may_try(move, history, state)]
    moves = [*fresh, *bundles(history, openings)]
    if not moves:
        tried = f" ({len(history)} tried)" if history else ""
        return Stop(f"no move is left whose conditions hold{tried}")
    estimates = sorted(
        (estimate(aim, move, history, there, experience) for move in moves), key=lambda e: _rank(e, seed)
    )
    worth = [e for e in estimates if e.chance >= LEAST_CHANCE and e.expected >= LEAST_GAIN * math.log1p(aim.margin)]
    if not worth:
        best = estimates[0]
        return Stop(
            f"no move is worth its cost: the best left, {best.move.title}, has a {100 * best.chance:.0f} % chance"
            f" to beat the margin; expected gain {100 * math.expm1(best.expected):.1f} % for {best.seconds:.0f} s"
        )
    affordable = [e for e in worth if e.seconds <= seconds_left]
    if not affordable:
        return Stop(
            f"{seconds_left:.0f} s are left, and the best move, {worth[0].move.title}, needs {worth[0].seconds:.0f} s"
        )
    best = affordable[0]
    return Proposal(_hypothesis(aim, best, facts, experience), best, tuple(affordable[1:4]))


def estimate(
    aim: Aim, move: Move, history: Sequence[Trial], there: Mapping[str, float], experience: Experience
) -> Estimate:
    """What to expect of a move, given what came of earlier ones."""
    scale = 1.0 if move.kind == "bundle" else skill(move, history)
    gain = min(scale * move.gain, amdahl_ceiling(move.share))
    spread = max(1e-6, move.spread)
    line = math.log1p(aim.margin)
    z = (gain - line) / spread
    beats = _cdf(z)
    truncated = gain * beats + spread * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    right = math.prod(1 - experience.refutes(move.kind, layer) for layer in required(move) - {"load"})
    wrong_before = sum(t.move.family == move.family and t.refuted_by not in (None, "load") for t in history)
    # What a bundle expects was measured, so whether its causes are there is no longer in question.
    present = 1.0 if move.kind == "bundle" else there.get(move.cause, 0.5)
    pays = present * right * 0.3**wrong_before
    return Estimate(move, gain, spread, pays * beats, pays * max(0.0, truncated), expected_seconds(move, experience))


def skill(move: Move, history: Sequence[Trial]) -> float:
    """Measured over predicted log gain: ridge regression through the origin, per kind towards 1, then per family
    towards its kind.
    """
    pairs = [
        (t.move, t.move.gain, math.log(t.measured.point))
        for t in history
        if t.measured is not None and not t.move.parts
    ]

    def ratio(chosen: list[tuple[float, float]], towards: float, trust: float) -> float:
        return (trust * towards + sum(p * m for p, m in chosen)) / (trust + sum(p * p for p, _ in chosen))

    of_kind = ratio([(p, m) for other, p, m in pairs if other.kind == move.kind], 1.0, TRUST_KIND)
    of_family = ratio([(p, m) for other, p, m in pairs if other.family == move.family], of_kind, TRUST_FAMILY)
    return min(2.0, max(0.0, of_family))


def beliefs(facts: Facts, history: Sequence[Trial], state: str) -> dict[str, float]:
    """Probability that each cause is there: from the facts, less what moves against it showed on this very state."""
    known = presence(facts)
    for trial in history:
        disappointed = trial.outcome is not Outcome.KEEP and trial.measured is not None and trial.base == state
        if disappointed and trial.move.cause in known and trial.measured is not None:
            # The move was right and brought little of what removing the cause should bring: odds fall with what is
            # missing.
            missing = 1 - min(1.0, max(0.0, math.log(trial.measured.point) / max(1e-6, trial.move.gain)))
            odds = known[trial.move.cause] / (1 - known[trial.move.cause]) * math.exp(-1.2 * missing)
            known[trial.move.cause] = odds / (1 + odds)
    return known


def bundles(history: Sequence[Trial], openings: Sequence[Move]) -> list[Move]:
    """Pairs of near misses that may pay together: right, not clearly a loss, different causes, both still to be had,
    not tried yet.
    """
    offered = {move.key: move for move in openings}
    near: dict[str, Trial] = {}
    for trial in history:
        if (
            trial.outcome is Outcome.REVISE
            and trial.measured is not None
            and not trial.move.parts
            and trial.move.key in offered
        ):
            near[trial.move.key] = trial
    tried = {trial.move.key for trial in history}
    pairs = itertools.combinations(sorted(near.values(), key=lambda t: t.move.key), 2)
    made = (_bundle(first, second, offered) for first, second in pairs)
    return [move for move in made if move is not None and move.key not in tried]


def _bundle(first: Trial, second: Trial, offered: Mapping[str, Move]) -> Move | None:
    one, two = offered[first.move.key], offered[second.move.key]
    if one.cause == two.cause or set(one.launch) & set(two.launch):
        return None
    assert first.measured is not None
    assert second.measured is not None
    gain = SHRINK * (math.log(first.measured.point) + math.log(second.measured.point))
    spreads = [math.log(m.high / m.low) / (2 * 1.96) for m in (first.measured, second.measured)]
    return Move(
        key=f"bundle:{one.key}+{two.key}",
        skeletons=(*one.skeletons, *two.skeletons),
        kind="bundle",
        cause=max((one, two), key=lambda m: (m.gain, m.key)).cause,
        title=f"{one.title}, together with {two.title}",
        share=1 - (1 - one.share) * (1 - two.share),
        gain=gain,
        spread=math.hypot(*spreads),
        operators=tuple(sorted({*one.operators, *two.operators})),
        changes_numerics=one.changes_numerics or two.changes_numerics,
        launch={**one.launch, **two.launch},
        parts=(one.key, two.key),
    )


def _may_try(move: Move, history: Sequence[Trial], state: str) -> bool:
    earlier = [trial for trial in history if trial.move.key == move.key or move.key in trial.move.parts]
    if any(trial.outcome is Outcome.KEEP for trial in earlier):
        return False
    alone = [trial for trial in earlier if not trial.move.parts]
    if not alone:
        return True
    last = alone[-1]
    settled = last.outcome is Outcome.ASK or (last.outcome is Outcome.REJECT and last.measured is None)
    changed = last.base != state and move.gain >= RENEWED * last.move.gain
    return changed and not settled and len(alone) < TRIES


def _hypothesis(aim: Aim, best: Estimate, facts: Facts, experience: Experience) -> Hypothesis:
    move = best.move
    return Hypothesis(
        observation=observation(move.cause, facts),
        cause=move.cause,
        move=move,
        metric=aim.metric,
        predicted=prediction(best.gain, best.spread, amdahl_ceiling(move.share)),
        refuted_by=refuting_probe(move, experience),
    )


def _rank(candidate: Estimate, seed: int) -> tuple[float, str]:
    """Best value first; equal to nine digits, the digest of seed and key decides."""
    value = float(f"{candidate.value:.9g}")
    return -value, hashlib.sha256(f"{seed}:{candidate.move.key}".encode()).hexdigest()


def _cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
