"""A kernel in a file, asked about by hand: the cases, the trees, the verdict with its evidence."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedback.evidence import EvidenceStore
from feedback.judging import OBSERVED_CHARACTERS, Finding, failed
from feedback.kernels import golden, session, trees
from feedback.kernels.arguments import Argument, drawn, held
from feedback.kernels.cases import KernelCase, KernelCases, place, read
from feedback.kernels.conclude import concluded
from feedback.kernels.trial import Trial, tried
from feedback.operators.cases import input_seed
from feedback.probe import Tree
from feedback.target import Arrays, Tolerance, Unsupported
from feedback.verdict import Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure, one_line
from feedback.workers.handle import Worker
from feedback.workers.pool import Limits, WorkerPool

LAYER = "kernels"
HYPOTHESIS = "by-hand"

#: Importing a kernel library takes seconds.
OPEN_SECONDS = 120.0


class ReferenceFailed(Exception):
    """The reference or a generator failed, so nothing was learnt about the kernel; the text is one line."""


@dataclass(frozen=True)
class Asked:
    """What a person asks: the kernel (or host function) `name` in `file`, on these cases."""

    file: Path
    name: str
    cases: KernelCases
    text: str
    seed: int

    @classmethod
    def parse(cls, subject: str, cases: Path, seed: int) -> Asked:
        """From `FILE::kernel` and a file of cases. Raises `UserError`."""
        file, name = place(subject, Path.cwd())
        return cls(file, name, read(cases), cases.read_text(encoding="utf-8"), seed)

    def predicate(self) -> Predicate:
        """What would be confirmed: fixed before anything runs."""
        devices = ", ".join(self.cases.must_compile)
        compiles = f", and compiles for {devices}" if devices else ""
        return Predicate(
            layer=LAYER,
            statement=f"{self.name} is within its bounds of the float64 reference under truncation and under rounding "
            f"of tf32 operands{compiles}",
            parameters={
                "kernel": f"{self.file.name}::{self.name}",
                "sha256": hashlib.sha256(self.file.read_bytes()).hexdigest(),
                "cases": {case.name: case.bound for case in self.cases.cases},
                "cases_sha256": hashlib.sha256(self.text.encode()).hexdigest(),
                "devices": list(self.cases.devices),
                "seed": self.seed,
            },
        )


def ask(subject: str, cases: Path, store: EvidenceStore, seed: int = 0, pool: WorkerPool | None = None) -> Verdict:
    """Run a kernel on its cases in a worker of its own, and say how far it is from the float64 reference.

    `pool` is one of `kernel_pool`, for asking more than once. Raises `UserError` for a file that is not there or cases
    that are none. Whatever the kernel does is a verdict.
    """
    asked = Asked.parse(subject, cases, seed)
    predicate, began = asked.predicate(), time.perf_counter()
    with store.new(LAYER, HYPOTHESIS) as evidence:
        digests = {"predicate": predicate.digest, "kernel": predicate.parameters["sha256"]}
        evidence.record(seeds={"question": seed}, digests=digests)
        evidence.write_json("predicate", predicate.model_dump(mode="json"))
        evidence.write_text("cases.txt", asked.text)
        evidence.write_text("kernel.py", asked.file.read_text(errors="replace"))
        with contextlib.nullcontext(pool) if pool is not None else kernel_pool() as workers:
            finding, printed = _found(asked, workers)
        for name, text in printed.items():
            evidence.write_text(f"kernel-{name}", text)
        evidence.write_json("finding", dict(finding.data))
        verdict = Verdict(
            hypothesis=HYPOTHESIS,
            layer=LAYER,
            status=finding.status,
            predicate=predicate.statement,
            predicate_digest=predicate.digest,
            observed=one_line(finding.observed, OBSERVED_CHARACTERS),
            at=finding.at,
            confidence=finding.confidence,
            gaps=finding.gaps,
            cost_seconds=time.perf_counter() - began,
            next=finding.next,
            evidence=evidence.id,
            metrics={name: value for name, value in finding.metrics.items() if np.isfinite(value)},
        )
        evidence.finish(verdict)
    return verdict


def kernel_pool() -> WorkerPool:
    """Workers for kernels in files."""
    return WorkerPool(f"{trees.BENCH}.adapter", Limits(call_seconds=session.CALL_SECONDS))


def _found(asked: Asked, pool: WorkerPool) -> tuple[Finding, dict[str, str]]:
    """The finding, and what the kernel's worker printed."""
    with tempfile.TemporaryDirectory(prefix="infra-agent-kernel-") as name:
        folder = Path(name).resolve()
        source = trees.source_of(asked.file)
        root = trees.by_hand(folder / "kernel", [source])
        at = Location(file=_shown(str(asked.file)))
        oracle = _Oracle(asked, folder / "reference", pool)
        with pool.open(Tree(root, "kernel", {})) as worker, contextlib.closing(oracle):
            try:
                finding = _examined(asked, source, root, worker, oracle)
            except Unsupported as error:
                finding = Finding(Status.UNSUPPORTED, str(error), at=(at,), gaps=(str(error),))
            except WorkerFailure as failure:
                finding = failed(failure, at=(at,))
            except ReferenceFailed as error:
                finding = Finding(Status.INVALID, str(error), gaps=("the reference gave no answer",))
            printed = {stream: text for stream, text in worker.output().items() if text}
        return finding, printed


def _examined(asked: Asked, source: trees.Source, root: Path, worker: Worker, oracle: _Oracle) -> Finding:
    triton = session.capability(worker)
    kind = worker.call("open", source.module, asked.name, asked.cases.pretend or "", timeout=OPEN_SECONDS)
    trials: list[Trial] = []
    compiled: list[dict[str, Any]] = []
    for case in asked.cases.cases:
        if kind == "kernel" and case.grid is None:
            raise ReferenceFailed(f"case {case.name} gives no grid for the kernel {asked.name}")
        arguments = oracle.arguments(case)
        expected = oracle.expected(case, arguments)
        given = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
        told = {**_told(case), "scalars": {n: v for n, v in arguments.items() if not isinstance(v, np.ndarray)}}

        def call(mode: str, exact_at: list[list[Any]], told: Any = told, given: Arrays = given) -> Any:
            return worker.call("run", told, given, mode, exact_at)

        trials.append(tried(case.name, session.running(call), expected, _tolerances(case, expected)))
        if not compiled:
            compiled = session.reports(worker, tuple(dict.fromkeys((*asked.cases.devices, *asked.cases.must_compile))))
    gaps = ("compilation of later cases' launches",) if len(trials) > 1 and compiled else ()
    return concluded(
        asked.name,
        trials,
        compiled,
        must_compile=asked.cases.must_compile,
        confidence=golden.confidence(triton),
        naming=lambda file: _shown(source.original(root, file)),
        gaps=gaps,
        at=Location(file=_shown(str(asked.file))),
    )


def _shown(file: str) -> str:
    """A path as a person would type it here."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _told(case: KernelCase) -> dict[str, Any]:
    """What the worker hears of a case: how to call, not what to expect."""
    arguments = case.arguments.items()
    return {
        "dtypes": {name: argument.dtype for name, argument in arguments if isinstance(argument, Argument)},
        "none": list(case.none),
        "meta": dict(case.meta),
        "grid": list(case.grid) if case.grid is not None else None,
        "outputs": list(case.outputs),
        "returns": list(case.returns),
    }


def _tolerances(case: KernelCase, expected: Arrays) -> dict[str, Tolerance]:
    """The bound of each output, relative to the largest expected value."""
    found = {}
    for name, want in expected.items():
        finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind == "f" else np.abs(want)
        largest = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
        found[name] = Tolerance(atol=case.bound_of(name) * largest, rtol=0.0, reason="the bound of the case")
    return found


class _Oracle:
    """Draws arguments here, and runs generators and the reference in a worker that never sees the kernel."""

    def __init__(self, asked: Asked, root: Path, pool: WorkerPool) -> None:
        self._asked, self._root, self._pool = asked, root, pool
        self._worker: Worker | None = None
        self._modules: dict[str, tuple[str, str]] = {}

    def arguments(self, case: KernelCase) -> dict[str, Any]:
        """Every argument of the kernel but constants: arrays, and numbers as they are."""
        given: dict[str, Any] = {}
        made = self._generated(case)
        for name, argument in case.arguments.items():
            if not isinstance(argument, Argument):
                given[name] = argument
            elif name in made:
                given[name] = held(made.pop(name), argument.dtype)
            else:
                seed = input_seed(self._asked.seed, case.name, name)
                given[name] = drawn(argument, np.random.default_rng(seed))
        return {**given, **{name: held(value, "float32") for name, value in made.items()}}

    def expected(self, case: KernelCase, arguments: Mapping[str, Any]) -> Arrays:
        """What the reference makes of the same values in float64, by output."""
        wide = {
            name: value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
            for name, value in arguments.items()
        }
        names = (*case.outputs, *case.returns)
        found = self._evaluated(self._asked.cases.reference, {**case.meta, **wide, **dict.fromkeys(case.none)})
        if not set(names) <= found.keys():
            found = dict(zip(names, found.values(), strict=False))
        missing = [name for name in names if name not in found]
        if missing:
            raise ReferenceFailed(f"the reference {self._asked.cases.reference} gives no {', '.join(missing)}")
        return {name: found[name] for name in names}

    def close(self) -> None:
        """End its worker."""
        if self._worker is not None:
            self._worker.close()

    def _generated(self, case: KernelCase) -> Arrays:
        if case.generate is None:
            return {}
        seed = input_seed(self._asked.seed, case.name)
        return self._evaluated(case.generate, {"seed": seed, **case.parameters})

    def _evaluated(self, text: str, arguments: Mapping[str, Any]) -> Arrays:
        try:
            worker = self._opened()
            module, name = self._modules[text]
            found = worker.call("evaluate", module, name, dict(arguments), timeout=session.CALL_SECONDS)
        except WorkerFailure as failure:
            raise ReferenceFailed(f"{text} failed: {failure.line}") from failure
        if not isinstance(found, dict) or not all(isinstance(value, np.ndarray) for value in found.values()):
            raise ReferenceFailed(f"{text} gives no arrays")
        return found

    def _opened(self) -> Worker:
        if self._worker is None:
            texts = {self._asked.cases.reference, *(c.generate for c in self._asked.cases.cases if c.generate)}
            sources = []
            for text in sorted(texts):
                file, name = self._asked.cases.place(text)
                source = trees.source_of(file)
                sources.append(source)
                self._modules[text] = source.module, name
            root = trees.by_hand(self._root, sources)
            self._worker = self._pool.open(Tree(root, "reference", {}), role="oracle")
        return self._worker
