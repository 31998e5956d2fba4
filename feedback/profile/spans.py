"""Sums over a span log, as rows `[name, category, start_ns, end_ns, thread, step, attributes]`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

ROW_FIELDS = 7


@dataclass(frozen=True)
class SpanSums:
    """Seconds by operator and by phase, and what each step said of itself.

    `busy_seconds` is the time in steps; `steps` holds the attributes of each step span with its seconds.
    """

    busy_seconds: float
    operators: dict[str, float]
    calls: dict[str, int]
    phases: dict[str, float]
    steps: tuple[dict[str, Any], ...] = field(default=())

    @property
    def operator_seconds(self) -> float:
        """Time in operators of all kinds."""
        return sum(self.operators.values())


def sum_spans(rows: Iterable[Sequence[Any]]) -> SpanSums:
    """Sum rows up; without step spans the phases make up the busy time.

    Raises `ValueError` for a row that is no span.
    """
    operators: dict[str, float] = defaultdict(float)
    phases: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    steps = []
    for row in rows:
        if len(row) != ROW_FIELDS or not isinstance(row[2], int) or not isinstance(row[3], int) or row[3] < row[2]:
            raise ValueError(f"not a span row of {ROW_FIELDS} fields that ends after it starts: {row!r:.120}")
        name, category, seconds = str(row[0]), row[1], (row[3] - row[2]) / 1e9
        if category == "op":
            operators[name] += seconds
            calls[name] += 1
        elif category == "phase":
            phases[name] += seconds
        elif category == "step":
            steps.append({**row[6], "seconds": seconds})
    busy = sum(step["seconds"] for step in steps) if steps else sum(phases.values())
    return SpanSums(busy, dict(operators), dict(calls), dict(phases), tuple(steps))
