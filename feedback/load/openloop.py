"""Open loop: requests arrive when they arrive, whether the engine keeps up or not.

The parent's clock drives: a request is submitted when its `arrival_s` has passed, and its latency counts from that
arrival, not from the submission, so that an engine that is busy when a request arrives is charged for the wait. Between
arrivals the engine is stepped `steps` at a time (one by default: an arrival waits at most one engine step). One engine
is measured, in wall time; the figures of two runs may be compared only through interleaved passes (`ab`) or many
alternating runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feedback.load.ab import EngineSession
from feedback.load.collect import Collector
from feedback.load.metrics import RequestRecord, serving_metrics
from feedback.load.workload import Workload
from feedback.target import Request


@dataclass(frozen=True)
class OpenLoopRun:
    """What came of one open-loop run; `lateness` is how long after its arrival each request was submitted, seconds."""

    records: tuple[RequestRecord, ...]
    duration: float
    steps: int
    lateness: tuple[float, ...]

    def metrics(self, objectives_ms: dict[str, float] | None = None) -> dict[str, float]:
        """Serving metrics over the wall time of the run."""
        return serving_metrics(self.records, self.duration, objectives_ms)


def poisson_arrivals(workload: Workload, rate: float, seed: int) -> Workload:
    """The workload with arrivals of a Poisson process of `rate` requests a second, the first at 0; order is kept."""
    if not rate > 0:
        raise ValueError(f"a rate is positive requests a second, not {rate}")
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, size=len(workload.rows))
    arrivals = np.cumsum(gaps) - gaps[0]
    rows = tuple(
        row.model_copy(update={"arrival_s": float(at)}) for row, at in zip(workload.rows, arrivals, strict=True)
    )
    return workload.model_copy(update={"rows": rows})


def run_open_loop(
    session: EngineSession,
    requests: Sequence[Request],
    arrivals: Sequence[float],
    *,
    steps: int = 1,
    prefix: str = "",
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[float], None] = time.sleep,
) -> OpenLoopRun:
    """Serve `requests` as they arrive (`arrivals[i]` seconds after the start) and return when all have finished.

    `wait(seconds)` is called when nothing is left to do before the next arrival. Raises `Misreport`, and whatever the
    session raises.
    """
    if len(arrivals) != len(requests):
        raise ValueError(f"{len(requests)} requests with {len(arrivals)} arrival times")
    queue = sorted(range(len(requests)), key=lambda index: (arrivals[index], index))
    collector = Collector(requests, prefix)
    lateness = [0.0] * len(requests)
    origin, taken, position = clock(), 0, 0
    while not collector.done:
        now = clock() - origin
        while position < len(queue) and arrivals[queue[position]] <= now:
            index = queue[position]
            session.submit(collector.submitting([requests[index]], at=arrivals[index]))
            lateness[index] = now - arrivals[index]
            position += 1
        if collector.pending:
            start = clock() - origin
            report = session.step(steps)
            collector.take(report, steps, start, clock() - origin)
            taken += report.steps
        else:
            wait(max(0.0, arrivals[queue[position]] - now))
    return OpenLoopRun(collector.records(), clock() - origin, taken, tuple(lateness))
