"""The engine's own Triton kernels: right under the rounding of hardware, and what GPU compilers make of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from feedback.judging import Bench, Finding, failed, judge
from feedback.kernels import golden, session, trees
from feedback.kernels.conclude import concluded
from feedback.kernels.trial import Trial, tried
from feedback.operators.cases import FRESH, checked_cases, fresh_cases, input_seed
from feedback.operators.checks import tolerance_for
from feedback.operators.probe import as_selected, compute_type
from feedback.operators.selection import touched
from feedback.oracle import OracleFailure
from feedback.probe import Context, Question, Tree
from feedback.static.scope import changed_files
from feedback.target import Case, OperatorInfo, Tolerance
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import Worker
from feedback.workers.pool import Limits, WorkerPool

#: Cases are tried until then, seconds; what was not reached is a gap.
BUDGET_SECONDS = 90.0

#: One GPU of each maker. `probe kernel` compiles for all that are known.
COMPILED_FOR = ("cuda:90", "hip:gfx942")


class KernelsProbe:
    """Triton implementations interpreted with the rounding of hardware against the trusted reference, and compiled."""

    layer: str = "kernels"
    cost_prior: float = 25.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="the Triton kernels of every touched operator are within their trusted tolerance of float64 "
            "under truncation and under rounding of tf32 operands, and compile for a known GPU",
            parameters={
                "operators": sorted(question.operators),
                "seed": question.seed,
                "devices": list(COMPILED_FOR),
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = KernelsProbe()


@dataclass
class Examined:
    """What was seen of one operator's Triton implementation."""

    info: OperatorInfo
    implementation: str
    trials: list[Trial] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def place(self) -> Location:
        return Location(
            file=self.info.files.get(self.implementation), operator=self.info.name, implementation=self.implementation
        )


def _examine(bench: Bench) -> Finding:
    question = bench.question
    config = question.candidate.config
    infos = as_selected(bench.oracle.operators(config), bench.candidate.call("operators", config))
    changed = changed_files(question.base.root, question.candidate.root, bench.oracle.entries(), question.changed)
    names, _ = touched(question.operators, changed, bench.oracle.operators(question.base.config), infos)
    chosen = [
        Examined(info, implementation)
        for info in infos
        if info.name in names and (implementation := triton_of(info, question.candidate.root)) is not None
    ]
    if not chosen:
        return Finding(
            Status.UNSUPPORTED,
            "no touched operator has a Triton implementation",
            gaps=("implementations that are not Triton kernels",),
        )
    limits = Limits(call_seconds=session.CALL_SECONDS)
    with tempfile.TemporaryDirectory(prefix="infra-agent-kernels-") as name:
        root = trees.of_engine(Path(name).resolve() / "tree", question.candidate.root, question.adapter)
        with WorkerPool(trees.engine_adapter(question.adapter), limits) as pool, pool.open(Tree(root, "", config)) as w:
            return _tried(bench, chosen, w, root)


def triton_of(info: OperatorInfo, root: Path) -> str | None:
    """The operator's Triton implementation: the selected one if it is one, else the first; None when there is none."""
    names = dict.fromkeys((info.selected, *info.implementations, *info.files))
    for name in names:
        file = root / info.files.get(name, "")
        if name in info.files and trees.holds_kernels(file):
            return name
    return None


def _tried(bench: Bench, chosen: Sequence[Examined], worker: Worker, root: Path) -> Finding:
    triton = session.capability(worker)
    dtype = compute_type(bench, bench.question.candidate.config)
    deadline = time.monotonic() + BUDGET_SECONDS
    gaps: list[str] = []
    done: list[Examined] = []
    missed: list[str] = []
    for examined in chosen:
        tolerance = tolerance_for(examined.info, dtype)
        if tolerance is None:
            missed.append(f"{examined.info.name} has no tolerance for {dtype}")
            continue
        if time.monotonic() > deadline:
            missed.append(f"{examined.info.name} not reached in {BUDGET_SECONDS:g} s")
            continue
        try:
            _try_operator(bench, examined, tolerance, worker, deadline, gaps)
        except WorkerFailure as failure:
            return failed(failure, at=(examined.place,))
        if examined.trials:
            done.append(examined)
    worker.imported()
    found = _finding(done, golden.confidence(triton), (*missed, *gaps), root)
    if missed and found.status is Status.CONFIRMED:
        # The predicate speaks of every touched operator.
        text = f"{len(missed)} of {len(chosen)} operators were not tried: {missed[0]}; {found.observed}"
        return replace(found, status=Status.INCONCLUSIVE, observed=text)
    return found


def _finding(
    done: Sequence[Examined], confidence: tuple[Confidence, Sequence[str]], gaps: Sequence[str], root: Path
) -> Finding:
    def naming(file: str) -> str:
        path = Path(file)
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else file

    if not done:
        return Finding(Status.UNSUPPORTED, "no case was tried", gaps=tuple(gaps) or ("no case was tried",))
    bad = next((one for one in done if any(trial.worst.wrong for trial in one.trials)), None)
    shown = [bad] if bad else done
    return concluded(
        ", ".join(one.info.name for one in shown),
        [trial for one in shown for trial in one.trials],
        [report for one in shown for report in one.reports],
        confidence=confidence,
        naming=naming,
        gaps=gaps,
        at=shown[0].place,
    )


def _try_operator(
    bench: Bench, examined: Examined, tolerance: Tolerance, worker: Worker, deadline: float, gaps: list[str]
) -> None:
    info, question = examined.info, bench.question
    chosen = question.candidate.config.get("operators", {})
    config = {**question.candidate.config, "operators": {**chosen, info.name: examined.implementation}}
    constants = [tensor.name for tensor in info.tensors if tensor.kind == "constant"]
    known = bench.oracle.known_config(question.candidate.config)
    fresh = fresh_cases(info.cases, input_seed(question.seed, info.name, "sizes"), count=1)
    for case in (*checked_cases(info.cases), *fresh):
        if time.monotonic() > deadline:
            gaps.append(f"{info.name} from case {case.name} on, not reached in {BUDGET_SECONDS:g} s")
            break
        seed = input_seed(question.seed, info.name, case.name, "kernels")
        try:
            inputs = bench.oracle.inputs(info.name, case, known, seed)
            expected = bench.oracle.reference(info.name, case, known, inputs)
        except OracleFailure:
            if FRESH not in case.tags:
                raise
            gaps.append(f"{info.name} at {case.name}, which its specification refuses")
            continue

        def call(mode: str, exact_at: list[list[Any]], case: Case = case, inputs: Any = inputs) -> Any:
            told = (info.name, config, case.model_dump(), inputs, constants, mode, exact_at)
            return worker.call("operator", *told)

        trial = tried(case.name, session.running(call), expected, dict.fromkeys(expected, tolerance))
        examined.trials.append(trial)
        if not examined.reports:
            examined.reports = session.reports(worker, COMPILED_FOR)
        if trial.worst.wrong:
            break
