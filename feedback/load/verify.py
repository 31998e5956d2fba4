"""Are the timed outputs what the model says? The oracle scores every one of them, teacher-forced.

For each output token the oracle gives the log-probability of that token and of the most likely one after the same
prefix; their difference is the token's regret. An engine whose arithmetic is that of the oracle must take the most
likely token each time (`Bounds.exact`: regret at most a tie of 1e-4, which reordered float32 sums can turn). Where a
type change is asked for, the mean and the 99th percentile are bounded instead. Scoring the engine's own prefix means
that one turned tie does not make everything after it wrong.

Nothing here runs while anything is timed, and nothing here reaches the candidate's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedback.load.metrics import RequestRecord
from feedback.target import Request, Scored

#: Sequences scored in one call, so that a call stays well inside its time limit.
BATCH = 8

#: A sampled output whose mean log-probability is below this is not a sample of the model: uniform noise over a
#: vocabulary of 49,152 scores about -17, samples at temperature 1 about -3.
LEAST_MEAN_LOGPROB = -10.0

Score = Callable[[list[dict[str, Any]]], Sequence[Scored]]
EndsAfter = Callable[[Sequence[tuple[int, ...]]], Sequence[bool]]


@dataclass(frozen=True)
class Bounds:
    """What is still right. Natural logarithms.

    The defaults leave room for a bfloat16 engine judged by a float32 oracle and for little more: over the shipped
    workloads the former's mean regret was 0.0009 to 0.0018, its 99th percentile 0.04 to 0.07, the worst request's
    mean 0.007.

    `exact`: every token within `tie` of the best. Otherwise the mean regret and its 99th percentile over all tokens are
    bounded, and a single request's mean by `mean_request` (so that one broken request cannot hide among many good
    ones).
    """

    exact: bool = True
    tie: float = 1e-4
    mean: float = 0.01
    p99: float = 0.25
    mean_request: float = 0.1


@dataclass(frozen=True)
class WrongOutput:
    """One request that is wrong, at which output token (0-based, None where no single one is to blame), and how."""

    request: str
    position: int | None
    what: str

    def line(self) -> str:
        """`request r3 token 17: ...`."""
        return f"request {self.request}{'' if self.position is None else f' token {self.position}'}: {self.what}"


@dataclass(frozen=True)
class Verification:
    """What scoring found. `wrong` is empty when every output is right; regrets in nats over greedy tokens."""

    requests: int
    tokens: int
    mean_regret: float
    p99_regret: float
    max_regret: float
    agreement: float
    wrong: tuple[WrongOutput, ...]
    gaps: tuple[str, ...] = ()

    def metrics(self) -> dict[str, float]:
        """For a verdict's `metrics`."""
        return {
            "regret_mean_nats": self.mean_regret,
            "regret_p99_nats": self.p99_regret,
            "regret_max_nats": self.max_regret,
            "greedy_agreement": self.agreement,
            "verified_tokens": float(self.tokens),
        }


def verify(
    records: Sequence[RequestRecord],
    requests: Sequence[Request],
    score: Score,
    bounds: Bounds,
    ends_after: EndsAfter | None = None,
    vocabulary: int | None = None,
) -> Verification:
    """Score all records of one or more passes against the requests they answer (`records[i]` answers `requests[i]`).

    `ends_after(prompts)` asks the oracle whether the model would end right after each prompt; without it early ends are
    named as a gap. An id that is not below `vocabulary` is wrong, and its output is not scored. Raises `ValueError`
    when the oracle's answer does not fit the question.
    """
    if len(records) != len(requests):
        raise ValueError(
            f"{len(records)} outputs for {len(requests)} requests: a request without output was not caught"
        )
    sequences = [
        {"prompt": list(request.prompt_token_ids or ()), "output": list(record.token_ids)}
        for record, request in zip(records, requests, strict=True)
    ]
    wrong = _strangers(records, vocabulary)
    strange = {item.request for item in wrong}
    full = [index for index, record in enumerate(records) if record.token_ids and record.id not in strange]
    scored: dict[int, Scored] = {}
    for start in range(0, len(full), BATCH):
        part = full[start : start + BATCH]
        for index, item in zip(part, score([sequences[place] for place in part]), strict=True):
            if len(item.logprob) != len(records[index].token_ids):
                raise ValueError(f"the oracle scored {len(item.logprob)} of {len(records[index].token_ids)} tokens")
            scored[index] = item
    regrets, same = [], []
    for index, item in scored.items():
        logprob, best = np.array(item.logprob), np.array(item.best_logprob)
        if not (np.isfinite(best).all() and not np.isnan(logprob).any()):
            raise ValueError(f"the oracle's scores of request {records[index].id} are not numbers")
        if requests[index].temperature > 0:
            wrong += _implausible(records[index], logprob)
            continue
        regret = np.maximum(best - logprob, 0.0)
        wrong += _wrong_greedy(records[index], item, regret, bounds)
        regrets.append(regret)
        same.append(np.array(item.best) == np.array(records[index].token_ids))
    early, gaps = _early_ends(records, requests, sequences, ends_after)
    if any(request.temperature > 0 for request in requests):
        gaps = (*gaps, "sampled outputs are checked for plausibility, not token by token")
    every = np.concatenate(regrets) if regrets else np.zeros(1)
    mean, p99 = float(every.mean()), float(np.percentile(every, 99))
    if not bounds.exact and regrets and not wrong and (mean > bounds.mean or p99 > bounds.p99):
        worst = max(range(len(records)), key=lambda index: _worst(scored, index, requests))
        place = int(np.argmax(np.array(scored[worst].best_logprob) - np.array(scored[worst].logprob)))
        what = (
            f"regret over all outputs: mean {mean:.4f} (bound {bounds.mean}), p99 {p99:.3f} (bound {bounds.p99}) nats"
        )
        wrong.append(WrongOutput(records[worst].id, place, what))
    return Verification(
        requests=len(records),
        tokens=sum(len(record.token_ids) for record in records),
        mean_regret=mean,
        p99_regret=p99,
        max_regret=float(every.max()),
        agreement=float(np.concatenate(same).mean()) if same else 1.0,
        wrong=(*wrong, *early),
        gaps=gaps,
    )


def _strangers(records: Sequence[RequestRecord], vocabulary: int | None) -> list[WrongOutput]:
    """The first id of each output that is no token of the model."""
    wrong = []
    for record in records:
        place = next((i for i, id in enumerate(record.token_ids) if vocabulary and not 0 <= id < vocabulary), None)
        if place is not None:
            what = f"token id {record.token_ids[place]} is not in the vocabulary of {vocabulary}"
            wrong.append(WrongOutput(record.id, place, what))
    return wrong


def _worst(scored: dict[int, Scored], index: int, requests: Sequence[Request]) -> float:
    if index not in scored or requests[index].temperature > 0:
        return -1.0
    return float(np.max(np.array(scored[index].best_logprob) - np.array(scored[index].logprob)))


def _wrong_greedy(record: RequestRecord, item: Scored, regret: np.ndarray, bounds: Bounds) -> list[WrongOutput]:
    if bounds.exact:
        places = np.flatnonzero(regret > bounds.tie)
        if not len(places):
            return []
        place = int(places[0])
        what = (
            f"token id {record.token_ids[place]} where the oracle takes {item.best[place]}, "
            f"{regret[place]:.4g} nats less likely ({len(places)} of {len(regret)} tokens differ)"
        )
        return [WrongOutput(record.id, place, what)]
    if float(regret.mean()) <= bounds.mean_request:
        return []
    place = int(np.argmax(regret))
    what = (
        f"mean regret {regret.mean():.3f} nats (bound {bounds.mean_request} a request), worst {regret[place]:.3f} here"
    )
    return [WrongOutput(record.id, place, what)]


def _implausible(record: RequestRecord, logprob: np.ndarray) -> list[WrongOutput]:
    mean = float(np.maximum(logprob, -1e6).mean())
    if mean >= LEAST_MEAN_LOGPROB:
        return []
    what = f"mean log-probability {mean:.1f} of the sampled tokens: not a sample of this model"
    return [WrongOutput(record.id, int(np.argmin(logprob)), what)]


def _early_ends(
    records: Sequence[RequestRecord],
    requests: Sequence[Request],
    sequences: Sequence[dict[str, Any]],
    ends_after: EndsAfter | None,
) -> tuple[list[WrongOutput], tuple[str, ...]]:
    """Outputs that ended before their length: would the model have ended there?

    Whether the end token is part of an output is the engine's choice, so an end right before the last token counts too.
    """
    early = [
        index
        for index, (record, request) in enumerate(zip(records, requests, strict=True))
        if len(record.token_ids) < request.max_tokens
    ]
    askable = [index for index in early if not requests[index].stop and requests[index].temperature == 0]
    gaps: tuple[str, ...] = ()
    if len(askable) < len(early):
        gaps = ("early ends of requests with stop strings or sampling are not checked",)
    if not askable:
        return [], gaps
    if ends_after is None:
        return [], (*gaps, "early ends are not checked")
    whole = [(*sequences[index]["prompt"], *sequences[index]["output"]) for index in askable]
    ends = list(ends_after(whole))
    retry = [place for place, end in enumerate(ends) if not end and records[askable[place]].token_ids]
    for place, end in zip(retry, ends_after([whole[place][:-1] for place in retry]) if retry else (), strict=True):
        ends[place] = end
    wrong = []
    for index, end in zip(askable, ends, strict=True):
        if not end:
            got, asked = len(records[index].token_ids), requests[index].max_tokens
            what = f"ended after {got} of {asked} tokens where the oracle goes on"
            wrong.append(WrongOutput(records[index].id, got, what))
    return wrong, gaps
