"""Asks whether the touched operators are faster than the base's, condition by condition, with right outputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from feedback.judging import Bench, Finding, judge
from feedback.microbench.conditions import Condition, Grid, Judged, judge_grid
from feedback.microbench.trial import BaseFailed, Place, Side, TooLarge, Trial, blaming
from feedback.operators.cases import TIMED, input_seed
from feedback.operators.checks import Deviation, tolerance_for
from feedback.operators.probe import as_selected, compute_type
from feedback.operators.selection import touched
from feedback.probe import Context, Question, Tree
from feedback.static.scope import changed_files
from feedback.statistics import Pass, status
from feedback.target import Case, OperatorInfo, Tolerance
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict


@dataclass(frozen=True)
class MicrobenchSettings:
    """`replicates` of fresh processes; no new condition is begun after `budget_seconds`.

    `margin` is the ratio to reach.
    """

    margin: float = 1.0
    replicates: int = 3
    budget_seconds: float = 45.0


@dataclass(frozen=True)
class MicrobenchProbe:
    """The geometric mean over the timed input conditions of the touched operators.

    And which conditions gain or lose.
    """

    settings: MicrobenchSettings = field(default_factory=MicrobenchSettings)
    layer: str = "microbench"
    cost_prior: float = 12.0

    def predicate(self, question: Question) -> Predicate:
        settings = self.settings
        return Predicate(
            layer=self.layer,
            statement=(
                "over the timed input conditions of the touched operators the candidate's calls are at least "
                f"{settings.margin:g} x as fast as the base's (geometric mean), and every timed output is right"
            ),
            parameters={**asdict(settings), "operators": sorted(question.operators), "seed": question.seed},
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(
            self.predicate(question), question, context, lambda bench: Examination(bench, self.settings).finding()
        )


PROBE = MicrobenchProbe()


@dataclass
class Measured:
    """What was gathered of one condition over the replicates."""

    info: OperatorInfo
    case: Case
    comparisons: list[Pass] = field(default_factory=list)
    controls: list[Pass] = field(default_factory=list)

    def condition(self) -> Condition:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.case.dims.items())
        return Condition(self.info.name, self.case.name, sizes, tuple(self.comparisons), tuple(self.controls))


class WrongTimed(Exception):
    """A timed output is wrong: the time counts for nothing."""

    def __init__(self, measured: Measured, deviation: Deviation) -> None:
        super().__init__(deviation.text)
        self.measured, self.deviation = measured, deviation


@dataclass
class Examination:
    """One question, from start to finding."""

    bench: Bench
    settings: MicrobenchSettings
    gaps: list[str] = field(default_factory=list)

    def finding(self) -> Finding:
        question, oracle = self.bench.question, self.bench.oracle
        dtype = compute_type(self.bench, question.candidate.config)
        reported = self.bench.candidate.call("operators", question.candidate.config)
        after = as_selected(oracle.operators(question.candidate.config), reported)
        changed = changed_files(question.base.root, question.candidate.root, oracle.entries(), question.changed)
        names, why = touched(question.operators, changed, oracle.operators(question.base.config), after)
        grid: list[tuple[Measured, Tolerance]] = []
        for info in after:
            tolerance = tolerance_for(info, dtype)
            if info.name in names and tolerance is None:
                self.gaps.append(f"{info.name} has no tolerance for {dtype}")
            elif info.name in names and tolerance is not None:
                grid += [(Measured(info, case), tolerance) for case in info.cases if TIMED in case.tags]
        if not grid:
            return Finding(
                Status.UNSUPPORTED,
                "no touched operator has an input condition to time",
                gaps=tuple(self.gaps) or (why,),
            )
        if dtype != "float32":
            self.gaps.append(f"values cross as float32: converting them to {dtype} counts in every call of both")
        try:
            self._replicates(grid)
        except WrongTimed as wrong:
            return refuted(wrong)
        except BaseFailed as error:
            return Finding(Status.INVALID, str(error), gaps=("nothing was learnt about the candidate",))
        conditions = [measured.condition() for measured, _ in grid if measured.comparisons]
        return conclude(judge_grid(conditions, self.settings.margin), self.settings.margin, why, self.gaps)

    def _replicates(self, grid: Sequence[tuple[Measured, Tolerance]]) -> None:
        """Every condition once in each replicate of fresh processes, as far as the budget goes."""
        workers, question = self.bench.context.workers, self.bench.question
        deadline = time.monotonic() + self.settings.budget_seconds
        skipped: set[str] = set()
        for number in range(self.settings.replicates):
            opened = []
            try:
                places: dict[Side, Place] = {}
                trees: tuple[tuple[Side, Tree], ...] = (
                    ("base", question.base),
                    ("control", question.base),
                    ("candidate", question.candidate),
                )
                for side, tree in trees:
                    first = side == "candidate" and number == 0
                    role = "candidate" if side == "candidate" else "base"
                    with blaming(side):
                        worker = self.bench.candidate if first else workers.open(tree, role=role)
                    if not first:
                        opened.append(worker)
                    places[side] = Place(worker, tree.config, f"{side}-{number}")
                for measured, tolerance in grid:
                    name = f"{measured.info.name} {measured.case.name}"
                    if name in skipped or (time.monotonic() > deadline and number):
                        continue
                    if time.monotonic() > deadline:
                        skipped.add(name)
                        self.gaps.append(f"{name}: not reached in {self.settings.budget_seconds:g} s")
                        continue
                    self._trial(measured, tolerance, places, number, skipped)
                places["candidate"].worker.imported()  # what was timed came from the candidate's tree
            finally:
                for worker in opened:
                    worker.close()

    def _trial(
        self, measured: Measured, tolerance: Tolerance, places: dict[Side, Place], number: int, skipped: set[str]
    ) -> None:
        question = self.bench.question
        seed = input_seed(question.seed, "microbench", str(number))
        trial = Trial(
            self.bench.oracle, measured.info, measured.case, question.candidate.config, tolerance, places, seed
        )
        try:
            comparison, control, deviations = trial.run()
        except TooLarge as error:
            skipped.add(f"{measured.info.name} {measured.case.name}")
            self.gaps.append(f"{measured.info.name} {measured.case.name}: {error}")
            return
        if deviations:
            raise WrongTimed(measured, deviations[0])
        measured.comparisons.append(comparison)
        measured.controls.append(control)


def conclude(grid: Grid, margin: float, why: str, gaps: Sequence[str]) -> Finding:
    """The finding that follows from the grid. Pure."""
    data: dict[str, Any] = {"why": why, "conditions": [_row(item) for item in grid.conditions]}
    if grid.floor is not None:
        data["floor"] = asdict(grid.floor)
    if grid.overall is None:
        reasons = "; ".join(dict.fromkeys(item.reason for item in grid.conditions)) or "no condition could be timed"
        return Finding(Status.INVALID, f"nothing could be timed: {reasons}", gaps=tuple(gaps) or (reasons,), data=data)
    found = status(grid.overall)
    faster, slower = grid.faster(), grid.slower()
    told = slower if found is not Status.CONFIRMED else (*slower, *faster)
    parts = [f"{len(faster)} of {len(grid.conditions)} conditions faster"]
    if slower:
        parts.append(f"{len(slower)} slower")
    parts.append(_extremes(grid))
    return Finding(
        found,
        ", ".join(part for part in parts if part),
        Confidence.STATISTICAL,
        at=tuple(_location(item) for item in told[:6]),
        gaps=("what it is worth in the service", *gaps),
        next="load" if found is not Status.REFUTED else None,
        metrics={
            f"ratio {item.condition.label}": item.comparison.effect for item in grid.conditions if item.comparison
        },
        data=data,
        comparison=grid.overall,
    )


def refuted(wrong: WrongTimed) -> Finding:
    """A timed output is wrong."""
    measured, deviation = wrong.measured, wrong.deviation
    location = _place(measured.info, measured.condition(), deviation.text)
    what = f"{measured.info.name}: a timed output is wrong: {deviation.text}"
    return Finding(Status.REFUTED, what, at=(location,), next="operators", data={"deviation": deviation.text})


def _extremes(grid: Grid) -> str:
    known = [item for item in grid.conditions if item.comparison]
    if not known:
        return ""
    best = max(known, key=lambda item: item.comparison.effect if item.comparison else 0.0)
    worst = min(known, key=lambda item: item.comparison.effect if item.comparison else 0.0)
    texts = [f"{i.condition.label} {i.comparison.effect:.2f}x" for i in dict.fromkeys((best, worst)) if i.comparison]
    return " to ".join(reversed(texts))


def _location(item: Judged) -> Location:
    assert item.comparison is not None
    low, high = item.comparison.interval
    return Location(
        operator=item.condition.operator,
        condition=f"{item.condition.name} {item.condition.sizes}",
        pattern=f"{item.comparison.effect:.2f}x [{low:.2f}, {high:.2f}]",
    )


def _place(info: OperatorInfo, condition: Condition, pattern: str) -> Location:
    return Location(
        file=info.files.get(info.selected),
        operator=info.name,
        implementation=info.selected,
        condition=f"{condition.name} {condition.sizes}",
        pattern=pattern,
    )


def _row(item: Judged) -> dict[str, Any]:
    condition = item.condition
    return {
        "operator": condition.operator,
        "condition": condition.name,
        "sizes": condition.sizes,
        "comparison": asdict(item.comparison) if item.comparison else None,
        "reason": item.reason,
        "call_us": list(item.call_us),
        "units": [
            {"base": [asdict(unit) for unit in one.base], "other": [asdict(unit) for unit in one.candidate]}
            for one in (*condition.comparisons, *condition.controls)
        ],
    }
