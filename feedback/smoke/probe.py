"""Starts the candidate and compares its first tokens with what the trusted model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from feedback.generation import generate
from feedback.judging import Bench, Finding, judge
from feedback.load.collect import Misreport
from feedback.load.conclusion import bounds_for
from feedback.load.verify import Bounds, Verification, verify
from feedback.load.workload import Row, Workload
from feedback.probe import Context, Question
from feedback.target import Description, Request
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict

REQUESTS = 3
TOKENS = 8

#: Prompts are cut to their last tokens, this many: enough for two blocks of the KV cache and a partial one.
PROMPT_TOKENS = 40

#: A start reads weights; a step of three short prompts takes far less than a second anywhere. Beyond these it hangs.
START_SECONDS = 90.0
CALL_SECONDS = 30.0


class SmokeProbe:
    """Starts, and its first tokens are the oracle's: equal, or within the regret bounds after a type change."""

    layer: str = "smoke"
    cost_prior: float = 4.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement=f"starts, and the first {TOKENS} tokens of {REQUESTS} short requests are the oracle's",
            parameters={
                "seed": question.seed,
                "requests": REQUESTS,
                "tokens": TOKENS,
                "prompt_tokens": PROMPT_TOKENS,
                "changes_numerics": question.changes_numerics,
                "tie": Bounds().tie,
                "loose": asdict(LOOSE),
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = SmokeProbe()


#: After a type change. Over 24 tokens the 99th percentile is the largest one, so it is bounded loosely: coarse rounding
#: is for the accuracy layer to judge, another model's tokens are several nats away.
LOOSE = Bounds(exact=False, mean=0.1, p99=1.0, mean_request=0.25)


def bounds_in(question: Question, description: Description) -> Bounds:
    """Token equality, ties aside, unless the arithmetic may differ from the oracle's."""
    return Bounds(exact=True) if bounds_for(question, description).exact else LOOSE


def _examine(bench: Bench) -> Finding:
    question = bench.question
    workload = Workload.read(question.workload)
    rows = pick(workload.rows, question.seed)
    texts = [row.prompt for row in rows if row.prompt is not None]
    encoded = bench.oracle.tokenize(texts, workload.chat) if texts else []
    requests = short_requests(rows, encoded)
    session = bench.candidate.start(question.candidate.config, timeout=START_SECONDS)
    own = session.tokenize(texts, workload.chat) if texts else []
    if own != encoded:
        return _refuted("its tokenizer gives other ids than the trusted one", Location(phase="tokenize"))
    try:
        records = generate(session, requests, timeout=CALL_SECONDS, vocabulary=bench.oracle.vocabulary())
    except Misreport as error:
        return _refuted(f"its reports cannot be true: {error}", Location(phase="generate", request=error.request))
    checked = verify(records, requests, bench.oracle.score, bounds_in(question, bench.oracle.description()))
    data = {
        "requests": [request.model_dump(mode="json") for request in requests],
        "tokens": {record.id: list(record.token_ids) for record in records},
        "wrong": [wrong.line() for wrong in checked.wrong],
    }
    if checked.wrong:
        first = checked.wrong[0]
        more = f" (and {len(checked.wrong) - 1} more requests)" if len(checked.wrong) > 1 else ""
        at = Location(request=first.request, phase="decode" if first.position else "prefill")
        return _refuted(f"first tokens are wrong: {first.line()}{more}", at, data, checked)
    same = "the oracle's" if checked.agreement == 1.0 else f"right ({checked.agreement:.0%} the oracle's choice)"
    return Finding(
        Status.CONFIRMED,
        f"starts; {checked.tokens} first tokens of {checked.requests} requests are {same}",
        Confidence.DIRECT,
        gaps=("longer outputs, larger batches, speed", *checked.gaps),
        next="operators",
        metrics=checked.metrics(),
        data=data,
    )


def _refuted(observed: str, at: Location, data: dict | None = None, checked: Verification | None = None) -> Finding:
    metrics = checked.metrics() if checked else {}
    return Finding(
        Status.REFUTED, observed, Confidence.DIRECT, at=(at,), next="operators", metrics=metrics, data=data or {}
    )


def pick(rows: Sequence[Row], seed: int) -> tuple[Row, ...]:
    """Up to `REQUESTS` rows, drawn by the seed, in the workload's order."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(rows))[:REQUESTS]
    return tuple(rows[int(index)] for index in sorted(chosen))


def short_requests(rows: Sequence[Row], encoded: Sequence[Sequence[int]]) -> tuple[Request, ...]:
    """Greedy requests of different prompt lengths.

    `encoded` are the token ids of the rows that bring text, in order.
    """
    texts = iter(encoded)
    requests = []
    for index, row in enumerate(rows):
        ids = tuple(row.prompt_token_ids) if row.prompt_token_ids is not None else tuple(next(texts))
        kept = max(1, PROMPT_TOKENS - 7 * index)  # lengths that no block size divides alike
        requests.append(Request(id=row.id, prompt_token_ids=ids[-kept:], max_tokens=TOKENS, ignore_eos=True))
    return tuple(requests)
