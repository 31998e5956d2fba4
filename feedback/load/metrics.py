"""Serving metrics under vLLM's names, from what the parent saw of each request.

`{mean,median,std,p50,p90,p95,p99}_{ttft,tpot,itl,e2el}_ms`, `request_throughput`, `output_throughput`,
`total_token_throughput`, `request_goodput`. `tpot = (e2el - ttft) / (output tokens - 1)` for each request of more than
one token; `itl` is every gap between two tokens of one request, as in vLLM (AIPerf calls the former inter-token
latency). Seconds are those of the clock that the records were made with: the arm's own time in an interleaved run, wall
time in an open loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 95, 99)
KINDS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request: `token_times` in seconds, one per output token, on the same clock as `submitted`."""

    id: str
    prompt_tokens: int
    token_ids: tuple[int, ...]
    token_times: tuple[float, ...]
    submitted: float
    finish_reason: str

    @property
    def ttft(self) -> float:
        """Time to first token, seconds; NaN when the request brought none."""
        return self.token_times[0] - self.submitted if self.token_times else math.nan

    @property
    def e2el(self) -> float:
        """End-to-end latency, seconds; NaN when the request brought no token."""
        return self.token_times[-1] - self.submitted if self.token_times else math.nan

    @property
    def tpot(self) -> float:
        """Time per output token after the first, seconds; NaN for one token."""
        return (self.e2el - self.ttft) / (len(self.token_times) - 1) if len(self.token_times) > 1 else math.nan

    @property
    def itl(self) -> tuple[float, ...]:
        """Gaps between consecutive tokens, seconds."""
        return tuple(np.diff(self.token_times).tolist())


def serving_metrics(
    records: Sequence[RequestRecord], duration: float, objectives_ms: Mapping[str, float] | None = None
) -> dict[str, float]:
    """All metrics of a run of `duration` seconds.

    `objectives_ms` are per-request upper bounds by kind (`{"ttft": 500}`), as vLLM's `--goodput`; with them comes
    `request_goodput`. Raises `ValueError` for an unknown kind or a duration that is not positive.
    """
    if not duration > 0:
        raise ValueError(f"duration must be positive, not {duration}")
    unknown = sorted(set(objectives_ms or ()) - {"ttft", "tpot", "e2el"})
    if unknown:
        raise ValueError(f"no per-request objective {', '.join(unknown)}; known are ttft, tpot, e2el")
    prompt = sum(record.prompt_tokens for record in records)
    output = sum(len(record.token_ids) for record in records)
    found = {
        "duration": duration,
        "completed": float(len(records)),
        "total_input_tokens": float(prompt),
        "total_output_tokens": float(output),
        "request_throughput": len(records) / duration,
        "output_throughput": output / duration,
        "total_token_throughput": (prompt + output) / duration,
    }
    if objectives_ms is not None:
        good = sum(
            all(not getattr(record, kind) * 1e3 > bound for kind, bound in objectives_ms.items()) for record in records
        )
        found["request_goodput"] = good / duration
    for kind in KINDS:
        values = np.array([value for record in records for value in np.atleast_1d(getattr(record, kind))], dtype=float)
        values = values[np.isfinite(values)] * 1e3
        if not len(values):
            continue
        found[f"mean_{kind}_ms"] = float(values.mean())
        found[f"median_{kind}_ms"] = float(np.median(values))
        found[f"std_{kind}_ms"] = float(values.std())
        for percentile in PERCENTILES:
            found[f"p{percentile}_{kind}_ms"] = float(np.percentile(values, percentile))
    return found
