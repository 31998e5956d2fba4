"""The span log: one monotonic record of what ran when, that every layer of the engine writes to.

This is a frozen contract (schema version 1); timelines and profiles are read from it.

* One clock: `time.monotonic_ns()` (CLOCK_MONOTONIC), which other processes on the machine share, so that an outside
  sampler can be joined to it.
* A span is closed when it is written, so a reader never sees half of one. Nesting is by time on one thread.
* The log is bounded: when it is full the oldest spans are dropped and counted in `dropped`; a reader that sees
  `dropped > 0` knows that its shares are of a window, not of everything.
* Writing is cheap when off: `level` 0 records nothing, 1 records steps and phases, 2 records operators too.

Row format (`Span.row`), also the JSON-lines format: `[name, category, start_ns, end_ns, thread, step, attributes]`.
Categories: `step`, `phase` (schedule, prepare, prefill, decode, mixed, sample, postprocess), `op` (operator calls),
`memory`, `transfer`, `wait`, `event` (start == end).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

SCHEMA_VERSION = 1

OFF, PHASES, OPERATORS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Span:
    """One closed interval on one thread. `start_ns <= end_ns`, CLOCK_MONOTONIC; `step` is the engine step or -1."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    thread: int
    step: int = -1
    attributes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError(f"span {self.name} ends before it starts: {self.end_ns} < {self.start_ns}")

    def row(self) -> list[Any]:
        """The span as a JSON-able row."""
        return [self.name, self.category, self.start_ns, self.end_ns, self.thread, self.step, self.attributes]

    @classmethod
    def from_row(cls, row: list[Any]) -> Span:
        """Read a row back; raises `ValueError` for a row of another shape."""
        if len(row) != 7:
            raise ValueError(f"a span row has 7 fields (schema {SCHEMA_VERSION}), this one has {len(row)}: {row!r}")
        return cls(*row)


class _Open(AbstractContextManager[None]):
    """A span being measured; closed and written on exit, also when the body raises."""

    __slots__ = ("_attributes", "_category", "_log", "_name", "_start")

    def __init__(self, log: SpanLog, name: str, category: str, attributes: dict[str, Any]) -> None:
        self._log, self._name, self._category, self._attributes = log, name, category, attributes
        self._start = 0

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        attributes = {**self._attributes, "error": kind.__name__} if kind else self._attributes
        self._log.add(self._name, self._category, self._start, time.monotonic_ns(), attributes)


_NOTHING: AbstractContextManager[None] = nullcontext()


class SpanLog:
    """Bounded, thread-safe log of spans. `level`: 0 off, 1 steps and phases, 2 operators too."""

    def __init__(self, level: int = OFF, capacity: int = 200_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.level = level
        self.step = -1
        self.dropped = 0
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def span(self, name: str, category: str = "phase", **attributes: Any) -> AbstractContextManager[None]:
        """Measure the body of a `with` block. Operator spans need level 2, all others level 1."""
        needed = OPERATORS if category == "op" else PHASES
        return _Open(self, name, category, attributes) if self.level >= needed else _NOTHING

    def event(self, name: str, **attributes: Any) -> None:
        """A moment: a span of no length."""
        if self.level >= PHASES:
            now = time.monotonic_ns()
            self.add(name, "event", now, now, attributes)

    def add(
        self, name: str, category: str, start_ns: int, end_ns: int, attributes: dict[str, Any] | None = None
    ) -> None:
        """Write one closed span of the calling thread."""
        span = Span(name, category, start_ns, end_ns, threading.get_native_id(), self.step, attributes or {})
        with self._lock:
            if len(self._spans) == self._spans.maxlen:
                self.dropped += 1
            self._spans.append(span)

    def drain(self) -> list[Span]:
        """Take all spans out, oldest first; `dropped` keeps counting over the life of the log."""
        with self._lock:
            spans = list(self._spans)
            self._spans.clear()
        return spans

    def __iter__(self) -> Iterator[Span]:
        with self._lock:
            return iter(list(self._spans))

    def __len__(self) -> int:
        return len(self._spans)


def dump_jsonl(spans: Iterable[Span]) -> str:
    """JSON lines: a header with the schema version, then a row a span."""
    lines = [json.dumps({"schema": "spans", "version": SCHEMA_VERSION, "clock": "CLOCK_MONOTONIC", "unit": "ns"})]
    lines += [json.dumps(span.row(), separators=(",", ":")) for span in spans]
    return "\n".join(lines) + "\n"


def load_jsonl(text: str) -> list[Span]:
    """Read `dump_jsonl` back; raises `ValueError` naming the line that is wrong."""
    lines = text.splitlines()
    if not lines:
        raise ValueError("empty span log: the header line is missing")
    try:
        header = json.loads(lines[0])
    except ValueError as error:
        raise ValueError(f"line 1: {error}") from error
    if not isinstance(header, dict) or (header.get("schema"), header.get("version")) != ("spans", SCHEMA_VERSION):
        raise ValueError(f"not a span log of version {SCHEMA_VERSION}: {lines[0][:80]}")
    spans = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            spans.append(Span.from_row(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number}: {error}") from error
    return spans


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """The spans as a Chrome / Perfetto trace (complete events, microseconds)."""
    events = [
        {
            "name": span.name,
            "cat": span.category,
            "ph": "X",
            "ts": span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000,
            "pid": 1,
            "tid": span.thread,
            "args": {"step": span.step, **span.attributes},
        }
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
