"""A goal's constraints that an end-to-end run can check.

A limit is a name and a number. `ttft_p95_ms` (or vLLM's `p95_ttft_ms`) is an upper bound in that unit; with `_ratio`
behind the name it bounds candidate / base of the same pass, and so is free of what the machine does meanwhile.
Latencies and memory are bounded from above, throughputs from below. Names that another layer checks are named as such,
never passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from feedback.load.metrics import KINDS

MEMORY = "peak_memory_bytes"
THROUGHPUTS = ("request_throughput", "output_throughput", "total_token_throughput")
RATIO = "_ratio"
OPEN = "open_"

_SWAPPED = re.compile(rf"^({'|'.join(KINDS)})_(mean|median|std|p\d+)_ms$")
_NATIVE = re.compile(rf"^(mean|median|std|p\d+)_({'|'.join(KINDS)})_ms$")


@dataclass(frozen=True)
class Breach:
    """One limit that does not hold."""

    name: str
    value: float
    bound: float

    def line(self) -> str:
        """`ttft_p95_ms is 812.0, limit 500.0`."""
        return f"{self.name} is {self.value:.4g}, limit {self.bound:.4g}"


def metric_of(limit: str) -> str | None:
    """The metric that a limit bounds, in vLLM's spelling; None when it is not one of an end-to-end run."""
    name = limit.removesuffix(RATIO)
    if name.startswith(OPEN):
        inner = metric_of(name.removeprefix(OPEN))
        return None if inner in (None, MEMORY) else f"{OPEN}{inner}"
    if name == MEMORY or name in THROUGHPUTS or _NATIVE.match(name):
        return name
    swapped = _SWAPPED.match(name)
    return f"{swapped[2]}_{swapped[1]}_ms" if swapped else None


def breaches(
    limits: Mapping[str, float], candidate: Mapping[str, float], base: Mapping[str, float]
) -> tuple[list[Breach], list[str]]:
    """Limits that do not hold, and one line for each that could not be checked here."""
    broken, unchecked = [], []
    for limit, bound in sorted(limits.items()):
        metric = metric_of(limit)
        if metric is None:
            unchecked.append(f"limit {limit} is not one of load's")
            continue
        value = candidate.get(metric)
        if limit.endswith(RATIO) and value is not None:
            reference = base.get(metric)
            value = value / reference if reference else None
        if value is None:
            unchecked.append(f"limit {limit}: this run has no {metric}")
        elif value < bound if metric.removeprefix(OPEN) in THROUGHPUTS else value > bound:
            broken.append(Breach(limit, value, bound))
    return broken, unchecked
