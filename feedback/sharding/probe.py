"""Asks whether every operator of the launch configuration gives the same cut over ranks as it does whole."""

from __future__ import annotations

import time
from collections.abc import Sequence

from feedback.judging import Bench, Finding, judge
from feedback.operators.calls import OpenOperator
from feedback.operators.checks import worst_ratio
from feedback.operators.probe import as_selected, compute_type
from feedback.oracle import OracleFailure
from feedback.probe import Context, Question
from feedback.sharding.compare import Fault
from feedback.sharding.conditions import Condition, conditions
from feedback.sharding.cuts import Cut, allowed, cuts
from feedback.sharding.finding import Record, finding
from feedback.sharding.reach import reachable_first
from feedback.sharding.subject import Subject
from feedback.sharding.sweep import attribution, growths
from feedback.sharding.trial import TURNS, Outcome, Trials
from feedback.static.scope import changed_files
from feedback.target import PlanRow, Tolerance, Unsupported
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure

#: Checking stops here, seconds; what was not reached is a gap.
BUDGET_SECONDS = 60.0

#: So many conditions of a cut that combines are tried on two sets of inputs in turn.
TURNED = 1

#: So many conditions of a cut are seen to fail before the rest of them, long chains aside, is left out.
ENOUGH = 6

#: So many deviating cuts are explained; the others are named.
EXPLAINED = 2

#: In the line of a rank that keeps others waiting.
HUNG = "did not"

UNCUT = "the launch configuration has one rank, nothing is cut: set tp or cp"


class ShardingProbe:
    """Every operator of the plan under every cut: fresh, odd, one-token, uneven, empty, weakly decaying, long."""

    layer: str = "sharding"
    cost_prior: float = 4.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="every operator of the plan, cut as the plan cuts it and combined by the engine's own code over "
            "simulated ranks, is within its trusted tolerance of the unsharded float64 reference",
            parameters={
                "operators": sorted(question.operators),
                "seed": question.seed,
                "turns": list(TURNS),
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = ShardingProbe()


def _examine(bench: Bench) -> Finding:
    question, oracle = bench.question, bench.oracle
    config = question.candidate.config
    plan = oracle.plan(config)
    if plan.problems:
        problem = plan.problems[0]
        at = (Location(parameter=problem.parameter),)
        observed = f"cannot run over these ranks: {problem.parameter}: {problem.message}"
        return Finding(Status.REFUTED, observed, Confidence.PROOF, at=at)
    infos = as_selected(oracle.operators(config), bench.candidate.call("operators", config))
    found, gaps = cuts(plan.rows, infos, lambda operator: oracle.shardings(operator, config))
    whole = len({row.operator for row in plan.rows if row.sharding is None})
    if not found and not gaps:
        return Finding(Status.UNSUPPORTED, UNCUT, gaps=(UNCUT,))
    # Asked by hand about some operators of an unchanged tree. What a move says it touched narrows nothing.
    changed = changed_files(question.base.root, question.candidate.root, oracle.entries(), question.changed)
    if question.operators and not changed:
        found = [cut for cut in found if cut.info.name in question.operators]
        if not found:
            why = "; ".join(_notes(plan.rows, question.operators)) or "the plan does not run it"
            return Finding(Status.UNSUPPORTED, f"{', '.join(question.operators)} is not cut: {why}", gaps=(why,))
    dtype, deadline = compute_type(bench, config), time.monotonic() + BUDGET_SECONDS
    records: list[Record] = []
    missed, gaps = gaps, []
    found, reached = reachable_first(found, changed, question.candidate.root)
    with Subject(bench, {row.operator for row in plan.rows}) as subject:
        for number, cut in enumerate(found):
            if number == reached and any(record.bad for record in records):
                gaps.append(f"{len(found) - reached} cuts that do not name what changed, not tried after a refutation")
                break
            tolerance = allowed(cut, dtype)
            if tolerance is None:
                missed.append(f"{cut.name} has no tolerance for {dtype}")
                continue
            if time.monotonic() > deadline:
                missed.append(f"{cut.name} not reached in {BUDGET_SECONDS:g} s")
                continue
            record = Record(cut)
            records.append(record)
            trials = Trials(bench, subject, cut, tolerance)
            _try(bench, trials, record, deadline, gaps)
            explained = sum(1 for other in records if other.bad) <= EXPLAINED
            if record.bad and explained and subject.alive:
                try:
                    _explain(bench, trials, record, tolerance)
                except (OracleFailure, Unsupported, WorkerFailure) as error:
                    # What was seen stands, whatever becomes of its explanation.
                    gaps.append(f"why {cut.name} deviates could not be looked into: {error}")
            record.calls = trials.calls
            if not subject.alive:
                missed += [f"{other.name} not reached: the candidate's worker is gone" for other in _after(found, cut)]
                break
        if subject.interpreted and not subject.launched:
            missed.append(f"no kernel was launched by {', '.join(subject.interpreted)}")
        return finding(records, (*gaps, *subject.gaps()), whole, subject.interpreted, missed)


def _notes(rows: Sequence[PlanRow], operators: Sequence[str]) -> list[str]:
    """Why operators are not cut, each reason once."""
    return list(dict.fromkeys(row.note for row in rows if row.operator in operators and row.note))


def _after(found: Sequence[Cut], cut: Cut) -> Sequence[Cut]:
    return found[found.index(cut) + 1 :]


def _try(bench: Bench, trials: Trials, record: Record, deadline: float, gaps: list[str]) -> None:
    """All conditions of one cut, until enough of them have failed."""
    cut = record.cut
    brief = bool(trials.subject.interpreted)
    turned = 0
    for condition in conditions(cut, bench.question.seed, brief):
        if len(record.bad) >= ENOUGH and len(record.bad) < len(record.outcomes) and condition.ranks == cut.ranks:
            continue  # long chains are tried all the same: there it shows how large the error becomes
        if time.monotonic() > deadline:
            gaps.append(f"{cut.name} from {condition.case.name} on, not reached in {BUDGET_SECONDS:g} s")
            return
        try:
            outcome = trials.once(condition, turns=turned < TURNED and cut.combines and not brief)
        except OracleFailure:
            if "fresh" not in condition.case.tags:
                raise
            gaps.append(f"{cut.name} at {condition.case.name}, which its specification refuses")
            continue
        except WorkerFailure as failure:
            record.outcomes.append(_broken(condition, failure))
            if failure.kind != "error":
                return
            continue
        if outcome is None:
            continue
        turned += 1
        record.outcomes.append(outcome)
        if outcome.fault is not None and outcome.fault.kind == "failure" and HUNG in outcome.fault.text:
            return  # a rank that hangs goes on running: it would disturb what follows


def _broken(condition: Condition, failure: WorkerFailure) -> Outcome:
    """The candidate's worker failed."""
    fault = Fault("failure", failure.line, at=failure.location)
    return Outcome(condition, float("inf"), float("inf"), fault)


def _explain(bench: Bench, trials: Trials, record: Record, tolerance: Tolerance) -> None:
    """Growth, rounding or logic, and whether the operator is wrong without any cut."""
    worst = record.worst
    assert worst.fault is not None
    if worst.fault.kind == "error":
        record.growths = growths(trials, worst.condition, brief=bool(trials.subject.interpreted))
        record.attribution = attribution(trials, worst)
        record.whole_is_wrong = _whole_is_wrong(bench, record, tolerance)
    if worst.fault.kind != "failure":
        record.sample = trials.sample(worst)


def _whole_is_wrong(bench: Bench, record: Record, tolerance: Tolerance) -> bool | None:
    """Whether the candidate's unsharded operator deviates on such inputs too; None when it cannot be asked."""
    info, case = record.cut.info, record.worst.condition.case
    known = bench.oracle.known_config(bench.question.candidate.config)
    inputs = bench.oracle.inputs(info.name, case, known, bench.question.seed)
    expected = bench.oracle.reference(info.name, case, known, inputs)
    try:
        opened = OpenOperator(bench.candidate, info, bench.question.candidate.config, case, inputs)
        results = opened.run([inputs])[0].results
        return worst_ratio(results, expected, tolerance) > 1.0
    except (WorkerFailure, KeyError, ValueError):
        return None
