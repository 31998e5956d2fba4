"""Asks whether the operators that a candidate touched compute what the trusted reference computes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedback.judging import Bench, Finding, judge
from feedback.operators.cases import FRESH, checked_cases, free_axes, fresh_cases, input_seed
from feedback.operators.checks import Deviation, tolerance_for
from feedback.operators.conditions import failing_condition, growth
from feedback.operators.selection import reached_first, touched
from feedback.operators.trial import TURNS, Trial
from feedback.oracle import OracleFailure
from feedback.probe import Context, Question
from feedback.static.scope import changed_files
from feedback.target import Case, OperatorInfo, Tolerance
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure

#: Checking stops here, seconds; what was not reached is a gap.
BUDGET_SECONDS = 90.0

#: In this many cases a second instance with other weights is made too.
WEIGHT_CASES = 2


class OperatorsProbe:
    """Fresh values and sizes, odd and constructed shapes; error pattern, mutation, stale results, determinism."""

    layer: str = "operators"
    cost_prior: float = 4.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="every touched operator is within its trusted tolerance on specified cases and on fresh "
            "sizes and values, leaves its inputs alone, follows them from call to call, and repeats itself",
            parameters={"operators": sorted(question.operators), "seed": question.seed, "turns": list(TURNS)},
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = OperatorsProbe()


@dataclass
class Record:
    """What was seen of one operator."""

    info: OperatorInfo
    calls: int = 0
    outcomes: list[tuple[Case, float, list[Deviation]]] = field(default_factory=list)
    sample: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def bad(self) -> list[tuple[Case, Deviation]]:
        return [(case, found[0]) for case, _, found in self.outcomes if found]


def _examine(bench: Bench) -> Finding:
    question = bench.question
    config = question.candidate.config
    infos = as_selected(bench.oracle.operators(config), bench.candidate.call("operators", config))
    changed = changed_files(question.base.root, question.candidate.root, bench.oracle.entries(), question.changed)
    names, why = touched(question.operators, changed, bench.oracle.operators(question.base.config), infos)
    gaps = ["the sizes that are timed (microbench verifies those)"]
    unvaried = [i.name for i in infos if i.name in names and not free_axes(checked_cases(i.cases))]
    if unvaried:
        gaps.append(f"{', '.join(unvaried)} at sizes that the specification does not name")
    records: list[Record] = []
    deadline = time.monotonic() + BUDGET_SECONDS
    dtype = compute_type(bench, config)
    if dtype != "float32":
        gaps.append("writes to half-width inputs (they are converted copies)")
    names, reached = reached_first(names, changed, infos, question.candidate.root)
    by_name = {info.name: info for info in infos}
    for number, info in enumerate(by_name[name] for name in names):
        if number == reached and any(record.bad for record in records):
            gaps.append(
                f"{len(names) - reached} operators that do not import what changed, not checked after a refutation"
            )
            break
        tolerance = tolerance_for(info, dtype)
        if tolerance is None:
            gaps.append(f"{info.name} has no tolerance for {dtype}")
            continue
        if time.monotonic() > deadline:
            gaps.append(f"{info.name} not reached in {BUDGET_SECONDS:g} s")
            continue
        record = Record(info)
        records.append(record)
        if not _check_operator(bench, record, tolerance, config, deadline, gaps):
            break
    return _finding(records, why, dtype, gaps)


def compute_type(bench: Bench, config: dict[str, Any]) -> str:
    """The compute type of a launch configuration, or the target's default for it."""
    space = {parameter.name: parameter.default for parameter in bench.oracle.description().launch_space}
    return str(config.get("dtype", space.get("dtype", "float32")))


def as_selected(trusted: Sequence[OperatorInfo], reported: Any) -> tuple[OperatorInfo, ...]:
    """Trusted specifications; which implementation runs, from which file, is the candidate's word.

    Raises `WorkerFailure` when it is no description of operators.
    """
    try:
        own = {info.name: info for item in reported if (info := OperatorInfo.model_validate(item))}
    except (TypeError, ValueError) as error:
        what = f"describes its operators wrongly: {str(error).splitlines()[0]}"
        raise WorkerFailure("protocol", "operators", what) from error
    return tuple(
        info.model_copy(update={"selected": own[info.name].selected, "files": {**info.files, **own[info.name].files}})
        if info.name in own
        else info
        for info in trusted
    )


def _check_operator(
    bench: Bench, record: Record, tolerance: Tolerance, config: dict[str, Any], deadline: float, gaps: list[str]
) -> bool:
    """Run all cases of one operator; False when the candidate's worker is gone."""
    info, seed = record.info, bench.question.seed
    fresh = fresh_cases(info.cases, input_seed(seed, info.name, "sizes"))
    for number, case in enumerate((*checked_cases(info.cases), *fresh)):
        if time.monotonic() > deadline:
            gaps.append(f"{info.name} from case {case.name} on, not reached in {BUDGET_SECONDS:g} s")
            break
        try:
            trial = Trial(bench, info, case, config, tolerance)
        except OracleFailure:
            if FRESH not in case.tags:
                raise
            gaps.append(f"{info.name} at {case.name}, which its specification refuses")
            continue
        try:
            found = trial.turns()
            if not found and trial.constants and number < WEIGHT_CASES:
                found = trial.other_weights()
        except WorkerFailure as failure:
            record.outcomes.append((case, float("inf"), [Deviation("failure", case.name, failure.line)]))
            if failure.kind != "error":
                return False
            continue
        finally:
            record.calls += trial.calls
        if found and not record.sample:
            record.sample = trial.sample()
        record.outcomes.append((case, trial.worst, found))
    return True


def _finding(records: Sequence[Record], why: str, dtype: str, gaps: list[str]) -> Finding:
    bad = [record for record in records if record.bad]
    cases = sum(len(record.outcomes) for record in records)
    calls = sum(record.calls for record in records)
    data = {"why": why, "dtype": dtype, "operators": [_as_data(record) for record in records]}
    metrics = {"operators": float(len(records)), "cases": float(cases), "calls": float(calls)}
    if bad:
        first = bad[0]
        more = f"; also {', '.join(record.info.name for record in bad[1:])}" if len(bad) > 1 else ""
        return Finding(
            Status.REFUTED,
            f"{_sentence(first)}{more}",
            Confidence.DIRECT,
            at=tuple(_location(record) for record in bad[:8]),
            gaps=tuple(gaps),
            metrics=metrics,
            data=data,
            arrays=first.sample,
        )
    if not cases:
        return Finding(
            Status.UNSUPPORTED, "no operator could be checked", gaps=tuple(gaps) or ("the target names no operator",)
        )
    worst, name = max((max(r for _, r, _ in record.outcomes), record.info.name) for record in records)
    return Finding(
        Status.CONFIRMED,
        f"{len(records)} operators right in {cases} cases, {calls} calls ({why}); "
        f"largest error {worst:.0%} of what is allowed ({name})",
        Confidence.DIRECT,
        gaps=tuple(gaps),
        next="microbench",
        metrics={**metrics, "worst_error_ratio": worst},
        data=data,
    )


def _sentence(record: Record) -> str:
    """`rms_norm (torch) wrong in 5 of 14 cases, only where N is not a multiple of 2`; the place follows in `at`."""
    bad = record.bad
    deviation = bad[0][1]
    where = failing_condition([(c.dims, bool(found)) for c, _, found in record.outcomes])
    sizes = [(c.dims, ratio) for c, ratio, _ in record.outcomes]
    numerical = deviation.kind == "error"
    count = f"wrong in {len(bad)} of {len(record.outcomes)} cases"
    if not numerical:
        count = f"{deviation.text}; {count}"
    parts = [f"{record.info.name} ({record.info.selected}): {count}", where, growth(sizes) if numerical else None]
    return ", ".join(part for part in parts if part)


def _location(record: Record) -> Location:
    case, deviation = record.bad[0]
    sizes = " ".join(f"{axis}={size}" for axis, size in case.dims.items())
    return Location(
        file=record.info.files.get(record.info.selected),
        operator=record.info.name,
        implementation=record.info.selected,
        condition=f"{case.name} {sizes}",
        pattern=deviation.text if deviation.kind == "error" else None,
    )


def _as_data(record: Record) -> dict[str, Any]:
    return {
        "name": record.info.name,
        "implementation": record.info.selected,
        "cases": [
            {
                "case": case.model_dump(mode="json"),
                "worst_error_ratio": ratio if np.isfinite(ratio) else None,
                "deviations": [{"kind": d.kind, "text": d.text} for d in found],
            }
            for case, ratio, found in record.outcomes
        ],
    }
