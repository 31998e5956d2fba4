"""The span log: rows and files read back, the log is bounded and says what it lost, and off costs nothing to read."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from target_engine.spans import (
    OFF,
    OPERATORS,
    PHASES,
    SCHEMA_VERSION,
    Span,
    SpanLog,
    chrome_trace,
    dump_jsonl,
    load_jsonl,
)

SPANS = st.builds(
    lambda name, category, start, length, thread, step, attributes: Span(
        name, category, start, start + length, thread, step, attributes
    ),
    st.text(max_size=8),
    st.sampled_from(["step", "phase", "op", "memory", "transfer", "wait", "event"]),
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    st.integers(0, 2**31),
    st.integers(-1, 10**6),
    st.dictionaries(st.text(max_size=4), st.integers(-9, 9) | st.text(max_size=4) | st.booleans(), max_size=2),
)


class TestRoundTrip:
    @given(SPANS)
    def test_a_row_reads_back_also_through_json(self, span: Span) -> None:
        assert Span.from_row(span.row()) == span
        assert Span.from_row(json.loads(json.dumps(span.row()))) == span

    @given(st.lists(SPANS, max_size=6))
    def test_a_file_reads_back(self, spans: list[Span]) -> None:
        assert load_jsonl(dump_jsonl(spans)) == spans

    @given(st.lists(SPANS, max_size=6))
    def test_the_chrome_trace_keeps_every_span_and_is_json(self, spans: list[Span]) -> None:
        events = json.loads(json.dumps(chrome_trace(spans)))["traceEvents"]
        assert [(event["name"], event["cat"], event["tid"]) for event in events] == [
            (span.name, span.category, span.thread) for span in spans
        ]
        for event, span in zip(events, spans, strict=True):
            assert event["dur"] * 1000 == pytest.approx(span.end_ns - span.start_ns)


class TestRefusals:
    def test_a_span_that_ends_before_it_starts(self) -> None:
        with pytest.raises(ValueError, match="ends before it starts"):
            Span("x", "op", 5, 4, 1)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "header line is missing"),
            ('{"schema": "spans", "version": 99}\n', "not a span log of version 1"),
            (dump_jsonl([]) + '["a", "op", 1, 2, 3, 4]\n', "line 2: a span row has 7 fields"),
            (dump_jsonl([]) + '["a", "op", 2, 1, 3, 4, {}]\n', "line 2: span a ends before"),
            (dump_jsonl([Span("a", "op", 1, 2, 3)]) + "{", "line 3"),
        ],
    )
    def test_a_bad_file_is_refused_with_its_line(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            load_jsonl(text)

    def test_a_log_without_room(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            SpanLog(capacity=0)


class TestLog:
    @pytest.mark.parametrize(
        ("level", "expected"),
        [(OFF, []), (PHASES, ["prefill", "step"]), (OPERATORS, ["rms_norm", "prefill", "step"])],
    )
    def test_levels(self, level: int, expected: list[str]) -> None:
        log = SpanLog(level)
        with log.span("step", "step"), log.span("prefill"), log.span("rms_norm", "op", rows=3):
            pass
        log.event("preempted")
        assert [span.name for span in log] == [*expected, *(["preempted"] if level else [])]

    def test_spans_nest_in_time_and_carry_step_thread_and_attributes(self) -> None:
        log = SpanLog(OPERATORS)
        log.step = 7
        with log.span("decode", rows=4), log.span("rms_norm", "op"):
            pass
        inner, outer = log.drain()
        assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
        assert (outer.attributes, outer.step, outer.thread) == ({"rows": 4}, 7, threading.get_native_id())

    def test_a_span_is_written_when_its_body_raises(self) -> None:
        log = SpanLog(PHASES)

        def fail() -> None:
            with log.span("sample"):
                raise KeyError("x")

        with pytest.raises(KeyError):
            fail()
        assert log.drain()[0].attributes == {"error": "KeyError"}

    @given(st.integers(1, 5), st.integers(0, 12))
    def test_it_is_bounded_and_counts_what_it_dropped(self, capacity: int, written: int) -> None:
        log = SpanLog(PHASES, capacity)
        for index in range(written):
            log.add(str(index), "event", index, index)
        kept = [span.name for span in log]
        assert kept == [str(index) for index in range(max(0, written - capacity), written)]
        assert log.dropped == max(0, written - capacity)
        assert [span.name for span in log.drain()] == kept
        assert len(log) == 0

    def test_threads_write_without_losing_any(self) -> None:
        log = SpanLog(PHASES)

        def write() -> None:
            for _ in range(500):
                with log.span("work"):
                    pass

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found: list[Any] = log.drain()
        assert len(found) == 2000
        assert SCHEMA_VERSION == 1
