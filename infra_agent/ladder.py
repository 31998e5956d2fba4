"""The ladder: which probe to ask next, so that a bad move is found with the least expected time.

What may be wrong with a move is one of several flaws, each named after the layer that is there to find it, or nothing
(`SOUND`). How common they are is learnt as Beta counts per kind of move and layer; how often a layer also finds what is
another's to find is measured by planting flaws (`Experience.planted`), and assumed (`SEES`) where nothing was planted.
What has held so far changes the belief by Bayes: after `operators` has held, a crash is less likely as well. The cost
is what a layer has cost in this run, starting from the probe's own guess.

Some layers must answer before a move can be kept (`required`); others are asked when they are likely enough to save
the cost of what would come after. Two orders are fixed: nothing of a candidate runs before `static` has looked at it,
and `load` is last, since a time is a result only for a candidate that computes the right thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from feedback.information.belief import Belief
from feedback.information.choice import Worth, worth
from feedback.information.outcomes import Likelihood, OutcomeTable
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
    ("code", "kernels"): (1.0, 4.0),
    ("code", "sharding"): (1.0, 4.0),
    ("code", "sharded_model"): (0.5, 5.0),
    ("code", "ranks"): (0.3, 8.0),
    ("code", "accuracy"): (0.6, 6.0),
    ("code", "load"): (1.0, 1.5),
}
UNKNOWN = (0.5, 4.0)

#: The flaw of a move that has none.
SOUND = "sound"

#: Flaws are counted in this order: a move with several is known by the first. Other layers come before `load`.
FLAWS = ("static", "smoke", "operators", "kernels", "sharding", "sharded_model", "ranks", "accuracy", "microbench")

#: Chance that a layer finds the flaw that it is there to find.
FINDS = 0.98

#: Assumed until measured: chance that the second layer also finds a flaw of the first one's. What is not listed: 0.
SEES: dict[tuple[str, str], float] = {
    ("smoke", "operators"): 0.5,  # half of the crashes are in an operator that is asked alone
    ("smoke", "load"): 0.98,
    ("operators", "smoke"): 0.3,  # grossly wrong: the first tokens already differ
    ("operators", "accuracy"): 0.5,
    ("operators", "load"): 0.3,
    ("operators", "kernels"): 0.5,
    ("kernels", "sharding"): 0.6,  # where a cut runs the kernel too
    ("kernels", "sharded_model"): 0.4,
    ("sharding", "sharded_model"): 0.5,  # a few lengths of one model, against every cut under many conditions
    ("sharding", "ranks"): 0.5,
    ("sharded_model", "sharding"): 0.3,
    ("sharded_model", "ranks"): 0.9,
    ("accuracy", "operators"): 0.2,
    ("accuracy", "load"): 0.1,
    ("microbench", "load"): 0.9,  # slower alone is seldom faster in service
}

#: How often a layer whose answer was `invalid` (disturbed, broken) is asked again.
RETRIES = 1

#: How much a new cost counts against the running mean: costs follow the engine, which gets faster.
FRESHNESS = 0.4


@dataclass(frozen=True)
class Experience:
    """What asking has taught so far: (refuted, asked) per kind of move and layer, and seconds per layer. Immutable.

    `planted`, where there is one, is a table of flaws (named after layers, and `SOUND`) by layers, with the statuses
    of their verdicts as outcomes.
    """

    guesses: Mapping[str, float]
    asked: Mapping[tuple[Kind, str], tuple[int, int]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    planted: OutcomeTable | None = None

    def refutes(self, kind: Kind, layer: str) -> float:
        """Probability that a move of this kind has the layer's flaw, when it has none of those counted before. A
        bundle holds code if any part does, so it counts as code.
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
        return replace(self, asked=asked, seconds={**self.seconds, verdict.layer: new})

    def sees(self, flaw: str, layer: str) -> float:
        """P(the layer refutes | the flaw): as planted, else as assumed."""
        if self.planted is not None and self.planted.planted(flaw, layer):
            likelihood = self.planted.likelihood(layer)
            if Status.REFUTED.value not in likelihood.outcomes:
                return 0.0
            return float(likelihood.column(Status.REFUTED.value)[likelihood.causes.index(flaw)])
        return FINDS if flaw == layer else SEES.get((flaw, layer), 0.0)


def required(move: Move) -> frozenset[str]:
    """Layers without whose answer a move cannot be kept. What mends results is judged by the layers that it names: it
    need not be faster, and where it starts from, an engine may not even answer.
    """
    if move.mends:
        return frozenset({"static", *move.layers})
    layers = {"static", "smoke", "load", *move.layers}
    if move.kind != "launch":
        layers.add("operators")
    if move.changes_numerics:
        layers.add("accuracy")
    return frozenset(layers)


def optional(move: Move) -> frozenset[str]:
    """Layers that may be asked when that is cheaper on average: a microbench for a move that claims to make operators
    faster.
    """
    faster = move.kind != "launch" and move.operators and not move.mends
    return frozenset({"microbench"}) if faster else frozenset()


def belief(move: Move, experience: Experience, held: Iterable[str] = ()) -> Belief:
    """What may be wrong with the move, when these layers have held."""
    looked_for = (required(move) | optional(move)) & set(experience.guesses)
    layers = sorted(looked_for, key=lambda layer: (_place(layer), layer))
    weights, left = {}, 1.0
    for layer in layers:
        chance = experience.refutes(move.kind, layer)
        weights[layer] = left * chance
        left *= 1 - chance
    now = Belief.weighted({**weights, SOUND: left})
    for layer in sorted(set(held)):
        now = now.after(_likelihood(now, experience, layer), "held")
    return now


def worths(move: Move, verdicts: Sequence[Verdict], experience: Experience) -> list[Worth]:
    """Bits that each layer which is still open would tell about the flaw, and its seconds, in the order of asking."""
    settled, held = _answered(verdicts)
    now = belief(move, experience, held)
    return [worth(now, _likelihood(now, experience, layer)) for layer in order(move, experience, settled, held)]


def asking(move: Move, experience: Experience) -> str:
    """What each layer would tell about the move before anything is asked, in the order of asking, for a person."""
    found = worths(move, (), experience)
    told = ", ".join(f"{each.probe} {each.bits:.2f} bits ({each.rate:.2g}/s)" for each in found)
    return f"asks in this order: {told}"


def order(
    move: Move, experience: Experience, done: frozenset[str] = frozenset(), held: Iterable[str] = ()
) -> list[str]:
    """Layers still to ask, in the order that finds a bad move with the least expected time, when those of `held` have
    answered and refuted nothing.

    The order is searched for exactly, since layers that find each other's flaws have no index to sort by. An optional
    layer is in it only if that makes the expected time shorter.
    """
    available = set(experience.guesses)
    standing = frozenset(held)
    alive = _alive(belief(move, experience, standing), experience)
    chosen = (required(move) & available) - done
    best = _quickest(chosen, alive, experience)
    for extra in sorted((optional(move) & available) - done):
        other = _quickest(chosen | {extra}, alive, experience)
        if other[0] < best[0]:
            chosen, best = chosen | {extra}, other
    return list(best[1])


def expected_seconds(
    move: Move, experience: Experience, layers: Sequence[str] | None = None, held: Iterable[str] = ()
) -> float:
    """Expected time until the layers (all that the move needs, when None) have refuted the move or have all held."""
    standing = frozenset(held)
    alive = _alive(belief(move, experience, standing), experience)
    asked = order(move, experience, standing, standing) if layers is None else layers
    return sum(alive(frozenset(asked[:number])) * experience.cost(layer) for number, layer in enumerate(asked))


def next_probe(move: Move, verdicts: Sequence[Verdict], experience: Experience) -> str | None:
    """The layer to ask now, or None when every layer that matters has answered.

    Asked only while the decision is open: a `load` that has answered and left it open is asked for another pass.
    """
    settled, held = _answered(verdicts)
    remaining = order(move, experience, settled, held)
    return remaining[0] if remaining else None


def refuting_probe(move: Move, experience: Experience) -> str:
    """The layer most likely to refute the move per second; what the hypothesis names before anything is asked."""
    layers = [layer for layer in order(move, experience) if layer != "static"] or ["load"]
    alive = _alive(belief(move, experience), experience)
    return max(layers, key=lambda layer: ((1 - alive(frozenset({layer}))) / experience.cost(layer), layer))


def _answered(verdicts: Sequence[Verdict]) -> tuple[frozenset[str], frozenset[str]]:
    """Layers that are not asked again, and those among all that have held."""
    answers: dict[str, list[Status]] = {}
    for verdict in verdicts:
        answers.setdefault(verdict.layer, []).append(verdict.status)
    settled = {
        layer
        for layer, given in answers.items()
        if (layer != "load" and given[-1] is not Status.INVALID) or given.count(Status.INVALID) > RETRIES
    }
    held = {layer for layer, given in answers.items() if given[-1] is Status.CONFIRMED}
    return frozenset(settled), frozenset(held)


def _place(layer: str) -> int:
    if layer == "load":
        return len(FLAWS) + 1
    return FLAWS.index(layer) if layer in FLAWS else len(FLAWS)


def _likelihood(now: Belief, experience: Experience, layer: str) -> Likelihood:
    found = np.array([experience.sees(flaw, layer) for flaw in now.causes])
    seconds = np.full(len(now.causes), experience.cost(layer))
    return Likelihood(layer, now.causes, ("refuted", "held"), np.stack([found, 1 - found], axis=1), seconds)


def _alive(now: Belief, experience: Experience) -> Callable[[frozenset[str]], float]:
    """Probability that a set of layers, asked from here on, refutes nothing. Given the flaw, they answer independently
    of each other.
    """
    missed: dict[str, np.ndarray] = {}

    def alive(layers: frozenset[str]) -> float:
        left = now.array
        for layer in sorted(layers):
            if layer not in missed:
                missed[layer] = _likelihood(now, experience, layer).column("held")
            left = left * missed[layer]
        return float(left.sum())

    return alive


def _quickest(
    layers: frozenset[str], alive: Callable[[frozenset[str]], float], experience: Experience
) -> tuple[float, tuple[str, ...]]:
    """Least expected seconds of asking all these layers, and the order that takes them: `static` first, `load` last.

    What is still to come depends on the set that was asked and not on its order, so the best way to each set is built
    from the best ways to those with one layer less.
    """
    first = tuple(sorted(layers & {"static"}))
    last = tuple(sorted(layers & {"load"}))
    ways: dict[frozenset[str], tuple[float, tuple[str, ...]]] = {frozenset(): (0.0, ())}
    for group in (first, tuple(sorted(layers - {"static", "load"})), last):
        for _ in group:
            longer: dict[frozenset[str], tuple[float, tuple[str, ...]]] = {}
            for asked, (seconds, way) in ways.items():
                for layer in group:
                    if layer not in asked:
                        step = (seconds + alive(asked) * experience.cost(layer), (*way, layer))
                        key = asked | {layer}
                        if key not in longer or step < longer[key]:
                            longer[key] = step
            ways = longer
    return ways[layers]
