"""The loop: observe, state a hypothesis, make a candidate, ask the cheapest probe that can refute it, decide, remember.

This page is the whole story of a run. What it decides comes from pure functions (`propose`, `next_probe`, `decide`);
what it does goes through `Steps`, which records every effect, so that running it again over the same ledger is how an
interrupted run goes on.
"""

from __future__ import annotations

import math

from feedback.verdict import Verdict
from infra_agent.closing import close, reserve
from infra_agent.decision import Decision, Rules, as_record, closed, decide
from infra_agent.goal import Goal
from infra_agent.ladder import asking, next_probe
from infra_agent.ledger import Ledger
from infra_agent.measurements import Measurements, Remembered, Subject
from infra_agent.metrics import DEVIATIONS
from infra_agent.paths import RunPaths
from infra_agent.progress import Lines, Progress, progress
from infra_agent.proposers.causes import Facts
from infra_agent.proposers.embedded import Aim, Proposal, Stop, Trial, propose
from infra_agent.records import CandidateRecord, EndRecord, MoveRecord, Outcome, RunRecord
from infra_agent.repair import repair
from infra_agent.steps import MARGIN, Steps


def run(goal: Goal, ledger: Ledger, world: Measurements, show: Progress, start: str) -> EndRecord:
    """Run a goal from the commit `start` to its end row, or go on where the ledger stops."""
    steps = Steps(goal, ledger, world, show)
    aim = Aim(goal.objective.metric, MARGIN)
    rules = steps.rules(steps.baseline(start))
    best, history, kept, moves = start, [], [], {}
    facts, openings = steps.observe(best)
    while True:
        left = steps.seconds_to_search(reserve(steps, len(kept) + 1))
        if goal.budget.candidates is not None and steps.candidates >= goal.budget.candidates:
            stop = Stop(f"the budget of {goal.budget.candidates} candidates is used up")
            break
        proposal = propose(aim, history, openings.moves, facts, steps.experience, left, goal.seed, best)
        if isinstance(proposal, Stop):
            stop = proposal
            break
        trial, record = try_move(steps, rules, best, proposal, facts, kept)
        history.append(trial)
        if record.decision is Outcome.KEEP and record.commit is not None:
            kept.append(record)
            moves[record.id] = trial.move
            best = record.commit
            facts, openings = steps.observe(best)
    return close(steps, rules, start, best, kept, moves, stop.reason)


def run_goal(goal: Goal, place: RunPaths, show: Lines | None = None) -> EndRecord:
    """Run a goal in its folder, on the real target, or go on with it. `UserError` for what keeps it from beginning."""
    from infra_agent.measurements.live import opened

    told = show or progress(goal.budget.wall_seconds)
    with Ledger.open(place.ledger) as ledger, told, opened(goal, place) as (world, ground):
        record = ledger.once("run", "run", {"goal": goal.digest}, ground.record, RunRecord)
        if goal.objective.metric in DEVIATIONS:
            return repair(goal, ledger, world, told, record.base_commit)
        return run(goal, ledger, world, told, record.base_commit)


def try_move(
    steps: Steps, rules: Rules, base: str, proposal: Proposal, facts: Facts, kept: list[MoveRecord]
) -> tuple[Trial, MoveRecord]:
    """One hypothesis from candidate to decision."""
    hypothesis = proposal.hypothesis
    considered = [f"rather than {o.move.title} ({o.value:.2g} log gain a second)" for o in proposal.runners_up]
    told = [*hypothesis.move.reasons, *considered, asking(hypothesis.move, steps.experience)]
    record, made = steps.propose(base, hypothesis, facts, told)
    verdicts: list[Verdict] = []
    if made.candidate is None:
        decision = Decision(Outcome.REJECT, f"no candidate could be made: {made.failed}")
    else:
        numerics = any(m.changes_numerics for m in (record, *kept))
        decision, verdicts = judge(steps, rules, proposal, made.candidate, numerics)
    steps.judged += decision.judged
    story = as_record(record, decision, verdicts, made.candidate.commit if made.candidate else None)
    if decision.outcome is Outcome.KEEP and made.candidate is not None:
        story = story.model_copy(update={"commit": steps.keep(story, made.candidate)})
    gains = [m.measured.point for m in (*kept, story) if m.decision is Outcome.KEEP and m.measured is not None]
    steps.decided(story, math.prod(gains))
    if decision.measured is not None:
        supports = decision.measured.low > 1
        remembered = Remembered(kind="incremental", supports=supports, gain=decision.measured)
        steps.remember(story.id, hypothesis.move, remembered)
    refuting = next((v.layer for v in verdicts if v.status == "refuted"), None)
    turned_down_by = refuting or ("candidate" if made.candidate is None else None)
    return Trial(hypothesis.move, decision.outcome, decision.measured, turned_down_by, base), story


def judge(
    steps: Steps, rules: Rules, proposal: Proposal, candidate: CandidateRecord, numerics: bool
) -> tuple[Decision, list[Verdict]]:
    """Ask probes, cheapest refutation first, until the verdicts decide."""
    move, verdicts = proposal.hypothesis.move, []
    while True:
        another = steps.seconds_to_search() > steps.experience.cost("load")
        decision = decide(move, verdicts, rules, another)
        if decision is not None:
            return decision, verdicts
        layer = next_probe(move, verdicts, steps.experience)
        if layer is None:
            return closed(move, verdicts), verdicts
        subject = Subject(
            hypothesis=candidate.move,
            base=candidate.base,
            candidate=candidate.commit,
            move=move,
            changes_numerics=numerics,
            limits={limit.name: limit.bound for limit in rules.limits},
            changed=candidate.changed,
            n=1 + sum(verdict.layer == layer for verdict in verdicts),
        )
        verdicts.append(steps.ask(layer, subject))
