"""The figures that a goal can name: vLLM's names for serving figures, and the ones that say what a change costs.

Which way is better belongs to the figure, so a goal cannot get it wrong: an objective goes that way, and a constraint
bounds the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Metric:
    """`relative` says whether a bound may be a multiple of the start's value ("1.2x")."""

    name: str
    unit: str
    better: Direction
    doc: str
    objective: bool = True
    relative: bool = True


_LATENCIES = {
    "ttft": "time to the first token",
    "tpot": "time per output token after the first",
    "itl": "gap between two tokens of a stream",
    "e2el": "time from a request's arrival to its last token",
}
_STATISTICS = ("mean", "median", "p50", "p90", "p95", "p99")

_ALL = (
    Metric("output_throughput", "tok/s", "maximize", "output tokens per second over the whole workload"),
    Metric("total_token_throughput", "tok/s", "maximize", "prompt and output tokens per second"),
    Metric("request_throughput", "req/s", "maximize", "finished requests per second"),
    *(
        Metric(f"{statistic}_{short}_ms", "ms", "minimize", f"{statistic} {doc}")
        for short, doc in _LATENCIES.items()
        for statistic in _STATISTICS
    ),
    Metric(
        "sharding_deviation", "", "minimize",
        "largest error of any operator cut over ranks, as a multiple of what is allowed", relative=False,
    ),
    Metric("peak_memory_bytes", "bytes", "minimize", "largest resident set of the engine's process"),
    Metric(
        "nll_increase_relative",
        "",
        "minimize",
        "rise of the mean negative log-likelihood over the reference's, as a share of it",
        objective=False,
        relative=False,
    ),
    Metric(
        "mean_kl", "nats", "minimize", "mean KL divergence of the logits from the reference's",
        objective=False, relative=False,
    ),
    Metric(
        "greedy_agreement", "", "maximize", "share of positions where the most likely token is the reference's",
        objective=False, relative=False,
    ),
)  # fmt: skip

#: Spellings that people use: statistic behind the quantity, memory without its unit.
_ALIASES = {
    **{f"{short}_{statistic}_ms": f"{statistic}_{short}_ms" for short in _LATENCIES for statistic in _STATISTICS},
    "peak_memory": "peak_memory_bytes",
}

#: Objectives that are met or not: a run ends when they are, and nothing is traded for them.
DEVIATIONS: tuple[str, ...] = ("sharding_deviation",)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
OBJECTIVES: tuple[str, ...] = tuple(name for name, metric in METRICS.items() if metric.objective)


def find(name: str) -> Metric | None:
    """The metric of a name or of a customary spelling of it; None when there is none."""
    return METRICS.get(_ALIASES.get(name, name))
