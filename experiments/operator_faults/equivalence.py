"""Is a mutant that every layer confirms the same program? Its outputs beside the engine's own, bit for bit.

The procedure: both trees run in workers of the trusted role, on the same inputs, which no layer has drawn: the cases of
the operators' specifications with other seeds, other sizes along the axes that may vary, a model's own sizes, in both
compute types; and every cut of the operators over 2, 3 and 4 ranks, even and uneven, with every recorded step. Where
not one bit differs the mutant is equivalent.

Where bits differ and no value is outside of what is allowed, both run once more with every float in float64, over 1 to
3 ranks. Where all values agree there to `SAME`, the mutant computes the same function and rounds in another order (a
chunk of another length, a sum from the other end): `regrouped`, and nothing that judges by a tolerance may refuse it. A
rounding to fewer bits does not agree in float64. Anything else is a fault that the layers have missed, and how far it
was off, as a share of what the operator is allowed, says whether they had a chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.operator_faults.faults import Fault
from experiments.operator_faults.layers import PLAIN
from feedback.operators.cases import fresh_cases, input_seed
from feedback.operators.checks import same_bits, signature_problem, tolerance_for, worst_ratio
from feedback.probe import Tree
from feedback.target import Arrays, Case, OperatorInfo, ShardingInfo, Shardings, Unsupported
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import Worker
from feedback.workers.pool import WorkerPool

#: Sets of inputs of each case of an operator.
SETS = 4
RANKS, CUTS = (2, 3, 4), (0, 1, 2)

#: Runs that differ before the comparison stops: it is decided then, and how far off is seen.
ENOUGH = 24

#: Values of two float64 runs of one function agree to this, absolutely and relatively.
SAME = 1e-9

#: Runs in float64 that must agree.
EXACT_RUNS = 60

#: Times that sizes are drawn anew.
SIZES = 3

_OPTIONS = {"exact": [], "wide": False, "patience": 10.0, "serial": False}


@dataclass(frozen=True)
class Compared:
    """How many of `runs` differed, the worst error as a multiple of what the operator is allowed (None: a failure, or
    a value that must be exact), and the first that differed. `agreed`: how many runs in float64 gave the same values,
    when all that were made did; else 0.
    """

    runs: int
    differing: int
    worst: float | None = 0.0
    first: str = ""
    agreed: int = 0

    @property
    def regrouped(self) -> bool:
        """Whether it is the same function in another order of roundings."""
        return self.agreed > 0

    def words(self) -> str:
        """For the list of survivors."""
        if not self.differing:
            return f"bit-identical in {self.runs} runs"
        share = "with a failure" if self.worst is None else f"at most {self.worst:.2g} of what is allowed"
        same = f"; the same values in {self.agreed} runs in float64" if self.agreed else ""
        return f"{self.differing} of {self.runs} runs differ, {share}, first {self.first}{same}"


@dataclass(frozen=True)
class _Run:
    """One thing both trees do: `wanted` are the trusted values, `info` says how far from them is allowed."""

    name: str
    info: OperatorInfo
    dtype: str
    method: str
    arguments: tuple[Any, ...]
    wanted: Arrays


def compare(pool: WorkerPool, clean: Path, planted: Path, fault: Fault, model: str, seed: int) -> Compared:
    """The fault's operators in both trees. Both workers are ended."""
    config = PLAIN | {"model": model, "cp": 2}
    runs, differing, worst, first = 0, 0, 0.0, ""
    with (
        pool.open(Tree(clean, "clean", config), role="oracle") as one,
        pool.open(Tree(planted, "planted", config), role="oracle") as other,
    ):
        for run in _runs(one, fault, config, input_seed(seed, "equivalence", fault.name)):
            runs += 1
            ours, theirs = _results(one, run), _results(other, run)
            if _same(ours, theirs):
                continue
            differing += 1
            first = first or run.name
            worst = max(worst, _off(run, theirs))
            if differing >= ENOUGH or not other.alive:
                break
        agreed = _agreed(one, other, fault, config, seed) if differing and worst <= 1.0 else 0
    return Compared(runs, differing, worst if np.isfinite(worst) else None, first, agreed)


def _agreed(one: Worker, other: Worker, fault: Fault, config: dict[str, Any], seed: int) -> int:
    """Runs in float64 of every operator of the fault, on few and on many ranks; 0 when one does not agree."""
    infos = {info.name: info for item in one.call("operators", config) if (info := OperatorInfo(**item))}
    agreed = 0
    for info in (infos[name] for name in fault.operators if name in infos):
        described = Shardings.model_validate(one.call("operator_shardings", info.name, config))
        runs = [
            run
            for sharding in described.shardings
            for run in _cut(one, info, sharding, config, seed + 1, ranks=(1, 2, 3), wide=True, most=EXACT_RUNS)
        ]
        if not runs or not all(_close(_results(one, run), _results(other, run)) for run in runs):
            return 0
        agreed += len(runs)
    return agreed


def _close(ours: Arrays | str, theirs: Arrays | str) -> bool:
    """Whether two runs in float64 gave the same values."""
    if isinstance(ours, str) or isinstance(theirs, str) or ours.keys() != theirs.keys():
        return False
    return all(
        ours[name].shape == theirs[name].shape
        and np.allclose(ours[name], theirs[name], rtol=SAME, atol=SAME, equal_nan=True)
        for name in ours
    )


def _runs(worker: Worker, fault: Fault, config: dict[str, Any], seed: int) -> Iterator[_Run]:
    """Operators alone, then cut; float32 before bfloat16, the specification's cases before fresh sizes."""
    for dtype in ("float32", "bfloat16"):
        typed = config | {"dtype": dtype}
        infos = {info.name: info for item in worker.call("operators", typed) if (info := OperatorInfo(**item))}
        known = [infos[name] for name in fault.operators if name in infos]
        for info in known:
            yield from _alone(worker, info, typed, seed)
        for info in known:
            described = Shardings.model_validate(worker.call("operator_shardings", info.name, typed))
            for sharding in described.shardings:
                yield from _cut(worker, info, sharding, typed, seed)


def _alone(worker: Worker, info: OperatorInfo, config: dict[str, Any], seed: int) -> Iterator[_Run]:
    fresh = [case for number in range(SIZES) for case in fresh_cases(info.cases, seed + number)]
    for number in range(SETS):
        for case in (*info.cases, *fresh):
            if number and "microbench" in case.tags:
                continue
            inputs = _drawn(worker, info, case, config, seed + number)
            if inputs is not None:
                wanted = worker.call("operator_reference", info.name, case.model_dump(), config, inputs)
                name = f"{info.name} {case.name} {config['dtype']}"
                yield _Run(
                    name, info, config["dtype"], "operator", (info.name, config, case.model_dump(), inputs), wanted
                )


def _cut(
    worker: Worker, info: OperatorInfo, sharding: ShardingInfo, config: dict[str, Any], seed: int, *,
    ranks: tuple[int, ...] = RANKS, wide: bool = False, most: int = 10_000,
) -> Iterator[_Run]:  # fmt: skip
    cases = [case for case in (*info.cases, *sharding.cases) if "microbench" not in case.tags]
    options, made = _OPTIONS | {"wide": wide}, 0
    for size in ranks:
        for cut in CUTS if sharding.uneven else (0,):
            for number, case in enumerate(cases):
                if made >= most:
                    return
                inputs = _drawn(worker, info, case, config, seed + 1000 * size + 100 * cut + number)
                if inputs is None:
                    continue
                asked = (info.name, sharding.name, case.model_dump(), config)
                question = worker.call("sharded_question", *asked, inputs, size, cut)
                if "refused" in question:
                    continue
                made += 1
                name = f"{info.name} {sharding.name} over {size} {case.name} {config['dtype']}"
                wanted = {f"{rank}.{k}": v for rank, part in enumerate(question["expected"]) for k, v in part.items()}
                yield _Run(name, info, config["dtype"], "sharded", (*asked, question["pieces"], options), wanted)


def _drawn(worker: Worker, info: OperatorInfo, case: Case, config: dict[str, Any], seed: int) -> Arrays | None:
    """Fresh inputs, or None for sizes that the specification refuses."""
    try:
        return worker.call("operator_inputs", info.name, case.model_dump(), config, seed)
    except WorkerFailure as failure:
        if failure.kind != "error":
            raise
        return None


def _results(worker: Worker, run: _Run) -> Arrays | str:
    """Everything that came out, or the failure."""
    try:
        if run.method == "sharded":
            found = worker.call("sharded_run", *run.arguments)
            if "failed" in found:
                return str(found["failed"])
            arrays = {f"{rank}.{k}": v for rank, part in enumerate(found["ranks"]) for k, v in part.items()}
            steps = found["steps"]
            return arrays | {
                f"{rank}.{step}.{k}": v
                for rank, part in enumerate(steps)
                for step, some in part.items()
                for k, v in some.items()
            }
        operator, config, case, inputs = run.arguments
        constants = {t.name: inputs[t.name] for t in run.info.tensors if t.kind == "constant"}
        handle = worker.call("operator_open", operator, config, case, constants)
        return worker.call("operator_run", handle, inputs)
    except (WorkerFailure, Unsupported) as error:
        return str(error)


def _same(ours: Arrays | str, theirs: Arrays | str) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return isinstance(ours, str) and isinstance(theirs, str)
    return ours.keys() == theirs.keys() and all(same_bits(ours[name], theirs[name]) for name in ours)


def _off(run: _Run, theirs: Arrays | str) -> float:
    """The mutant's worst error as a multiple of what is allowed; infinite for a failure or another shape."""
    tolerance = tolerance_for(run.info, run.dtype)
    if isinstance(theirs, str) or tolerance is None:
        return float("inf")
    if run.method == "operator" and signature_problem(run.info, theirs, run.wanted):
        return float("inf")
    if any(name not in theirs or theirs[name].shape != run.wanted[name].shape for name in run.wanted):
        return float("inf")
    exact = [n for n, want in run.wanted.items() if want.dtype.kind != "f" and not np.array_equal(want, theirs[n])]
    return float("inf") if exact else worst_ratio(theirs, run.wanted, tolerance)
