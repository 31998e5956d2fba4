"""The ladder: which probe to ask next, by the chance that it refutes the move, per second of its cost.

The chance is a Beta count per kind of move and layer; the cost is what the layer has cost in this run, starting from
the probe's own guess. Some layers must answer before a move can be kept (`required`); others are asked when they are
likely enough to save the cost of what would come after. Two orders are fixed: nothing of a candidate runs before
`static` has looked at it, and `load` is last, since a time is a result only for a candidate that computes the right
thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feedback.verdict import Status, Verdict
from infra_agent.hypothesis import Kind, Move

#: First guesses, as (refuted, held) pseudo-counts; a layer or kind that is not listed starts at `UNKNOWN`.
PRIORS: dict[tuple[Kind, str], tuple[float, float]] = {
    ("launch", "static"): (0.2, 10.0),
    ("launch", "smoke"): (0.3, 10.0),
    ("launch", "operators"): (0.1, 10.0),
    ("launch", "accuracy"): (0.6, 6.0),
    ("launch", "load"): (1.5, 1.5),
    ("code", "static"): (0.5, 10.0),
    ("code", "smoke"): (0.8, 8.0),
    ("code", "operators"): (1.0, 5.0),
    ("code", "microbench"): (1.0, 2.0),
    ("code", "accuracy"): (0.6, 6.0),
    ("code", "load"): (1.0, 1.5),
}
UNKNOWN = (0.5, 4.0)

#: How often a layer whose answer was `invalid` (disturbed, broken) is asked again.
RETRIES = 1

#: How much a new cost counts against the running mean: costs follow the engine, which gets faster.
FRESHNESS = 0.4


@dataclass(frozen=True)
class Experience:
    """What asking has taught so far: (refuted, asked) per kind of move and layer, and seconds per layer. Immutable."""

    guesses: Mapping[str, float]
    asked: Mapping[tuple[Kind, str], tuple[int, int]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def refutes(self, kind: Kind, layer: str) -> float:
        """Probability that the layer refutes a move of this kind. A bundle holds code if any part does, so it counts
        as code.
        """
        known: Kind = "code" if kind == "bundle" else kind
        yes, no = PRIORS.get((known, layer), UNKNOWN)
        refuted, asked = self.asked.get((known, layer), (0, 0))
        return (yes + refuted) / (yes + no + asked)

    def cost(self, layer: str) -> float:
        """Expected seconds of one answer."""
        return max(1e-3, self.seconds.get(layer, self.guesses.get(layer, 10.0)))

    def learn(self, kind: Kind, verdict: Verdict) -> Experience:
        """With one more verdict."""
        known: Kind = "code" if kind == "bundle" else kind
        asked = dict(self.asked)
        if verdict.status in (Status.CONFIRMED, Status.REFUTED, Status.INCONCLUSIVE):
            refuted, total = asked.get((known, verdict.layer), (0, 0))
            asked[known, verdict.layer] = (refuted + (verdict.status is Status.REFUTED), total + 1)
        old = self.seconds.get(verdict.layer)
        new = verdict.cost_seconds if old is None else (1 - FRESHNESS) * old + FRESHNESS * verdict.cost_seconds
        return Experience(self.guesses, asked, {**self.seconds, verdict.layer: new})


def required(move: Move) -> frozenset[str]:
    """Layers without whose answer a move cannot be kept."""
    layers = {"static", "smoke", "load"}
    if move.kind != "launch":
        layers.add("operators")
    if move.changes_numerics:
        layers.add("accuracy")
    return frozenset(layers)


def optional(move: Move) -> frozenset[str]:
    """Layers that may be asked when that is cheaper on average: a microbench for a move that claims to make operators
    faster.
    """
    return frozenset({"microbench"}) if move.kind != "launch" and move.operators else frozenset()


def order(move: Move, experience: Experience, done: frozenset[str] = frozenset()) -> list[str]:
    """Layers still to ask, in the order that finds a bad move with the least expected time.

    For tests that must all be passed, the order by (chance to refute) / cost is optimal. An optional layer is in it
    only if its chance to refute, times the cost of what would follow, exceeds its own cost.
    """

    def rate(layer: str) -> float:
        return experience.refutes(move.kind, layer) / experience.cost(layer)

    def place(layer: str) -> tuple[int, float, str]:
        return (0 if layer == "static" else 2 if layer == "load" else 1, -rate(layer), layer)

    available = set(experience.guesses)
    layers = sorted((required(move) & available) - done, key=place)
    for extra in sorted((optional(move) & available) - done, key=place):
        following = [layer for layer in layers if place(layer) > place(extra)]
        saved = experience.refutes(move.kind, extra) * expected_seconds(move, experience, following)
        if saved > experience.cost(extra):
            layers = sorted([*layers, extra], key=place)
    return layers


def expected_seconds(move: Move, experience: Experience, layers: Sequence[str] | None = None) -> float:
    """Expected time until the layers (all that the move needs, when None) have refuted the move or have all held."""
    total, alive = 0.0, 1.0
    for layer in order(move, experience) if layers is None else layers:
        total += alive * experience.cost(layer)
        alive *= 1 - experience.refutes(move.kind, layer)
    return total


def next_probe(move: Move, verdicts: Sequence[Verdict], experience: Experience) -> str | None:
    """The layer to ask now, or None when every layer that matters has answered.

    Asked only while the decision is open: a `load` that has answered and left it open is asked for another pass.
    """
    answers: dict[str, list[Status]] = {}
    for verdict in verdicts:
        answers.setdefault(verdict.layer, []).append(verdict.status)
    settled = {
        layer
        for layer, given in answers.items()
        if (layer != "load" and given[-1] is not Status.INVALID) or given.count(Status.INVALID) > RETRIES
    }
    remaining = order(move, experience, frozenset(settled))
    return remaining[0] if remaining else None


def refuting_probe(move: Move, experience: Experience) -> str:
    """The layer most likely to refute the move per second; what the hypothesis names before anything is asked."""
    layers = [layer for layer in order(move, experience) if layer != "static"] or ["load"]
    return max(layers, key=lambda layer: (experience.refutes(move.kind, layer) / experience.cost(layer), layer))
