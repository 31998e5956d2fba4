"""What follows from the measurements of a load question. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from feedback.judging import Finding
from feedback.load.ab import ArmRun, Policy
from feedback.load.limits import breaches
from feedback.load.metrics import serving_metrics
from feedback.load.passes import FloorSettings
from feedback.load.verify import Bounds, Verification
from feedback.probe import Question
from feedback.statistics import Comparison, Decision, arm_time, impossible
from feedback.target import Description
from feedback.verdict import Confidence, Status

#: Figures of the base that a verdict shows beside the candidate's.
BASE_FIGURES = ("output_throughput", "peak_memory_bytes", "p95_ttft_ms", "open_p95_ttft_ms")


@dataclass(frozen=True)
class LoadSettings:
    """How much is spent on one answer.

    `margin` is the ratio to be reached. At most `max_passes` passes; every one after the first is over a rebuilt pair
    of engines, the first over the session's live base unless `fresh_base`. `touched_share` is the share of the base's
    time that the move can act on, where the profile tells (Amdahl's bound on what may be believed).

    With `open_loop_rate` the candidate, and after it the base, also serve the workload once as it arrives: a Poisson
    process of that many requests a second, or the workload's own `arrival_s` for a rate of 0. Its figures carry the
    prefix `open_` and may be limited like the others; they are of one run each, in wall time, and decide nothing else.
    """

    margin: float = 1.02
    max_passes: int = 3
    fresh_base: bool = False
    policy: Policy = field(default_factory=Policy)
    repeats: int = 2
    floor: FloorSettings = field(default_factory=FloorSettings)
    touched_share: float | None = None
    open_loop_rate: float | None = None


def bounds_for(question: Question, description: Description) -> Bounds:
    """Token equality with the oracle unless the candidate's arithmetic may differ from the oracle's.

    It may when the move says so, and when a launch parameter that changes numerics differs from the trusted
    configuration (an earlier move may have changed the type).
    """
    candidate, trusted = question.candidate.config, question.trusted.config
    differs = any(
        candidate.get(parameter.name, parameter.default) != trusted.get(parameter.name, parameter.default)
        for parameter in description.launch_space
        if parameter.changes_numerics
    )
    bounds = Bounds(exact=not (question.changes_numerics or differs))
    return replace(
        bounds,
        mean=question.limits.get("regret_mean_nats", bounds.mean),
        p99=question.limits.get("regret_p99_nats", bounds.p99),
    )


def arm_figures(runs: Sequence[ArmRun]) -> dict[str, float]:
    """Serving metrics of one arm over several passes; throughputs leave disturbance out, as the comparison does."""
    records = [record for run in runs for record in run.records]
    figures = serving_metrics(records, sum(run.busy_seconds for run in runs))
    seconds = sum(arm_time(run.units).seconds for run in runs)
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        figures[name] *= figures["duration"] / seconds
    return figures


def conclude(
    question: Question,
    settings: LoadSettings,
    workload: str,
    comparison: Comparison,
    decision: Decision,
    figures: tuple[dict[str, float], dict[str, float]],
    checked: Sequence[Verification],
) -> Finding:
    """The finding that follows from what was measured. Pure."""
    candidate, base = figures
    broken, unchecked = breaches(question.limits, candidate, base)
    unchecked = [line for line in unchecked if not line.startswith("limit regret_")]
    gaps = (
        f"traffic other than {workload}",
        *(["open-loop arrivals"] if settings.open_loop_rate is None else []),
        *dict.fromkeys(gap for item in checked for gap in item.gaps),
        *unchecked,
    )
    metrics = {
        **candidate,
        **{f"base_{name}": base[name] for name in BASE_FIGURES if name in base},
        **(checked[-1].metrics() if checked else {}),
        "verified_tokens": float(sum(item.tokens for item in checked)),
        "discarded_units": float(comparison.discarded),
    }
    tokens = sum(item.tokens for item in checked)
    text = (
        f"{candidate['output_throughput']:.1f} tok/s against {base['output_throughput']:.1f} in "
        f"{comparison.n} pass{'es' if comparison.n > 1 else ''}, {tokens} output tokens verified"
    )
    found = Finding(
        Status.INCONCLUSIVE, text, Confidence.STATISTICAL, gaps=gaps, metrics=metrics, comparison=comparison
    )
    if broken:
        lines = "; ".join(item.line() for item in broken)
        return replace(
            found, status=Status.REFUTED, observed=f"limit broken: {lines}; {text}", confidence=Confidence.DIRECT
        )
    if settings.touched_share is not None:
        reason = impossible(comparison, settings.touched_share)
        if reason is not None:
            return replace(found, status=Status.INVALID, observed=reason, gaps=(reason, *gaps), next="profile")
    if decision in ("confirmed", "refuted"):
        return replace(found, status=Status.CONFIRMED if decision == "confirmed" else Status.REFUTED)
    why = "no further pass could decide" if decision == "futile" else "all passes are used up"
    return replace(found, observed=f"{text}: {why}", next="load with more rebuilt pairs")
