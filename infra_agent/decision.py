"""What to do with a move, given its verdicts. Pure: the same verdicts and rules give the same decision.

* keep: `load` confirmed an effect whose whole interval beats the margin, every layer that the move needs has
  confirmed it, and every constraint holds.
* ask: the same, but the goal wants a person to approve this kind of change; it is set aside.
* reject: a layer refuted it, a constraint is broken, or it cannot be judged here.
* revise: it is right, and its gain, if any, is too small or too uncertain to keep alone; it stays available for a
  bundle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedback.verdict import Status, Verdict
from infra_agent.hypothesis import Move
from infra_agent.ladder import required
from infra_agent.records import MoveRecord, Outcome, ProposalRecord, Ratio

#: z of a two-sided 95 % interval, which is what a verdict's interval is.
Z95 = 1.96

#: Layers whose confirmation says that a code move computes the right thing.
CORRECTNESS = frozenset({"smoke", "operators", "accuracy"})

#: Figures that the accuracy layer measures, and only of candidates whose numbers may change; all others are load's.
ACCURACY = frozenset({"nll_increase_relative", "mean_kl_nats", "forced_greedy_agreement"})


@dataclass(frozen=True)
class Limit:
    """One constraint in absolute figures: `metric` of the load or accuracy verdict must be at most (at least)
    `bound`.
    """

    name: str
    metric: str
    bound: float
    at_most: bool = True

    def holds(self, value: float) -> bool:
        """Whether a measured value is within the bound."""
        return value <= self.bound if self.at_most else value >= self.bound

    def words(self, value: float) -> str:
        """The breach in words."""
        side = "at most" if self.at_most else "at least"
        return f"{self.name}: {self.metric} is {value:.4g}, {side} {self.bound:.4g} is allowed"


@dataclass(frozen=True)
class Rules:
    """What the goal demands of a kept move. `margin` is the part by which the lower bound must exceed 1; `passes` the
    most load passes.
    """

    margin: float
    limits: tuple[Limit, ...] = ()
    approvals: frozenset[str] = frozenset()
    passes: int = 2


@dataclass(frozen=True)
class Decision:
    """The outcome, its reason in one line, and the effect as far as it was measured. `judged` is false where the probes
    broke: then the outcome says nothing about the move.
    """

    outcome: Outcome
    reason: str
    measured: Ratio | None = None
    judged: bool = True


def as_record(
    proposal: ProposalRecord, decision: Decision, verdicts: Sequence[Verdict], commit: str | None = None
) -> MoveRecord:
    """The whole story of a decided move."""
    return MoveRecord(
        id=proposal.id,
        kind=proposal.kind,
        title=proposal.title,
        hypothesis=proposal.hypothesis,
        cause=proposal.cause,
        predicted=proposal.predicted,
        measured=decision.measured,
        decision=decision.outcome,
        reason=decision.reason,
        verdicts=tuple(verdict.id for verdict in verdicts),
        commit=commit,
        changes_numerics=proposal.changes_numerics,
        skeletons=proposal.skeletons,
        seconds=sum(verdict.cost_seconds for verdict in verdicts),
    )


def pooled(verdicts: Sequence[Verdict]) -> Ratio | None:
    """The effect over several passes: inverse-variance mean of the logs; the interval is never narrower than the
    passes' own spread says.
    """
    timed = [v for v in verdicts if v.effect is not None and v.interval is not None and v.status is not Status.INVALID]
    if not timed:
        return None
    if len(timed) == 1:
        only = timed[0]
        assert only.effect is not None
        assert only.interval is not None
        return Ratio(point=only.effect, low=only.interval[0], high=only.interval[1])
    logs = [math.log(v.effect) for v in timed if v.effect is not None]
    errors = [max(1e-4, math.log(v.interval[1] / v.interval[0]) / (2 * Z95)) for v in timed if v.interval is not None]
    weights = [1 / error**2 for error in errors]
    mean = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
    within = 1 / math.sqrt(sum(weights))
    between = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    half = Z95 * max(within, between)
    return Ratio(point=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def decide(move: Move, verdicts: Sequence[Verdict], rules: Rules, another_pass: bool) -> Decision | None:
    """The decision, or None while a layer is still to be asked. `another_pass` says whether one more load pass can be
    afforded.
    """
    refuted = next((verdict for verdict in verdicts if refutes(verdict)), None)
    if refuted is not None:
        return Decision(Outcome.REJECT, refuted.line(), pooled(_load(verdicts)))
    broken = broken_limit(verdicts, rules.limits)
    if broken is not None:
        return Decision(Outcome.REJECT, broken, pooled(_load(verdicts)))
    latest = {v.layer: v for v in verdicts}
    if "load" not in latest:
        return None
    return _after_load(move, verdicts, latest, rules, another_pass)


def closed(move: Move, verdicts: Sequence[Verdict]) -> Decision:
    """The decision when no layer is left to ask and `decide` is still open: it could not be judged."""
    latest = {v.layer: v for v in verdicts}
    open_layers = sorted(layer for layer in required(move) if layer not in latest or not _answered(latest[layer]))
    why = next(
        (latest[layer].line() for layer in open_layers if layer in latest),
        f"{', '.join(open_layers) or 'load'} gave no answer",
    )
    return Decision(Outcome.REJECT, f"could not be judged: {why}", pooled(_load(verdicts)), judged=False)


def _after_load(
    move: Move, verdicts: Sequence[Verdict], latest: Mapping[str, Verdict], rules: Rules, another_pass: bool
) -> Decision | None:
    load = latest["load"]
    passes = _load(verdicts)
    effect = pooled(passes)
    if not _answered(load):
        unanswered = Decision(Outcome.REJECT, f"could not be judged: {load.line()}", judged=False)
        return None if load.status is Status.INVALID else unanswered
    threshold = 1 + rules.margin
    if effect is None:
        return Decision(Outcome.REJECT, f"load gave no effect: {load.line()}")
    if load.status is Status.REFUTED or effect.high < threshold:
        return Decision(_small(effect), f"measured {_words(effect)}, below the margin of {threshold:.3f}x", effect)
    if effect.low <= threshold or load.status is not Status.CONFIRMED:
        if another_pass and len(passes) < rules.passes and effect.point > 1:
            return None
        return Decision(
            _small(effect),
            f"measured {_words(effect)} does not clear {threshold:.3f}x after {len(passes)} pass(es)",
            effect,
        )
    return _gates(move, latest, rules, effect)


def _gates(move: Move, latest: Mapping[str, Verdict], rules: Rules, effect: Ratio) -> Decision | None:
    """The effect is there; now everything else that a kept move needs."""
    if required(move) - latest.keys():
        return None
    unsure = [v for layer, v in sorted(latest.items()) if layer in required(move) and v.status is not Status.CONFIRMED]
    blind = [v for v in unsure if v.status is not Status.UNSUPPORTED]
    if blind:
        return Decision(Outcome.REJECT, f"{blind[0].layer} did not confirm it: {blind[0].line()}", effect)
    seen = {layer for layer, v in latest.items() if v.status is Status.CONFIRMED}
    if not CORRECTNESS & seen:
        return Decision(Outcome.REJECT, "no layer could check that it computes the right thing", effect)
    measured = {name for verdict in latest.values() for name in verdict.metrics}
    unmeasured = [limit.name for limit in rules.limits if limit.metric not in measured | ACCURACY]
    if unmeasured:
        return Decision(Outcome.REJECT, f"a constraint was not measured: {', '.join(unmeasured)}", effect)
    wanted = sorted(approvals_needed(move) & rules.approvals)
    if wanted:
        return Decision(
            Outcome.ASK,
            f"measured {_words(effect)}; the goal wants approval for changes of {', '.join(wanted)}",
            effect,
        )
    gaps = f"; not checked here: {', '.join(v.layer for v in unsure)}" if unsure else ""
    return Decision(Outcome.KEEP, f"measured {_words(effect)}, clears {1 + rules.margin:.3f}x{gaps}", effect)


def approvals_needed(move: Move) -> frozenset[str]:
    """What a person may want to approve about a move: its kind, `numerics`, `concurrency`. A bundle may hold code."""
    kinds = {"bundle", "code"} if move.kind == "bundle" else {str(move.kind)}
    if move.changes_numerics:
        kinds.add("numerics")
    if "threads" in move.launch or any("thread" in name for name in move.skeletons):
        kinds.add("concurrency")
    return frozenset(kinds)


def refutes(verdict: Verdict) -> bool:
    """Whether a verdict ends the matter: it refutes, and not only because a measured gain was too small.

    A `load` whose interval reaches the margin and that refutes all the same found something else wrong: outputs, a
    limit.
    """
    if verdict.status is not Status.REFUTED:
        return False
    too_small = verdict.interval is not None and verdict.margin is not None and verdict.interval[1] < verdict.margin
    return not (verdict.layer == "load" and too_small)


def broken_limit(verdicts: Sequence[Verdict], limits: Sequence[Limit]) -> str | None:
    """The first constraint that the latest measured figures do not keep, in words."""
    for limit in limits:
        values = [
            v.metrics[limit.metric] for v in verdicts if limit.metric in v.metrics and v.status is not Status.INVALID
        ]
        if values and not limit.holds(values[-1]):
            return f"breaks a constraint: {limit.words(values[-1])}"
    return None


def _load(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.layer == "load"]


def _answered(verdict: Verdict) -> bool:
    return verdict.status in (Status.CONFIRMED, Status.REFUTED, Status.INCONCLUSIVE)


def _small(effect: Ratio) -> Outcome:
    """A right move whose gain did not clear the margin: worth revising if it may be a gain at all, else rejected."""
    return Outcome.REVISE if effect.point > 1 else Outcome.REJECT


def _words(effect: Ratio) -> str:
    return f"{effect.point:.3f}x [{effect.low:.3f}, {effect.high:.3f}]"
