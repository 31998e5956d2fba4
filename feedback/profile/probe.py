"""Asks where the time of a candidate goes: the first part of the workload under spans of operators and phases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from feedback.judging import Bench, Finding, judge
from feedback.load.collect import Collector, Misreport
from feedback.load.workload import Workload, prepare, warm_up_requests
from feedback.oracle import Oracle
from feedback.probe import Context, Question, Tree
from feedback.profile.facts import (
    Facts,
    counter_facts,
    launch_facts,
    render_table,
    repeat_share,
    span_facts,
)
from feedback.profile.machine import machine_facts
from feedback.profile.spans import SpanSums, sum_spans
from feedback.target import OperatorInfo, Request
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.handle import SessionHandle, Worker

OPERATOR_SPANS = 2
DEFAULT_BLOCK = 16


@dataclass(frozen=True)
class ProfileSettings:
    """`seconds` of engine time at most; spans are fetched every `steps` engine steps; `accounted` is the least share of
    step time that phases must explain for the shares to be worth reading.
    """

    seconds: float = 8.0
    steps: int = 8
    accounted: float = 0.8


@dataclass(frozen=True)
class Profile:
    """What a profiled run showed. `complete` says whether the whole workload was served.

    `dropped` counts lost spans.
    """

    facts: Facts
    sums: SpanSums
    table: str
    complete: bool
    dropped: int
    steps: int

    @property
    def accounted(self) -> float:
        """Share of the time in steps that phases explain."""
        return sum(self.sums.phases.values()) / self.sums.busy_seconds if self.sums.busy_seconds else 0.0


def profile(worker: Worker, oracle: Oracle, tree: Tree, workload: Workload, settings: ProfileSettings) -> Profile:
    """Run the first part of a workload with spans on and say where the time went.

    The engine is warmed up first on prompts of the same lengths. Raises `WorkerFailure` and `Misreport` for the engine
    in `worker`, `Unsupported` when it has no spans, `ValueError` when its spans are none.
    """
    infos = [OperatorInfo.model_validate(item) for item in worker.call("operators", tree.config)]
    requests = prepare(workload, oracle.tokenize, None)
    session = worker.start(tree.config)
    run = _Run(session, settings)
    run.serve(warm_up_requests(prepare(workload, oracle.tokenize, 0)), seconds=float("inf"))
    before = session.metrics()
    lost = int(session.spans(OPERATOR_SPANS).get("dropped") or 0)
    tokens, seconds, complete = run.serve(requests, settings.seconds)
    after = session.metrics()
    session.spans(0)
    sums = sum_spans(run.rows)
    block = tree.config.get("block_size", DEFAULT_BLOCK)
    description = oracle.description()
    facts: Facts = {
        **machine_facts(),
        **launch_facts(tree.config, description, infos),
        **span_facts(sums, {info.name: info.role for info in infos}, after.get("max_batch")),
        **counter_facts({**_since(before, after), **_levels(after)}, tree.config),
        "prefix.repeat_share": repeat_share([request.prompt_token_ids or () for request in requests], int(block)),
        "throughput.output_tok_s": tokens / seconds if seconds else 0.0,
    }
    return Profile(facts, sums, render_table(facts, sums.calls), complete, run.dropped - lost, run.taken)


#: Counters that are levels, not sums.
LEVELS = ("kv_blocks", "kv_blocks_peak", "weight_bytes", "kv_bytes", "max_batch", "parameters")


def _since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items() if name not in LEVELS}


def _levels(after: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in after.items() if name in LEVELS}


@dataclass
class _Run:
    """Serving requests and fetching spans in between, so that the bounded log loses none."""

    session: SessionHandle
    settings: ProfileSettings
    rows: list[list[Any]] = field(default_factory=list)
    dropped: int = 0
    taken: int = 0

    def serve(self, requests: Sequence[Request], seconds: float) -> tuple[int, float, bool]:
        """(output tokens, seconds in steps on the parent's clock, whether all finished); what is left is aborted."""
        collector = Collector(requests)
        renamed = collector.submitting(requests, at=0.0)
        self.session.submit(renamed)
        self.rows, self.taken, tokens, spent = [], 0, 0, 0.0
        while not collector.done and spent < seconds:
            begin = time.perf_counter()
            report = self.session.step(self.settings.steps)
            spent += time.perf_counter() - begin
            tokens += collector.take(report, self.settings.steps, 0.0, 1.0)[0]
            self.taken += report.steps
            drained = self.session.spans()
            self.rows += drained.get("rows") or []
            self.dropped = int(drained.get("dropped") or 0)
        if not collector.done:
            self.session.abort([request.id for request in renamed])
        return tokens, spent, collector.done


@dataclass(frozen=True)
class ProfileProbe:
    """A profile of the candidate whose shares can be read; the facts are its metrics."""

    settings: ProfileSettings = field(default_factory=ProfileSettings)
    layer: str = "profile"
    cost_prior: float = 10.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement=(
                f"the spans of the candidate on the first part of {question.workload.stem} explain at least "
                f"{self.settings.accounted:.0%} of the time in steps, and none were lost"
            ),
            parameters={**asdict(self.settings), "seed": question.seed},
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, self._examine)

    def _examine(self, bench: Bench) -> Finding:
        question = bench.question
        workload = Workload.read(question.workload)
        try:
            found = profile(bench.candidate, bench.oracle, question.candidate, workload, self.settings)
        except Misreport as error:
            what = f"its reports cannot be true: {error}"
            return Finding(Status.REFUTED, what, at=(Location(request=error.request, phase="decode"),), next="smoke")
        except ValueError as error:
            return Finding(Status.INVALID, f"its spans cannot be read: {error}", gaps=("where the time goes",))
        return conclude(found, self.settings)


PROBE = ProfileProbe()


def conclude(found: Profile, settings: ProfileSettings) -> Finding:
    """The finding that a profile gives. Pure."""
    shares = sorted(
        ((float(value), name.removeprefix("share.op.")) for name, value in found.facts.items() if "share.op." in name),
        reverse=True,
    )
    largest = ", ".join(f"{name} {share:.0%}" for share, name in shares[:3]) or "no operator spans"
    gaps = [
        "spans are written by the code under test and cost time themselves: shares, not speeds",
        *([] if found.complete else ["the workload after its first part"]),
    ]
    finding = Finding(
        Status.CONFIRMED,
        f"{found.steps} steps: {largest}; {float(found.facts['throughput.output_tok_s']):.1f} tok/s with spans on",
        Confidence.DIRECT,
        at=tuple(Location(operator=name, pattern=f"{share:.1%} of step time") for share, name in shares[:3]),
        gaps=tuple(gaps),
        metrics={name: float(value) for name, value in found.facts.items() if not isinstance(value, str)},
        data={"facts": found.facts, "table": found.table, "calls": found.sums.calls, "steps": list(found.sums.steps)},
    )
    if found.dropped:
        return replace(finding, status=Status.INVALID, observed=f"{found.dropped} spans were lost: {finding.observed}")
    if found.accounted < settings.accounted:
        what = f"phases explain {found.accounted:.0%} of the step time: {finding.observed}"
        return replace(finding, status=Status.INCONCLUSIVE, observed=what)
    return finding
