"""Asks whether every operator of the launch configuration gives the same cut over ranks as it does whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from feedback.judging import Bench, Finding, judge
from feedback.load.workload import Workload
from feedback.operators.calls import OpenOperator
from feedback.operators.checks import worst_ratio
from feedback.operators.probe import as_selected, compute_type
from feedback.oracle import Oracle, OracleFailure
from feedback.probe import Context, Question
from feedback.sharding.compare import Fault
from feedback.sharding.conditions import Condition, captured, conditions
from feedback.sharding.cuts import Cut, allowed, cuts
from feedback.sharding.finding import Record, finding
from feedback.sharding.planned import refused, uncut
from feedback.sharding.reach import reachable_first
from feedback.sharding.subject import Subject
from feedback.sharding.sweep import attribution, growths
from feedback.sharding.trial import TURNS, Outcome, Trials
from feedback.static.scope import changed_files
from feedback.target import Arrays, Case, PlanRow, Tolerance, Unsupported
from feedback.verdict import Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure

#: Checking stops here, seconds. What was not reached is not confirmed.
BUDGET_SECONDS = 120.0

#: So many conditions of a cut are seen to fail before the rest of them, long chains aside, is left out.
ENOUGH = 6

#: So many deviating cuts are explained; the others are named.
EXPLAINED = 2

#: Tokens of the prompt whose inputs are captured in a running model.
CAPTURED_TOKENS = 48

#: In the line of a rank that keeps others waiting.
HUNG = "did not"


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
    if (obstacle := refused(plan)) is not None:
        return obstacle
    infos = as_selected(oracle.operators(config), bench.candidate.call("operators", config))
    found, unknown = cuts(plan.rows, infos, lambda operator: oracle.shardings(operator, config))
    if not found and not unknown:
        return uncut()
    # Asked by hand about some operators of an unchanged tree. What a move says it touched narrows nothing.
    changed = changed_files(question.base.root, question.candidate.root, oracle.entries(), question.changed)
    if question.operators and not changed:
        found = [cut for cut in found if cut.info.name in question.operators]
        if not found:
            why = "; ".join(_notes(plan.rows, question.operators)) or "the plan does not run it"
            return Finding(Status.UNSUPPORTED, f"{', '.join(question.operators)} is not cut: {why}", gaps=(why,))
    found, reached = reachable_first(found, changed, question.candidate.root)
    whole = len({row.operator for row in plan.rows if row.sharding is None})
    with Subject(bench, {row.operator for row in plan.rows}) as subject:
        run = _Run(bench, subject, {info.name: info.files.get(info.selected, "") for info in infos})
        run.left += unknown
        run.gaps += _other_cuts(oracle, plan.rows, config)
        run.all(found, reached)
        used = {name for record in run.records for outcome in record.outcomes for name in outcome.used}
        if idle := subject.idle(used, run.files):
            run.left.append(f"{', '.join(idle)}, of which no kernel was launched")
        return finding(run.records, run.left, (*run.gaps, *subject.gaps()), whole, subject.interpreted)


class _Run:
    """All cuts, one after another. `left` are those that were not tried, with the reason; `gaps` what else was not."""

    def __init__(self, bench: Bench, subject: Subject, files: dict[str, str]) -> None:
        self.bench, self.subject, self.files = bench, subject, files
        self.dtype = compute_type(bench, bench.question.candidate.config)
        self.deadline = time.monotonic() + BUDGET_SECONDS
        self.records: list[Record] = []
        self.left: list[str] = []
        self.gaps: list[str] = []
        self._calls = [] if subject.interpreted else _captured(bench, self.gaps)

    def all(self, found: Sequence[Cut], reached: int) -> None:
        """Try the cuts in order; those from number `reached` on only while nothing is wrong."""
        for number, cut in enumerate(found):
            if number == reached and any(record.bad for record in self.records):
                self.left.append(f"{len(found) - reached} cuts that do not name what changed, after a refutation")
                return
            tolerance = allowed(cut, self.dtype)
            if tolerance is None:
                self.left.append(f"{cut.name}, which has no tolerance for {self.dtype}")
            elif time.monotonic() > self.deadline:
                self.left.append(f"{cut.name}, not reached in {BUDGET_SECONDS:g} s")
            elif not self._one(cut, tolerance):
                self.left += [f"{other.name}, after that" for other in found[number + 1 :]]
                return

    def _one(self, cut: Cut, tolerance: Tolerance) -> bool:
        """One cut; False when the candidate can be asked no more."""
        record, trials = Record(cut, self.files), Trials(self.bench, self.subject, cut, tolerance)
        self.records.append(record)
        try:
            hangs = self._try(trials, record)
        except Unsupported as error:  # what was seen before stands
            self.left.append(f"{cut.name}: {error}")
            hangs = False
        wanted = EXPLAINED if self.bench.question.explain else 0
        explained = sum(1 for other in self.records if other.bad) <= wanted
        if record.bad and explained and self.subject.alive and not hangs:
            try:
                _explain(self.bench, trials, record, tolerance)
            except (OracleFailure, Unsupported, WorkerFailure) as error:
                # What was seen stands, whatever becomes of its explanation.
                self.gaps.append(f"why {cut.name} deviates could not be looked into: {error}")
        record.calls = trials.calls
        return self.subject.alive and not hangs

    def _try(self, trials: Trials, record: Record) -> bool:
        """All conditions of one cut, until enough of them have failed; True when a rank hangs."""
        cut, brief = record.cut, bool(self.subject.interpreted)
        turns = cut.combines and not brief
        for condition in (*conditions(cut, self.bench.question.seed, brief), *captured(cut, self._calls)):
            if len(record.bad) >= ENOUGH and len(record.bad) < len(record.outcomes) and condition.ranks == cut.ranks:
                continue  # long chains are tried all the same: there it shows how large the error becomes
            if time.monotonic() > self.deadline:
                self.left.append(f"{cut.name} from {condition.case.name} on, not reached in {BUDGET_SECONDS:g} s")
                return False
            try:
                outcome = trials.once(condition, turns)
            except OracleFailure:
                if "fresh" not in condition.case.tags and condition.inputs is None:
                    raise
                self.gaps.append(f"{cut.name} at {condition.case.name}, which its specification refuses")
                continue
            except WorkerFailure as failure:
                record.outcomes.append(_broken(condition, failure))
                if failure.kind != "error":
                    return False
                continue
            if outcome is None:
                continue
            turns = False  # the first condition alone
            record.outcomes.append(outcome)
            if outcome.fault is not None and outcome.fault.kind == "failure" and HUNG in outcome.fault.text:
                return True  # it goes on running, and would disturb what follows
        return False


def _captured(bench: Bench, gaps: list[str]) -> list[tuple[str, Case, Arrays]]:
    """Inputs of the running model, from the first prompt of the workload; what there is none of is a gap."""
    workload = Workload.read(bench.question.workload)
    row = workload.rows[0]
    try:
        if row.prompt_token_ids is not None:
            tokens = list(row.prompt_token_ids)
        else:
            tokens = bench.oracle.tokenize([row.prompt or ""], workload.chat)[0]
        calls, left_out = bench.oracle.captured(bench.question.candidate.config, tokens[:CAPTURED_TOKENS])
    except (OracleFailure, Unsupported) as error:
        gaps.append(f"inputs of a running model: {error}")
        return []
    if left_out:
        gaps.append(f"inputs of a running model for {', '.join(left_out)} (too large, or not called)")
    return calls


def _other_cuts(oracle: Oracle, rows: Sequence[PlanRow], config: dict[str, Any]) -> list[str]:
    """The cuts that the plan's operators have and this launch does not make, as a gap."""
    made = {(row.operator, row.sharding) for row in rows}
    others = {
        item.name
        for operator in {row.operator for row in rows}
        for item in oracle.shardings(operator, config).shardings
        if (operator, item.name) not in made
    }
    return [f"cuts that this launch does not make: {', '.join(sorted(others))}"] if others else []


def _notes(rows: Sequence[PlanRow], operators: Sequence[str]) -> list[str]:
    """Why operators are not cut, each reason once."""
    return list(dict.fromkeys(row.note for row in rows if row.operator in operators and row.note))


def _broken(condition: Condition, failure: WorkerFailure) -> Outcome:
    """The candidate's worker failed."""
    fault = Fault("failure", failure.line, at=failure.location)
    return Outcome(condition, float("inf"), float("inf"), fault)


def _explain(bench: Bench, trials: Trials, record: Record, tolerance: Tolerance) -> None:
    """Growth, rounding or logic, and whether the operator is wrong without any cut."""
    worst = record.worst
    assert worst.fault is not None
    if worst.fault.kind == "error":
        record.attribution = attribution(trials, worst)
        record.growths = growths(trials, worst.condition, brief=bool(trials.subject.interpreted))
        record.whole_is_wrong = _whole_is_wrong(bench, record, tolerance)
    if worst.fault.kind != "failure":
        record.sample = trials.sample(worst)


def _whole_is_wrong(bench: Bench, record: Record, tolerance: Tolerance) -> bool | None:
    """Whether the candidate's unsharded operator deviates on such inputs too; None when it cannot be asked."""
    info, condition = record.cut.info, record.worst.condition
    case, inputs = condition.case, condition.inputs
    known = bench.oracle.known_config(bench.question.candidate.config)
    if inputs is None:
        inputs = bench.oracle.inputs(info.name, case, known, bench.question.seed)
    expected = bench.oracle.reference(info.name, case, known, inputs)
    try:
        opened = OpenOperator(bench.candidate, info, bench.question.candidate.config, case, inputs)
        results = opened.run([inputs])[0].results
        return worst_ratio(results, expected, tolerance) > 1.0
    except (WorkerFailure, KeyError, ValueError):
        return None
