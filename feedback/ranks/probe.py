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
from feedback.sharding.planned import obstacle
from feedback.target import Unsupported
from feedback.verdict import Predicate, Status, Verdict
from feedback.workers import procfs
from feedback.workers.failures import WorkerFailure

EFFORT = Effort(explain=False)

#: How a worker says that the kernel refused it a namespace.
NO_NETWORK = "sandbox could not be set up"

#: A call may take as long as the engine lets a rank keep the others waiting, and then some: it is to name that rank.
CALL_SECONDS = 150.0

#: What this layer cannot see.
GAPS = (
    "ranks on several machines or accelerators",
    "that the files of the other ranks are those of the tree",
    "longer texts, larger batches, sampled tokens, speed",
)


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
    config = bench.question.candidate.config
    plan = bench.oracle.plan(config)
    if (found := obstacle(plan)) is not None:
        return found
    try:
        worker = bench.open_networked()
    except WorkerFailure as failure:
        if failure.kind == "protocol" and NO_NETWORK in failure.line and not _networks_here(bench):
            raise Unsupported(f"this machine gives a worker no network of its own: {failure.line}") from failure
        raise
    missing = unavailable(worker, config, sorted({row.operator for row in plan.rows}), bench.oracle)
    if missing:
        name, why = next(iter(missing.items()))
        return Finding(Status.UNSUPPORTED, f"{name} cannot run here: {why}", gaps=(f"{name}: {why}",))
    dtype = compute_type(bench, config)
    pair = Pair(bench, plan, tie_of(dtype), worker, partial(worker.start, config, START_SECONDS), CALL_SECONDS)
    assert pair.session is not None
    before = procfs.descendants(worker.pid)
    found = compared(bench, plan, dtype, pair, EFFORT, GAPS)
    after = procfs.descendants(worker.pid)
    if found.status is Status.REFUTED:
        return found
    computing = sum(1 for pid, seconds in after.items() if pid in before and seconds > before[pid])
    wanted = max(row.ranks for row in plan.rows if row.sharding) - 1
    if computing < wanted:
        text = f"{wanted} other ranks at least were asked for, and {computing} other processes computed"
        return Finding(Status.REFUTED, text, gaps=GAPS)
    pair.restart()
    return found


def _networks_here(bench: Bench) -> bool:
    """Whether the trusted tree gets what the candidate did not."""
    try:
        bench.context.workers.open(bench.question.trusted, role="base", loopback=True).close()
    except WorkerFailure:
        return False
    return True
