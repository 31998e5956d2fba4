"""A model over ranks beside the same on one rank: logits, greedy tokens, and where they part.

What runs the ranks is the caller's: threads, processes, or threads whose kernels are interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feedback.judging import Bench, Finding
from feedback.kernels.interpreted import unfaithful
from feedback.load.workload import VERSION, Row, Workload
from feedback.sharded_model.layers import Divergence, first_diverging
from feedback.sharded_model.pair import Pair, off
from feedback.sharded_model.shrink import Change, Reproducer, shrink
from feedback.target import OperatorPlan, Request, Unsupported
from feedback.verdict import Location, Status
from feedback.workers.failures import WorkerFailure

#: How far logits may be off, over their usual size, and what enters a layer. Sums over ranks and chains of states come
#: in another order; in bfloat16 every operator rounds to 8 significant bits.
LIMITS = {"float32": 2e-3, "bfloat16": 0.25}

#: A token that the unsharded model holds less likely than its best by no more than this many nats is no change.
TIES = {"float32": 2e-3, "bfloat16": 0.1}


@dataclass(frozen=True)
class Effort:
    """How much is tried. `prompt`: prompts are cut to their last tokens, so many and fewer, lengths that no number of
    ranks divides alike; `text`: tokens that are scored, more than one chunk of a scorer, so that what is kept between
    chunks is tried too; `explain`: whether a difference is traced to a layer and shrunk, for which engines are started
    again and again.
    """

    requests: int = 4
    tokens: int = 12
    prompt: int = 61
    text: int = 150
    explain: bool = True


#: Where kernels are interpreted, everything takes thousands of times longer.
INTERPRETED = Effort(requests=2, tokens=4, prompt=37, text=70, explain=False)


def tie_of(dtype: str) -> float:
    """How much less likely a token may be that is no change."""
    return TIES.get(dtype, max(TIES.values()))


def compared(
    bench: Bench, plan: OperatorPlan, dtype: str, pair: Pair, effort: Effort, gaps: tuple[str, ...]
) -> Finding:
    """The two models side by side. `gaps`: what this way of running ranks cannot show."""
    limit = LIMITS.get(dtype, max(LIMITS.values()))
    workload = Workload.read(bench.question.workload)
    requests = _requests(bench, workload, effort)
    count = effort.text
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
    if not error <= limit and effort.explain:
        divergence = _bisected(pair, text, limit)
    change = pair.change(requests)
    reproducer = _shrunk(pair, requests, change) if change is not None and effort.explain else None
    seen = _Seen(error, limit, failed, divergence, change, reproducer, len(requests))
    return _finding(workload.name, seen, effort, gaps)


@dataclass(frozen=True)
class _Seen:
    """What was seen: how far logits are off, the failure if there was one, where it starts, the changed request, and
    how many were tried.
    """

    error: float
    limit: float
    failed: str
    divergence: Divergence | None
    change: Change | None
    reproducer: Reproducer | None
    count: int


def _requests(bench: Bench, workload: Workload, effort: Effort) -> tuple[Request, ...]:
    """Greedy requests with the workload's first prompts, by token ids."""
    rows = workload.rows[: effort.requests]
    texts = [row.prompt for row in rows if row.prompt is not None]
    encoded = iter(bench.oracle.tokenize(texts, workload.chat) if texts else [])
    found = []
    for index, row in enumerate(rows):
        ids = tuple(row.prompt_token_ids) if row.prompt_token_ids is not None else tuple(next(encoded))
        kept = max(1, effort.prompt - 9 * index)
        tokens = min(row.max_tokens, effort.tokens)
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


def _finding(name: str, seen: _Seen, effort: Effort, gaps: tuple[str, ...]) -> Finding:
    error, limit, change, reproducer = seen.error, seen.limit, seen.change, seen.reproducer
    data: dict[str, Any] = {
        "logits_error": error if error < float("inf") else None,
        "limit": limit,
        "failed": seen.failed,
    }
    metrics = {"logits_error": error}
    if error <= limit and change is None:
        text = f"logits are off by {error:.2g} of their size ({limit:g} allowed), and {seen.count} requests give the "
        return Finding(Status.CONFIRMED, f"{text}same tokens", gaps=gaps, next="load", metrics=metrics, data=data)
    parts = []
    if not error <= limit:
        parts.append(seen.failed or f"logits are off by {error:.2g} of their size ({limit:g} allowed)")
    places: list[Location] = []
    if seen.divergence is not None:
        divergence = seen.divergence
        parts.append(divergence.words())
        data["layer"] = {"first": divergence.layer, "layers": divergence.layers, "asked": list(divergence.asked)}
        places.append(Location(condition=f"layer {divergence.layer}", pattern=divergence.words()))
    texts = {}
    if change is not None:
        other = f": {change.tokens[1]}, not {change.tokens[0]}" if change.tokens else f": {change.what}"
        parts.append(f"request {change.request} changes at token {change.position}{other}")
        places.insert(0, Location(request=change.request, phase="decode" if change.position else "prefill"))
        told = "only on an engine that has run other requests before" if reproducer is None else reproducer.words()
        parts.append(told if effort.explain else "not shrunk")
        if reproducer is not None:
            data["reproducer"] = [_row(request) for request in reproducer.requests]
            data["runs"] = reproducer.runs
            texts["reproducer.jsonl"] = as_workload(f"{name}-minimal", reproducer.requests)
    return Finding(
        Status.REFUTED,
        "; ".join(parts),
        at=tuple(places),
        gaps=gaps,
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
