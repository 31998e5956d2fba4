"""Runs a workload with spans on and tells where the time went."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from target_engine.engine import Engine
from target_engine.scheduling.request import SamplingParams
from target_engine.spans import OPERATORS, Span
from target_engine.workload import WorkloadRequest


@dataclass(frozen=True)
class Recorded:
    """A workload's spans, wall time in seconds and the engine's counters."""

    spans: list[Span]
    seconds: float
    metrics: dict[str, float]
    dropped: int


@dataclass(frozen=True)
class Line:
    """One name's share of the time in steps."""

    category: str
    name: str
    calls: int
    milliseconds: float
    share: float


def run_workload(engine: Engine, requests: Sequence[WorkloadRequest], chat: bool = False) -> Recorded:
    """Submit all requests at once and run them to the end with operator spans on."""
    for request in requests:
        seed = engine.next_seed() if request.seed is None else request.seed
        prompt = request.prompt_token_ids
        if request.prompt is not None:
            turn = [{"role": "user", "content": request.prompt}]
            prompt = engine.tokenizer.chat(turn) if chat else engine.tokenizer.encode(request.prompt)
        engine.add_request(request.id, prompt or (), SamplingParams.of(request.sampling, seed))
    engine.spans.level = OPERATORS
    start = time.perf_counter()
    while engine.has_work:
        engine.step()
    return Recorded(engine.spans.drain(), time.perf_counter() - start, engine.metrics(), engine.spans.dropped)


def summary(spans: Iterable[Span]) -> list[Line]:
    """Time by phase and by operator as a share of the time in steps, largest first."""
    spent: dict[tuple[str, str], list[int]] = defaultdict(list)
    for span in spans:
        spent[span.category, span.name].append(span.end_ns - span.start_ns)
    whole = sum(sum(times) for (category, _), times in spent.items() if category == "step") or 1
    lines = [
        Line(category, name, len(times), sum(times) / 1e6, sum(times) / whole)
        for (category, name), times in spent.items()
        if category in ("phase", "op")
    ]
    return sorted(lines, key=lambda line: (line.category != "phase", -line.milliseconds))


def render_profile(recorded: Recorded) -> None:
    """Print the summary as a table."""
    from rich.console import Console
    from rich.table import Table

    console, metrics = Console(), recorded.metrics
    table = Table("kind", "name", "calls", "ms", "share of step time")
    for line in summary(recorded.spans):
        share = f"{100 * line.share:5.1f} % {'█' * round(30 * line.share)}"
        table.add_row(line.category, line.name, str(line.calls), f"{line.milliseconds:.1f}", share)
    console.print(table)
    steps, tokens = int(metrics["steps"]), int(metrics["output_tokens"])
    rate = tokens / recorded.seconds if recorded.seconds else 0.0
    console.print(
        f"{steps} steps, {tokens} output tokens, {int(metrics['prompt_tokens'])} prompt tokens "
        f"({int(metrics['cached_prompt_tokens'])} from the cache), {recorded.seconds:.2f} s, "
        f"{rate:.1f} output tokens/s with spans on, {metrics['weight_bytes'] / 2**20:.0f} MiB weights, "
        f"{metrics['kv_bytes'] / 2**20:.0f} MiB KV"
    )
    if recorded.dropped:
        console.print(f"{recorded.dropped} spans were dropped: the shares are of the last part of the run")
