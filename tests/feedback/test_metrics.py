"""Serving metrics are vLLM's, and the limits of a goal are read against them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.load.limits import breaches, metric_of
from feedback.load.metrics import RequestRecord, serving_metrics


def record(id: str, times: tuple[float, ...], submitted: float = 0.0, prompt: int = 10) -> RequestRecord:
    return RequestRecord(id, prompt, tuple(range(len(times))), times, submitted, "length")


class TestMetrics:
    def test_two_requests_by_hand(self) -> None:
        found = serving_metrics([record("a", (0.5, 0.7, 1.1)), record("b", (1.0, 2.0), submitted=0.4)], 2.0)
        assert found["output_throughput"] == pytest.approx(2.5)
        assert found["total_token_throughput"] == pytest.approx(12.5)
        assert found["request_throughput"] == pytest.approx(1.0)
        assert found["mean_ttft_ms"] == pytest.approx((500 + 600) / 2)
        assert found["mean_tpot_ms"] == pytest.approx((300 + 1000) / 2)  # per request
        assert found["mean_itl_ms"] == pytest.approx((200 + 400 + 1000) / 3)  # per gap
        assert found["median_itl_ms"] == pytest.approx(400)
        assert found["mean_e2el_ms"] == pytest.approx((1100 + 1600) / 2)
        assert found["p50_ttft_ms"] == found["median_ttft_ms"]

    def test_goodput_counts_requests_that_meet_every_objective(self) -> None:
        records = [record("a", (0.5, 0.7, 1.1)), record("b", (1.0, 2.0))]
        assert serving_metrics(records, 2.0, {"ttft": 600})["request_goodput"] == pytest.approx(0.5)
        assert serving_metrics(records, 2.0, {"ttft": 600, "e2el": 1000})["request_goodput"] == 0.0
        assert serving_metrics(records, 2.0, {})["request_goodput"] == pytest.approx(1.0)

    def test_a_single_token_has_no_time_per_output_token(self) -> None:
        only = record("a", (0.5,))
        assert math.isnan(only.tpot)
        found = serving_metrics([only], 1.0)
        assert "mean_tpot_ms" not in found
        assert "mean_itl_ms" not in found

    @given(st.lists(st.lists(st.floats(0.01, 5), min_size=2, max_size=8), min_size=1, max_size=6))
    def test_tpot_is_the_mean_gap_of_a_request(self, gaps: list[list[float]]) -> None:
        records = [record(str(index), tuple(np.cumsum(item).tolist())) for index, item in enumerate(gaps)]
        found = serving_metrics(records, 10.0)
        assert found["mean_tpot_ms"] == pytest.approx(float(np.mean([np.mean(item[1:]) for item in gaps])) * 1e3)
        assert found["p99_itl_ms"] <= max(max(item[1:]) for item in gaps) * 1e3 * (1 + 1e-9)
        assert found["p50_e2el_ms"] <= found["p90_e2el_ms"] <= found["p95_e2el_ms"] <= found["p99_e2el_ms"]

    def test_what_cannot_be_meant_is_refused(self) -> None:
        with pytest.raises(ValueError, match="duration must be positive"):
            serving_metrics([], 0.0)
        with pytest.raises(ValueError, match="no per-request objective itl"):
            serving_metrics([], 1.0, {"itl": 3})


class TestLimits:
    @pytest.mark.parametrize(
        ("limit", "metric"),
        [
            ("ttft_p95_ms", "p95_ttft_ms"),
            ("p99_itl_ms", "p99_itl_ms"),
            ("tpot_mean_ms_ratio", "mean_tpot_ms"),
            ("peak_memory_bytes", "peak_memory_bytes"),
            ("output_throughput_ratio", "output_throughput"),
            ("open_ttft_p95_ms_ratio", "open_p95_ttft_ms"),
            ("open_peak_memory_bytes", None),
            ("nll_ratio", None),
            ("ttft_ms", None),
        ],
    )
    def test_names(self, limit: str, metric: str | None) -> None:
        assert metric_of(limit) == metric

    def test_latencies_are_bounded_from_above_and_throughput_from_below(self) -> None:
        candidate = {"p95_ttft_ms": 900.0, "output_throughput": 80.0, "peak_memory_bytes": 2e9}
        base = {"p95_ttft_ms": 600.0, "output_throughput": 100.0, "peak_memory_bytes": 1e9}
        broken, unchecked = breaches(
            {
                "ttft_p95_ms": 1000.0,
                "ttft_p95_ms_ratio": 1.2,
                "output_throughput": 90.0,
                "peak_memory_bytes_ratio": 3.0,
                "nll_ratio": 1.01,
                "itl_p99_ms": 5.0,
            },
            candidate,
            base,
        )
        assert [item.name for item in broken] == ["output_throughput", "ttft_p95_ms_ratio"]
        assert broken[1].line() == "ttft_p95_ms_ratio is 1.5, limit 1.2"
        assert unchecked == ["limit itl_p99_ms: this run has no p99_itl_ms", "limit nll_ratio is not one of load's"]
