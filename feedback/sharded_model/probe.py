"""Asks whether a whole model over simulated ranks gives the logits and the tokens that it gives on one."""

from __future__ import annotations

from dataclasses import asdict, replace

from feedback.judging import Bench, Finding, judge
from feedback.kernels.interpreted import InterpretingWorker, unavailable, unfaithful
from feedback.kernels.observed import NOT_MODELLED
from feedback.kernels.rounding import MODES
from feedback.operators.probe import as_selected, compute_type
from feedback.probe import Context, Question
from feedback.sharded_model.comparison import INTERPRETED, LIMITS, TIES, Effort, compared, tie_of
from feedback.sharded_model.pair import Pair
from feedback.sharding.planned import obstacle
from feedback.target import Unsupported
from feedback.verdict import Confidence, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure

#: What this layer cannot see.
GAPS = ("real ranks: processes and their collectives", "longer texts, larger batches, sampled tokens, speed")


class ShardedModelProbe:
    """Logits and greedy tokens over simulated ranks; the first layer that deviates; a minimal reproducer."""

    layer: str = "sharded_model"
    cost_prior: float = 15.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="the model over simulated ranks gives the logits of the trusted model on one rank within a "
            "bound, and its greedy tokens wherever that model is not undecided between two",
            parameters={
                "seed": question.seed,
                "effort": asdict(Effort()),
                "limits": dict(LIMITS),
                "ties": dict(TIES),
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = ShardedModelProbe()


def _examine(bench: Bench) -> Finding:
    config = bench.question.candidate.config
    plan = bench.oracle.plan(config)
    if (found := obstacle(plan)) is not None:
        return found
    dtype = compute_type(bench, config)
    operators = sorted({row.operator for row in plan.rows})
    interpreted = unavailable(bench.candidate, config, operators, bench.oracle)
    if not interpreted:
        return compared(bench, plan, dtype, Pair.simulated(bench, plan, tie_of(dtype)), Effort(), GAPS)
    infos = as_selected(bench.oracle.operators(config), bench.candidate.call("operators", config))
    with InterpretingWorker(bench, next(iter(interpreted.items()))) as inside:
        found = None
        for mode in MODES:
            pair = Pair.interpreted(bench, plan, tie_of(dtype), inside, mode, interpreted)
            try:
                found = compared(bench, plan, dtype, pair, INTERPRETED, GAPS)
            except WorkerFailure as failure:
                what = unfaithful(failure)
                if what is None:
                    raise
                raise Unsupported(f"the rounding of {what} is not modelled") from failure
            if found.status is Status.REFUTED:
                break
            pair.restart()
        assert found is not None
        chosen = {info.name: info.files.get(info.selected, "") for info in infos}
        idle = inside.idle(interpreted, chosen, inside.launched() if inside.worker.alive else ())
    gaps = (
        f"{', '.join(interpreted)} interpreted, not run on a GPU, and few and short requests for that reason",
        *NOT_MODELLED,
    )
    found = replace(found, confidence=Confidence.HEURISTIC, gaps=(*found.gaps, *gaps))
    if found.status is Status.CONFIRMED and idle:
        text = f"no kernel of {', '.join(idle)} was launched: what came back was computed some other way"
        return replace(found, status=Status.UNSUPPORTED, observed=text, gaps=(text, *found.gaps))
    return found
