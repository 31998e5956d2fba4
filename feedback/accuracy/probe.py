"""Asks whether a candidate's distributions stay within the goal's accuracy limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from feedback.accuracy.divergence import (
    Estimate,
    agreement,
    estimate,
    kl_divergence,
    log_softmax,
    nll_increase,
    token_nll,
)
from feedback.accuracy.limits import AccuracyLimits
from feedback.accuracy.material import Passage, passages, prompts
from feedback.generation import generate
from feedback.judging import Bench, Finding, judge
from feedback.load.collect import Misreport
from feedback.load.conclusion import bounds_for
from feedback.load.verify import Bounds, Verification, verify
from feedback.load.workload import Workload
from feedback.oracle import Oracle
from feedback.probe import Context, Question
from feedback.target import Scored, Unsupported
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.handle import SessionHandle

PROMPTS = 4
OUTPUT_TOKENS = 24
START_SECONDS = 120.0
CALL_SECONDS = 120.0

#: Passages of the text that are always scored; more are added while the interval still holds a limit.
FIRST_PASSAGES = 2

#: The limit that only a text can show.
NLL = "nll_increase_relative"


class AccuracyProbe:
    """KL and agreement against the fp32 reference, NLL on a text, and the engine's own outputs under the reference."""

    layer: str = "accuracy"
    cost_prior: float = 12.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="logits, NLL and greedy outputs stay within the goal's limits of the trusted fp32 model",
            parameters={
                **AccuracyLimits.of(question).as_dict(),
                "changes_numerics": question.changes_numerics,
                "bounds": asdict(Bounds()),
                "prompts": PROMPTS,
                "output_tokens": OUTPUT_TOKENS,
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = AccuracyProbe()


@dataclass
class Measured:
    """Per-token values so far, in the order of the passages."""

    kl: list[np.ndarray] = field(default_factory=list)
    agree: list[np.ndarray] = field(default_factory=list)
    reference_nll: list[np.ndarray] = field(default_factory=list)
    candidate_nll: list[np.ndarray] = field(default_factory=list)

    def add(self, reference: np.ndarray, candidate: np.ndarray, tokens: Sequence[int], text: bool) -> None:
        """Enter the logits of one passage; `text` passages count for the NLL too."""
        p, q = log_softmax(reference), log_softmax(candidate)
        self.kl.append(kl_divergence(p, q))
        self.agree.append(agreement(p, q))
        if text:
            wanted = np.array(tokens)
            self.reference_nll.append(token_nll(p, wanted))
            self.candidate_nll.append(token_nll(q, wanted))

    def divergence(self) -> Estimate:
        """Mean KL over all tokens."""
        return estimate(np.concatenate(self.kl))

    def increase(self) -> Estimate | None:
        """Relative NLL increase; None without a text."""
        if not self.reference_nll:
            return None
        return nll_increase(np.concatenate(self.reference_nll), np.concatenate(self.candidate_nll))


def _examine(bench: Bench) -> Finding:
    question, limits, gaps = bench.question, AccuracyLimits.of(bench.question), []
    longest = int(question.candidate.config.get("max_model_len", 1024))
    workload = Workload.read(question.workload)
    requests = prompts(bench.oracle, workload, PROMPTS, OUTPUT_TOKENS, longest)
    try:
        texts = passages(bench.oracle, longest)
    except Unsupported as error:
        texts = ()
        gaps.append(f"NLL: {error}")
    session = bench.candidate.start(question.candidate.config, timeout=START_SECONDS)
    try:
        records = generate(session, requests, timeout=CALL_SECONDS, vocabulary=bench.oracle.vocabulary())
    except Misreport as error:
        at = Location(phase="generate", request=error.request)
        return Finding(Status.REFUTED, f"its reports cannot be true: {error}", at=(at,))
    bounds = bounds_for(question, bench.oracle.description())
    checked = verify(records, requests, lambda sequences: _scored(bench.oracle, sequences), bounds)
    if checked.wrong:
        return _wrong_outputs(checked)
    measured = Measured()
    # What it generated itself: near-greedy, as just verified, and the oracle's logits are at hand.
    pairs = zip(requests, records, strict=True)
    given = [Passage(request.id, tuple(request.prompt_token_ids or ()), r.token_ids) for request, r in pairs]
    for passage in (*given, *texts[:FIRST_PASSAGES]):
        broken = _score(bench, session, passage, measured, passage in texts)
        if broken is not None:
            return broken
    for passage in texts[FIRST_PASSAGES:]:
        if "open" not in _decisions(measured, limits).values():
            break
        broken = _score(bench, session, passage, measured, True)
        if broken is not None:
            return broken
    unseen = measured.increase() is None and NLL in question.limits
    return _finding(measured, limits, checked, (*gaps, *checked.gaps), unseen)


def _scored(oracle: Oracle, sequences: Sequence[Mapping[str, Any]]) -> list[Scored]:
    """Scores from the oracle's logits, which are needed for KL anyway."""
    found = []
    for sequence in sequences:
        logp = log_softmax(oracle.logits(sequence["prompt"], sequence["output"]))
        given, best, most = -token_nll(logp, np.array(sequence["output"])), logp.argmax(axis=-1), logp.max(axis=-1)
        found.append(Scored(logprob=given.tolist(), best=best.tolist(), best_logprob=most.tolist()))
    return found


def _score(bench: Bench, session: SessionHandle, passage: Passage, measured: Measured, text: bool) -> Finding | None:
    """Enter one passage; a refutation when the candidate's logits are no logits."""
    reference = bench.oracle.logits(passage.prompt, passage.output)
    scored = session.score(
        [{"prompt": list(passage.prompt), "output": list(passage.output)}], True, timeout=CALL_SECONDS
    )
    candidate = scored.logits[0]
    if candidate.shape != reference.shape:
        what = f"scored {list(candidate.shape)} logits, expected {list(reference.shape)}"
        return Finding(Status.REFUTED, f"{passage.name}: {what}", at=(Location(phase="score"),))
    bad = ~np.isfinite(candidate) & np.isfinite(reference)
    if bad.any():
        rows = np.flatnonzero(bad.any(axis=1))
        what = f"{int(bad.sum())} logits are not finite, first at token {rows[0]} of {passage.name}"
        return Finding(Status.REFUTED, what, at=(Location(phase="score", pattern=what),))
    measured.add(reference, candidate, passage.output, text)
    return None


def _decisions(measured: Measured, limits: AccuracyLimits) -> dict[str, str]:
    increase = measured.increase()
    found: dict[str, str] = {"mean_kl": measured.divergence().against(limits.mean_kl)}
    if increase is not None:
        found[NLL] = increase.against(limits.nll_increase_relative)
    return found


def _wrong_outputs(checked: Verification) -> Finding:
    first = checked.wrong[0]
    more = f" (and {len(checked.wrong) - 1} more)" if len(checked.wrong) > 1 else ""
    return Finding(
        Status.REFUTED,
        f"greedy outputs are wrong: {first.line()}{more}",
        Confidence.DIRECT,
        at=(Location(request=first.request, phase="decode"),),
        next="operators",
        metrics=checked.metrics(),
        data={"wrong": [wrong.line() for wrong in checked.wrong]},
    )


def _finding(
    measured: Measured, limits: AccuracyLimits, checked: Verification, gaps: tuple[str, ...], unseen: bool
) -> Finding:
    """The finding; `unseen` says that the goal bounds the NLL and there was no text to measure it on."""
    divergence, increase = measured.divergence(), measured.increase()
    agree = float(np.concatenate(measured.agree).mean())
    decisions = _decisions(measured, limits)
    metrics = {**checked.metrics(), "mean_kl_nats": divergence.mean, "forced_greedy_agreement": agree}
    parts = [_phrase("mean KL", divergence, limits.mean_kl, "nats")]
    if increase is not None:
        metrics[NLL] = increase.mean
        metrics["nll_reference_nats"] = float(np.concatenate(measured.reference_nll).mean())
        parts.append(_phrase("NLL increase", increase, limits.nll_increase_relative, "relative"))
    if unseen:
        decisions[NLL] = "open"
        parts.append("the NLL that the goal bounds could not be measured")
    parts.append(f"greedy agreement {agree:.1%} over {divergence.n} tokens")
    if "beyond" in decisions.values():
        status, parts = Status.REFUTED, [p for p in parts if "beyond" in p] + [p for p in parts if "beyond" not in p]
    elif "open" in decisions.values():
        status = Status.INCONCLUSIVE
    else:
        status = Status.CONFIRMED
    return Finding(
        status,
        ", ".join(parts),
        Confidence.STATISTICAL,
        at=(Location(phase="score"),) if status is Status.REFUTED else (),
        gaps=("contexts longer than the passages, sampling at a temperature", *gaps),
        next="load" if status is Status.CONFIRMED else "operators",
        metrics=metrics,
        data={"decisions": decisions, "limits": limits.as_dict()},
        arrays={
            "kl_nats": np.concatenate(measured.kl),
            "reference_nll_nats": np.concatenate(measured.reference_nll or [np.empty(0)]),
            "candidate_nll_nats": np.concatenate(measured.candidate_nll or [np.empty(0)]),
        },
    )


def _phrase(name: str, found: Estimate, limit: float, unit: str) -> str:
    verdict = {"within": "within", "beyond": "beyond", "open": "not separated from"}[found.against(limit)]
    return f"{name} {found.mean:.2g} [{found.low:.2g}, {found.high:.2g}] {unit}, {verdict} {limit:g}"
