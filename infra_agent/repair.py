"""A run whose goal is that results agree: find what deviates, mend it in the fewest places, prove each of them needed.

The page beside `loop`: the same steps, ledger, library and probes, another story. Look at the start over ranks; where
nothing deviates, say so and end. Otherwise state why, try repairs from the cheapest on, take every place out again to
see whether it was needed, put a test into the patch that fails without it, and check accuracy and service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedback.verdict import Status, Verdict
from infra_agent.decision import Decision, as_record
from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.ladder import asking, next_probe
from infra_agent.ledger import Ledger
from infra_agent.measurements import Repairing, Subject
from infra_agent.progress import Progress
from infra_agent.proof import Mended, proved, written
from infra_agent.proposers.causes import Facts
from infra_agent.proposers.deviations import PREFIX
from infra_agent.proposers.embedded import Proposal, Stop, Trial
from infra_agent.proposers.repairs import propose
from infra_agent.records import CandidateRecord, CostRecord, EndRecord, EndStatus, Outcome, ProposalRecord
from infra_agent.repairsteps import RepairSteps, finite, shrunk

#: What compares a state over ranks with one rank: operators first, which say where; then the whole model; then with
#: ranks that are processes, where the chosen implementations run on this machine.
LOOKING = ("sharding", "sharded_model", "ranks")
WHERE_POSSIBLE = frozenset({"ranks"})

#: The layer that every repair is judged by, and every place of it.
JUDGE = "sharding"

NEEDED_ALONE = "needed: without it the start is left, which deviates"


@dataclass(frozen=True)
class Found:
    """What deviates on the start: the verdict that says so, facts about it, by how many times what is allowed, and the
    moves that could mend it.
    """

    start: str
    verdict: Verdict
    facts: Facts
    deviation: float
    openings: tuple[Move, ...]

    @property
    def must(self) -> frozenset[str]:
        """Layers without whose confirmation nothing is mended."""
        return frozenset({JUDGE, self.verdict.layer})


def repair(goal: Goal, ledger: Ledger, world: Repairing, show: Progress, start: str) -> EndRecord:
    """Run a goal of agreement from the commit `start` to its end row, or go on where the ledger stops."""
    steps = RepairSteps(goal, ledger, world, show)
    looked = _look(steps, start)
    refuted = next((verdict for verdict in looked if verdict.status is Status.REFUTED), None)
    if refuted is None:
        unsure = next((verdict for verdict in looked if not _settled(verdict)), None)
        if unsure is None:
            unasked = [verdict.layer for verdict in looked if verdict.status is not Status.CONFIRMED]
            more = f"; not asked here: {', '.join(unasked)}" if unasked else ""
            return _end(steps, EndStatus.SOUND, f"no deviation found{more}", start)
        return _end(steps, EndStatus.FAILED, f"whether anything deviates is not known: {unsure.line()}", start)
    facts, openings = steps.look_into(start, refuted)
    found = Found(start, refuted, facts, finite(facts.get(f"{PREFIX}ratio")), openings.moves)
    steps.deviates(start, found.deviation)
    history: list[Trial] = []
    while True:
        proposal = _next(steps, found, history)
        if isinstance(proposal, Stop):
            return _end(steps, EndStatus.UNREPAIRED, f"{refuted.line()}; {proposal.reason}", start)
        move = proposal.hypothesis.move
        tried = _try(steps, found, proposal)
        if isinstance(tried, Mended):
            tried = _only_what_is_needed(steps, found, tried)
            proof = proved(steps, found.start, tried, facts, refuted)
            if proof.wrong is None:
                kept = written(steps, tried, proof, found.deviation)
                said = f"; {', '.join(kept.needs)}: needs a person" if kept.needs else ""
                return _end(steps, EndStatus.REPAIRED, f"{kept.title}{said}", kept.commit or start)
            _reject(steps, tried.proposal, proof.verdicts, proof.wrong)
            tried = "proof"
        history.append(Trial(move, Outcome.REJECT, None, tried, start))


def _look(steps: RepairSteps, start: str) -> list[Verdict]:
    """Ask about the start itself, until something deviates. A layer that broke is asked once more."""
    found: list[Verdict] = []
    for layer in LOOKING:
        for n in (1, 2):
            verdict = steps.ask(layer, Subject(hypothesis="start", base=start, candidate=start, move=_itself(), n=n))
            if verdict.status is not Status.INVALID:
                break
        found.append(verdict)
        if verdict.status is Status.REFUTED:
            break
    # What the start is like says nothing of how often a repair is wrong; what asking costs is worth knowing.
    steps.experience = replace(steps.experience, asked={})
    return found


def _settled(verdict: Verdict) -> bool:
    """Whether a layer has found nothing, or need not be asked here."""
    possible = verdict.status is not Status.UNSUPPORTED or verdict.layer not in WHERE_POSSIBLE
    return verdict.status is Status.CONFIRMED or not possible


def _itself() -> Move:
    """The move of a question about a state itself."""
    return Move(key="start", skeletons=("start",), kind="bundle", cause="", title="the start", gain=0.0, spread=0.0)


def _next(steps: RepairSteps, found: Found, history: Sequence[Trial]) -> Proposal | Stop:
    goal = steps.goal
    if goal.budget.candidates is not None and steps.candidates >= goal.budget.candidates:
        return Stop(f"the budget of {goal.budget.candidates} candidates is used up")
    left = steps.seconds_to_search()
    return propose(goal.objective.metric, history, found.openings, found.facts, steps.experience, left, goal.seed)


def _try(steps: RepairSteps, found: Found, proposal: Proposal) -> Mended | str:
    """One repair from candidate to verdicts; the layer that turned it down, which is recorded here."""
    hypothesis = proposal.hypothesis
    move = hypothesis.move
    considered = [f"rather than {other.move.title} ({other.chance:.0%})" for other in proposal.runners_up]
    told = [*move.reasons, *considered, asking(move, steps.experience)]
    record, made = steps.propose(found.start, hypothesis, found.facts, told)
    if made.candidate is None:
        _reject(steps, record, (), f"no candidate could be made: {made.failed}")
        return "candidate"
    verdicts = _judge(steps, move, made.candidate)
    against = _against(verdicts, found.must)
    if against is not None:
        _reject(steps, record, verdicts, against.line)
        return against.layer
    return Mended(move, record, made.candidate, record.change, tuple(verdicts), _left(verdicts))


def _judge(steps: RepairSteps, move: Move, candidate: CandidateRecord, first: str | None = None) -> list[Verdict]:
    """Ask what the move has to pass, cheapest refutation first (after `static`: `first`, which is expected to refute
    it and need not say why), until something does or nothing is left. Answers that broke and were given again are left
    out.
    """
    verdicts: list[Verdict] = []
    while (layer := next_probe(move, verdicts, steps.experience)) is not None:
        asked = {verdict.layer for verdict in verdicts}
        layer = first if first is not None and asked == {"static"} else layer
        subject = Subject(
            hypothesis=candidate.move,
            base=candidate.base,
            candidate=candidate.commit,
            move=move,
            changes_numerics=move.changes_numerics,
            changed=candidate.changed,
            explain=first is None,
            n=1 + sum(verdict.layer == layer for verdict in verdicts),
        )
        verdicts.append(steps.ask(layer, subject))
        if verdicts[-1].status is Status.REFUTED:
            break
    answered = {verdict.layer for verdict in verdicts if verdict.status is not Status.INVALID}
    return [v for v in verdicts if v.status is not Status.INVALID or v.layer not in answered]


@dataclass(frozen=True)
class Against:
    """What speaks against a repair: the layer, its line, and its verdict where it gave one."""

    layer: str
    line: str
    verdict: Verdict | None = None


def _against(verdicts: Sequence[Verdict], must: frozenset[str]) -> Against | None:
    """The first thing that does. What cannot be asked here is a gap, unless it must be."""
    for verdict in verdicts:
        excused = verdict.status is Status.UNSUPPORTED and verdict.layer not in must
        if verdict.status is not Status.CONFIRMED and not excused:
            return Against(verdict.layer, verdict.line(), verdict)
    missing = sorted(must - {v.layer for v in verdicts if v.status is Status.CONFIRMED})
    return Against(missing[0], f"{missing[0]} did not confirm it") if missing else None


def _only_what_is_needed(steps: RepairSteps, found: Found, mended: Mended) -> Mended:
    """Take each place out by itself: one without which ranks still agree is left out for good."""
    name, single = mended.proposal.id, {move.key: move for move in found.openings}
    if not mended.move.places:
        steps.ablated(f"{name} without {mended.move.where}", name, None, NEEDED_ALONE)
    for place in mended.move.places:
        others = tuple(other for other in mended.move.places if other != place)
        label = f"{name} without {single[place].where}"
        if not others:
            steps.ablated(label, name, None, NEEDED_ALONE)
            continue
        if steps.seconds_to_end() < steps.experience.cost(JUDGE):
            steps.ablated(label, name, None, "kept: no time was left to take it out")
            continue
        part = _at(mended.move, [single[other] for other in others])
        change, made = steps.part(label, found.start, part, found.facts)
        if made.candidate is None:
            steps.ablated(label, name, None, f"kept: it cannot be taken out alone ({made.failed})")
            continue
        verdicts = _judge(steps, part, made.candidate, JUDGE)
        against = _against(verdicts, found.must)
        if against is None:
            steps.ablated(label, name, None, "not needed: left out")
            mended = Mended(part, mended.proposal, made.candidate, change, tuple(verdicts), _left(verdicts))
            continue
        told = against.verdict
        left = finite(told.metrics.get("worst_error_ratio")) if told is not None else finite(None)
        sure = "needed" if told is not None and told.status is Status.REFUTED else "kept, since it could not be told"
        steps.ablated(label, name, shrunk(left, mended.deviation), f"{sure}: {against.line}", told.id if told else None)
    return mended


def _at(move: Move, places: Sequence[Move]) -> Move:
    """A repair at some of its places."""
    if len(places) == 1:
        return places[0]
    return move.model_copy(
        update={
            "key": "+".join(place.key for place in places),
            "parts": tuple(place.key for place in places),
            "places": tuple(place.key for place in places),
            "title": f"{move.title.rpartition(' (')[0]} ({len(places)} places)",
            "operators": tuple(sorted({name for place in places for name in place.operators})),
            "where": "; ".join(place.where for place in places),
            "reasons": tuple(dict.fromkeys(reason for place in places for reason in place.reasons)),
        }
    )


def _reject(steps: RepairSteps, record: ProposalRecord, verdicts: Sequence[Verdict], reason: str) -> None:
    steps.judged += any(verdict.status is not Status.INVALID for verdict in verdicts)
    steps.decided(as_record(record, Decision(Outcome.REJECT, reason), verdicts), 1.0)


def _end(steps: RepairSteps, status: EndStatus, reason: str, commit: str) -> EndRecord:
    steps.show.closing(reason)
    cost = CostRecord(wall_seconds=steps.spent, candidates=steps.candidates)
    end = EndRecord(status=status, reason=reason, cost=cost, commit=commit)
    steps.ledger.note("end", "end", end)
    steps.show.ended(end)
    return end


def _left(verdicts: Sequence[Verdict]) -> float:
    """The largest deviation that is left, as a multiple of what is allowed."""
    return finite(next((v.metrics.get("worst_error_ratio") for v in verdicts if v.layer == JUDGE), None))
