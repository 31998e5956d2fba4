"""What every probe does around its own question: guard the protected files, keep evidence, turn failures into verdicts.

A probe's own part is a function of a `Bench` that returns a `Finding`. Whatever the candidate does in it, crash, hang,
lie or refuse, becomes a verdict; a failure of the trusted side makes the verdict `invalid`, since nothing was learnt
about the candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedback.guard import ABSENT, Tampering, file_digest, is_profile, protected_digests, tampering
from feedback.oracle import Oracle, OracleFailure
from feedback.probe import Context, Question
from feedback.statistics import Comparison
from feedback.target import Unsupported
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure, one_line
from feedback.workers.handle import Worker

#: A verdict is a line: what does not fit stands in the evidence folder.
OBSERVED_CHARACTERS = 400


@dataclass(frozen=True)
class Finding:
    """What a probe found: the verdict's fields without the bookkeeping, and `data`, `arrays` and `texts` (by file name)
    for the evidence folder.

    `comparison` is the effect of a timing layer with all that its verdict must carry.
    """

    status: Status
    observed: str
    confidence: Confidence = Confidence.DIRECT
    at: tuple[Location, ...] = ()
    gaps: tuple[str, ...] = ()
    next: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    comparison: Comparison | None = None


class Bench:
    """What one run of a probe works with: the question, the trusted tree's answers, and the candidate's worker.

    The worker is opened when it is first asked for, so that a probe which needs none pays for none.
    """

    def __init__(self, question: Question, context: Context) -> None:
        self.question = question
        self.context = context
        self.oracle = Oracle.of(context.workers, question.trusted)
        self._candidate: Worker | None = None

    @property
    def candidate(self) -> Worker:
        """The candidate's worker. Calls on it raise `WorkerFailure` and `Unsupported`."""
        if self._candidate is None:
            self._candidate = self.context.workers.open(self.question.candidate, role="candidate")
        return self._candidate

    def open_networked(self) -> Worker:
        """The candidate's worker, in a network of its own in which it may start processes that talk to one another."""
        assert self._candidate is None, "it is open already"
        self._candidate = self.context.workers.open(self.question.candidate, role="candidate", loopback=True)
        return self._candidate

    def gaps(self) -> tuple[str, ...]:
        """What the sandbox leaves open, when candidate code ran."""
        return self.context.workers.gaps() if self._candidate is not None else ()

    def output(self) -> dict[str, str]:
        """What the candidate printed, by stream; nothing when it printed nothing or was never run."""
        return {name: text for name, text in self._candidate.output().items() if text} if self._candidate else {}

    def imported(self) -> None:
        """Check that the files the candidate's worker imported are those of its tree; raises `WorkerFailure`."""
        if self._candidate is not None and self._candidate.failure is None:
            self._candidate.imported()

    def close(self) -> None:
        """End the candidate's worker; the oracle is kept for the next probe of the session."""
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None


def judge(predicate: Predicate, question: Question, context: Context, examine: Callable[[Bench], Finding]) -> Verdict:
    """Run a probe's own part between two digests of the protected files, and write the verdict with its evidence.

    The predicate is on disk before anything runs.
    """
    began = time.perf_counter()
    with context.evidence.new(predicate.layer, question.hypothesis) as evidence:
        evidence.record(seeds={"question": question.seed}, digests={"predicate": predicate.digest})
        evidence.write_json("predicate", predicate.model_dump(mode="json"))
        evidence.write_json("question", _as_data(question))
        bench = Bench(question, context)
        try:
            finding = _examined(bench, examine)
            for name, text in bench.output().items():
                evidence.write_text(f"candidate-{name}", text)
        finally:
            bench.close()
        evidence.write_json("finding", dict(finding.data))
        if finding.arrays:
            evidence.write_arrays("arrays", dict(finding.arrays))
        for name, text in finding.texts.items():
            evidence.write_text(name, text)
        verdict = Verdict(
            hypothesis=question.hypothesis,
            layer=predicate.layer,
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
            metrics={name: value for name, value in finding.metrics.items() if math.isfinite(value)},
            **_timing(finding.comparison),
        )
        evidence.finish(verdict)
    return verdict


def _timing(comparison: Comparison | None) -> dict[str, Any]:
    """The fields of a timing verdict."""
    if comparison is None:
        return {}
    return {
        "effect": comparison.effect,
        "interval": comparison.interval,
        "margin": comparison.margin,
        "minimal_detectable_effect": comparison.mde,
        "noise_floor": comparison.noise_floor,
        "n": comparison.n,
    }


def _as_data(question: Question) -> dict[str, Any]:
    """The question as JSON: enough to ask it again."""
    data = asdict(question)
    return {key: str(value) if isinstance(value, Path) else value for key, value in data.items()}


def _examined(bench: Bench, examine: Callable[[Bench], Finding]) -> Finding:
    try:
        trusted = bench.oracle.protected()
        found = _guard(bench, trusted, "before")
        if found is not None:
            return found
        finding = _caught(bench, examine)
        if bench.oracle.protected() != trusted:
            raise OracleFailure("protected files of the trusted tree changed while the probe ran")
        found = _guard(bench, trusted, "after") or _imports(bench)
        return found or replace(finding, gaps=(*finding.gaps, *bench.gaps()))
    except OracleFailure as error:
        return Finding(Status.INVALID, str(error), gaps=("the trusted side gave no answer",))
    except Unsupported as error:  # a target that cannot name its files
        finding = _caught(bench, examine)
        return replace(finding, gaps=(*finding.gaps, *bench.gaps(), f"protected files: {error}"))


def _guard(bench: Bench, trusted: Mapping[str, str], when: str) -> Finding | None:
    """A refutation when a protected file of the candidate is not the trusted one."""
    seen = protected_digests(bench.question.candidate.root, bench.oracle.entries())
    # A run's trees have one launch profile, their own: that the others are gone says nothing, where its base has none.
    own, base = bench.oracle.description().profile_path, bench.question.base.root

    def left_out(flaw: Tampering) -> bool:
        return flaw.missing and is_profile(flaw.path, own) and file_digest(base, flaw.path) == ABSENT

    found = [flaw for flaw in tampering(trusted, seen, when) if not left_out(flaw)]
    if not found:
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Finding(
        Status.REFUTED,
        f"protected file {found[0].text()}{more}",
        Confidence.PROOF,
        at=tuple(Location(file=item.path) for item in found[:8]),
        data={"tampering": [vars(item) for item in found]},
    )


def _imports(bench: Bench) -> Finding | None:
    """A refutation when what the candidate's worker imported is not what lies in its tree."""
    try:
        bench.imported()
    except WorkerFailure as failure:
        return failed(failure)
    return None


def _caught(bench: Bench, examine: Callable[[Bench], Finding]) -> Finding:
    try:
        return examine(bench)
    except WorkerFailure as failure:
        return failed(failure)
    except Unsupported as error:
        return Finding(Status.UNSUPPORTED, f"not possible with this target: {error}", gaps=(str(error),))


def failed(failure: WorkerFailure, at: tuple[Location, ...] = ()) -> Finding:
    """The candidate's worker failed: a refutation in one line, its stack in the evidence."""
    place = (failure.location,) if failure.location is not None else ()
    return Finding(
        Status.REFUTED,
        failure.line,
        Confidence.DIRECT,
        at=place or at,
        data={"failure": {"kind": failure.kind, "method": failure.method, "detail": failure.detail}},
    )
