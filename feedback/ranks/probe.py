"""Asks whether the model over real ranks gives the logits and the tokens that it gives on one."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from feedback.judging import Bench, Finding, judge
from feedback.kernels.interpreted import unavailable
from feedback.operators.probe import compute_type
from feedback.probe import Context, Question
from feedback.sharded_model.comparison import LIMITS, TIES, Effort, compared, tie_of
from feedback.sharded_model.pair import START_SECONDS, Pair
from feedback.sharded_model.probe import UNCUT
from feedback.target import Unsupported
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure

EFFORT = Effort(explain=False)

#: What this layer cannot see.
GAPS = ("ranks on several machines or accelerators", "longer texts, larger batches, sampled tokens, speed")


class RanksProbe:
    """Logits and greedy tokens over processes; a rank that fails, dies or hangs is one line."""

    layer: str = "ranks"
    cost_prior: float = 20.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="the model over the ranks of its launch configuration, each a process, gives the logits of the "
            "trusted model on one rank within a bound, and its greedy tokens wherever that model is not undecided "
            "between two",
            parameters={
                "seed": question.seed,
                "effort": asdict(EFFORT),
                "limits": dict(LIMITS),
                "ties": dict(TIES),
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = RanksProbe()


def _examine(bench: Bench) -> Finding:
    question, config = bench.question, bench.question.candidate.config
    plan = bench.oracle.plan(config)
    if plan.problems:
        problem = plan.problems[0]
        at = (Location(parameter=problem.parameter),)
        observed = f"cannot run over these ranks: {problem.parameter}: {problem.message}"
        return Finding(Status.REFUTED, observed, Confidence.PROOF, at=at)
    if not any(row.sharding for row in plan.rows):
        return Finding(Status.UNSUPPORTED, UNCUT, gaps=(UNCUT,))
    try:
        worker = bench.context.workers.open(question.candidate, role="candidate", loopback=True)
    except WorkerFailure as failure:
        if failure.method == "import" and "sandbox could not be set up" in failure.line:
            raise Unsupported(f"this machine gives a worker no network of its own: {failure.line}") from failure
        raise
    with worker:
        missing = unavailable(worker, config, sorted({row.operator for row in plan.rows}))
        if missing:
            name, why = next(iter(missing.items()))
            return Finding(Status.UNSUPPORTED, f"{name} cannot run here: {why}", gaps=(f"{name}: {why}",))
        start = partial(worker.start, config, START_SECONDS)
        pair = Pair(bench, plan, tie_of(compute_type(bench, config)), worker, start)
        found = compared(bench, plan, compute_type(bench, config), pair, EFFORT, GAPS)
        pair.restart()
        worker.imported()
        return found
