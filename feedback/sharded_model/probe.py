"""Asks whether a whole model over simulated ranks gives the logits and the tokens that it gives on one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from feedback.judging import Bench, Finding, judge
from feedback.kernels.interpreted import InterpretingWorker, unavailable, unfaithful
from feedback.kernels.observed import NOT_MODELLED
from feedback.kernels.rounding import MODES
from feedback.load.workload import VERSION, Row, Workload
from feedback.operators.probe import as_selected, compute_type
from feedback.probe import Context, Question
from feedback.sharded_model.layers import Divergence, first_diverging
from feedback.sharded_model.pair import Pair, off
from feedback.sharded_model.shrink import Change, Reproducer, shrink
from feedback.target import OperatorPlan, Request, Unsupported
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure

REQUESTS = 4
TOKENS = 12

#: Prompts are cut to their last tokens, so many and fewer: lengths that no number of ranks divides alike.
PROMPT_TOKENS = 61

#: Tokens of the scored text: more than one chunk of a scorer, so that what is kept between chunks is tried too.
SCORED_TOKENS = 150

#: The same where kernels are interpreted, thousands of times slower.
INTERPRETED_REQUESTS, INTERPRETED_TOKENS, INTERPRETED_PROMPT, INTERPRETED_TEXT = 2, 4, 37, 70

#: How far logits may be off, over their usual size, and what enters a layer. Sums over ranks and chains of states come
#: in another order; in bfloat16 every operator rounds to 8 significant bits.
LIMITS = {"float32": 2e-3, "bfloat16": 0.25}

#: A token that the unsharded model holds less likely than its best by no more than this many nats is no change.
TIES = {"float32": 2e-3, "bfloat16": 0.1}

#: What this layer cannot see.
GAPS = ("real ranks: processes and their collectives", "longer texts, larger batches, sampled tokens, speed")

UNCUT = "the launch configuration has one rank, nothing is cut: set tp or cp"


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
                "requests": REQUESTS,
                "tokens": TOKENS,
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
    if plan.problems:
        problem = plan.problems[0]
        at = (Location(parameter=problem.parameter),)
        observed = f"cannot run over these ranks: {problem.parameter}: {problem.message}"
        return Finding(Status.REFUTED, observed, Confidence.PROOF, at=at)
    if not any(row.sharding for row in plan.rows):
        return Finding(Status.UNSUPPORTED, UNCUT, gaps=(UNCUT,))
    dtype = compute_type(bench, config)
    operators = sorted({row.operator for row in plan.rows})
    interpreted = unavailable(bench.candidate, config, operators)
    infos = as_selected(bench.oracle.operators(config), bench.candidate.call("operators", config))
    if not interpreted:
        return _compared(bench, plan, dtype, Pair(bench, plan, TIES.get(dtype, max(TIES.values()))))
    with InterpretingWorker(bench, next(iter(interpreted.items()))) as inside:
        found = None
        for mode in MODES:
            pair = Pair(bench, plan, TIES.get(dtype, max(TIES.values())), inside, mode, interpreted)
            try:
                found = _compared(bench, plan, dtype, pair, brief=True)
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


def _compared(bench: Bench, plan: OperatorPlan, dtype: str, pair: Pair, brief: bool = False) -> Finding:
    """The two models side by side; `brief` where every call takes long."""
    limit = LIMITS.get(dtype, max(LIMITS.values()))
    workload = Workload.read(bench.question.workload)
    requests = _requests(bench, workload, brief)
    count = INTERPRETED_TEXT if brief else SCORED_TOKENS
    text = [token for request in requests for token in request.prompt_token_ids or ()]
    text = (text * (1 + count // len(text)))[:count]
    divergence: Divergence | None = None
    try:
        error = off(*pair.logits(text))
    except WorkerFailure as failure:
        if failure.kind != "error" or unfaithful(failure) is not None:
            raise
        error, failed = float("inf"), failure.line
    else:
        failed = ""
    if not error <= limit:
        divergence = _bisected(pair, text, limit)
    change = pair.change(requests)
    # Every step of shrinking starts and runs engines, which takes minutes where kernels are interpreted.
    reproducer = _shrunk(pair, requests, change) if change is not None and not brief else None
    return _finding(workload.name, error, limit, failed, divergence, change, reproducer, len(requests), brief)


def _requests(bench: Bench, workload: Workload, brief: bool) -> tuple[Request, ...]:
    """Greedy requests with the workload's first prompts, by token ids."""
    rows = workload.rows[: INTERPRETED_REQUESTS if brief else REQUESTS]
    longest, most = (INTERPRETED_PROMPT, INTERPRETED_TOKENS) if brief else (PROMPT_TOKENS, TOKENS)
    texts = [row.prompt for row in rows if row.prompt is not None]
    encoded = iter(bench.oracle.tokenize(texts, workload.chat) if texts else [])
    found = []
    for index, row in enumerate(rows):
        ids = tuple(row.prompt_token_ids) if row.prompt_token_ids is not None else tuple(next(encoded))
        kept = max(1, longest - 9 * index)
        tokens = min(row.max_tokens, most)
        found.append(Request(id=row.id, prompt_token_ids=ids[-kept:], max_tokens=tokens, ignore_eos=True))
    return tuple(found)


def _bisected(pair: Pair, text: Sequence[int], limit: float) -> Divergence | None:
    """The first layer that deviates; None where the target does not show what flows between layers."""
    try:
        return first_diverging(pair.layers(text), lambda layer: pair.hidden(text, layer), limit)
    except (Unsupported, WorkerFailure):
        pair.restart()
        return None


def _shrunk(pair: Pair, requests: Sequence[Request], change: Change) -> Reproducer | None:
    """A minimal reproducer that also shows on a fresh engine; None where only a used one shows it."""
    found = shrink(requests, change, pair.change)
    pair.restart()
    again = pair.change(found.requests)
    return None if again is None else Reproducer(found.requests, again, found.runs + 1, found.complete)


def _finding(
    name: str,
    error: float,
    limit: float,
    failed: str,
    divergence: Divergence | None,
    change: Change | None,
    reproducer: Reproducer | None,
    count: int,
    brief: bool,
) -> Finding:
    data: dict[str, Any] = {"logits_error": error if error < float("inf") else None, "limit": limit, "failed": failed}
    metrics = {"logits_error": error}
    if error <= limit and change is None:
        text = f"logits over simulated ranks are off by {error:.2g} of their size ({limit:g} allowed), and {count} "
        return Finding(
            Status.CONFIRMED, f"{text}requests give the same tokens", gaps=GAPS, next="load", metrics=metrics, data=data
        )
    parts = []
    if not error <= limit:
        parts.append(failed or f"logits are off by {error:.2g} of their size ({limit:g} allowed)")
    places: list[Location] = []
    if divergence is not None:
        parts.append(divergence.words())
        data["layer"] = {"first": divergence.layer, "layers": divergence.layers, "asked": list(divergence.asked)}
        places.append(Location(condition=f"layer {divergence.layer}", pattern=divergence.words()))
    texts = {}
    if change is not None:
        other = f": {change.tokens[1]}, not {change.tokens[0]}" if change.tokens else f": {change.what}"
        parts.append(f"request {change.request} changes at token {change.position}{other}")
        places.insert(0, Location(request=change.request, phase="decode" if change.position else "prefill"))
        told = "only on an engine that has run other requests before" if reproducer is None else reproducer.words()
        parts.append("not shrunk" if brief else told)
        if reproducer is not None:
            data["reproducer"] = [_row(request) for request in reproducer.requests]
            data["runs"] = reproducer.runs
            texts["reproducer.jsonl"] = as_workload(f"{name}-minimal", reproducer.requests)
    return Finding(
        Status.REFUTED,
        "; ".join(parts),
        at=tuple(places),
        gaps=GAPS,
        next="sharding",
        metrics=metrics,
        data=data,
        texts=texts,
    )


def _row(request: Request) -> dict[str, Any]:
    return Row(
        id=request.id,
        prompt_token_ids=request.prompt_token_ids,
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
    ).model_dump(mode="json", exclude_defaults=True)


def as_workload(name: str, requests: Sequence[Request]) -> str:
    """A workload file of these requests: `infra-agent probe sharded_model --workload FILE` tries them again."""
    lines = [{"workload": name, "version": VERSION}, *(_row(request) for request in requests)]
    return "".join(json.dumps(line) + "\n" for line in lines)
