"""Profiles: shares add up, facts say what was seen and nothing else, and a real run finds a planted cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.probe import discover
from feedback.profile.facts import (
    counter_facts,
    launch_facts,
    render_table,
    repeat_share,
    span_facts,
)
from feedback.profile.machine import cpu_flags, machine_facts, memory_bytes
from feedback.profile.probe import PROBE, Profile, ProfileSettings, conclude
from feedback.profile.spans import SpanSums, sum_spans
from feedback.target import Description, Parameter
from feedback.verdict import Status
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import rms

__all__ = ["bed"]

MS = 1_000_000


def step(start: int, ms: int, **facts: Any) -> list[list[Any]]:
    """One step of `ms`: a tenth scheduling, the rest decoding, half of that in an operator."""
    begin, end = start * MS, (start + ms) * MS
    middle = begin + (end - begin) // 10
    return [
        ["norm", "op", middle, middle + (end - middle) // 2, 1, 0, {}],
        ["schedule", "phase", begin, middle, 1, 0, {}],
        ["decode", "phase", middle, end, 1, 0, {}],
        ["step", "step", begin, end, 1, 0, facts],
    ]


class TestSpans:
    @given(st.lists(st.integers(1, 500), min_size=1, max_size=10))
    def test_shares_are_of_the_time_in_steps(self, lengths: list[int]) -> None:
        rows = [row for index, ms in enumerate(lengths) for row in step(1000 * index, ms)]
        sums = sum_spans(rows)
        assert sums.busy_seconds == pytest.approx(sum(lengths) / 1e3)
        facts = span_facts(sums, {"norm": "rms_norm"}, None)
        assert facts["share.phase.schedule"] == pytest.approx(0.1)
        assert facts["share.op.rms_norm"] == pytest.approx(0.45)
        assert facts["share.dispatch"] == pytest.approx(0.55)
        assert facts["step.ms_mean"] == pytest.approx(sum(lengths) / len(lengths))

    def test_two_operators_of_one_role_add_up(self) -> None:
        rows = [["a", "op", 0, MS, 1, 0, {}], ["b", "op", MS, 3 * MS, 1, 0, {}], ["step", "step", 0, 10 * MS, 1, 0, {}]]
        assert span_facts(sum_spans(rows), {"a": "r", "b": "r"}, None)["share.op.r"] == pytest.approx(0.3)

    def test_without_step_spans_phases_are_the_whole(self) -> None:
        assert sum_spans([["decode", "phase", 0, 5 * MS, 1, 0, {}]]).busy_seconds == pytest.approx(0.005)

    @pytest.mark.parametrize("row", [["a", "op", 2, 1, 1, 0, {}], ["a", "op", 1, 2], ["a", "op", "x", 2, 1, 0, {}]])
    def test_what_is_no_span_is_refused(self, row: list[Any]) -> None:
        with pytest.raises(ValueError, match="not a span row"):
            sum_spans([row])

    def test_nothing_seen_is_no_fact(self) -> None:
        assert span_facts(sum_spans([]), {}, 4.0) == {}
        assert counter_facts({}, {}) == {}


class TestOccupancy:
    def test_rows_are_counted_while_requests_wait(self) -> None:
        rows = [
            *step(0, 10, rows=4, decodes=3, tokens=40, waiting=6),
            *step(10, 10, rows=2, decodes=2, tokens=2, waiting=2),
            *step(20, 10, rows=1, decodes=1, tokens=1, waiting=0),
        ]
        facts = span_facts(sum_spans(rows), {}, 4.0)
        assert facts["decode.occupancy"] == pytest.approx((4 + 2) / 2 / 4)
        assert facts["decode.rows_mean"] == pytest.approx(2.0)
        assert facts["prefill.tokens_per_step"] == pytest.approx(37)
        assert facts["queue.waiting_mean"] == pytest.approx(8 / 3)
        assert facts["queue.waiting_share"] == pytest.approx(2 / 3)

    def test_an_engine_without_a_queue_has_no_occupancy(self) -> None:
        facts = span_facts(sum_spans(step(0, 10, rows=1, decodes=1, tokens=1, waiting=0)), {}, 4.0)
        assert "decode.occupancy" not in facts


class TestOtherFacts:
    def test_launch_parameters_are_at_their_defaults_where_left_out(self) -> None:
        space = (
            Parameter(name="max_batch", kind="int", values=(4,), default=4, doc=""),
            Parameter(name="prefix_cache", kind="bool", values=(False, True), default=False, doc=""),
        )
        description = Description(protocol_version=1, name="t", profile_path="p", launch_space=space, workloads=())
        facts = launch_facts({"prefix_cache": True, "dtype": "bfloat16", "operators": {}}, description, ())
        assert facts == {"launch.max_batch": 4, "launch.prefix_cache": True, "launch.dtype": "bfloat16"}

    def test_counters(self) -> None:
        facts = counter_facts(
            {
                "prompt_tokens": 200.0,
                "cached_prompt_tokens": 50.0,
                "kv_blocks": 40.0,
                "kv_blocks_peak": 10.0,
                "weight_bytes": 8.0,
            },
            {"dtype": "bfloat16"},
        )
        assert facts == {
            "prefix.hit_share": 0.25,
            "kv.blocks_peak_share": 0.25,
            "weights.bytes": 8.0,
            "weights.bytes_per_param": 2.0,
        }

    def test_repeated_prefixes_by_hand(self) -> None:
        one, two = [1] * 8 + [2] * 4, [1] * 8 + [3] * 5
        assert repeat_share([one, two], 4) == pytest.approx(8 / 25)
        assert repeat_share([one, one], 5) == pytest.approx(10 / 24)
        assert repeat_share([], 4) == 0.0

    @given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=5), st.integers(1, 5))
    def test_serving_twice_repeats_every_whole_block(self, prompts: list[list[int]], block: int) -> None:
        share = repeat_share(prompts, block)
        assert 0.0 <= share <= 1.0
        whole = sum(len(prompt) // block * block for prompt in prompts)
        total = sum(map(len, prompts))
        assert repeat_share([*prompts, *prompts], block) == pytest.approx((share * total + whole) / (2 * total))

    def test_the_machine_is_read_from_the_system(self, tmp_path: Path) -> None:
        facts = machine_facts()
        assert facts["machine.cores"] >= 1
        assert facts["machine.memory_gib"] > 0.1
        cpu = tmp_path / "cpuinfo"
        cpu.write_text("processor : 0\nFeatures : fp asimd bf16 i8mm\n")
        assert "bf16" in cpu_flags(cpu)
        assert cpu_flags(tmp_path / "nowhere") == frozenset()
        assert memory_bytes(tmp_path / "nowhere") == 0.0


class TestTable:
    def test_largest_first_and_every_share_is_there(self) -> None:
        facts = {
            "share.op.small": 0.1,
            "share.op.large": 0.6,
            "share.phase.decode": 0.9,
            "step.ms_mean": 3.25,
            "launch.x": 1.0,
        }
        lines = render_table(facts, {"large": 7}).splitlines()  # type: ignore[arg-type]
        assert [line.split()[1] for line in lines if "operator " in line] == ["large", "small"]
        assert any("decode" in line and "90.0%" in line for line in lines)
        assert any(line.startswith("step.ms_mean") and line.endswith("3.25") for line in lines)
        assert not any("launch" in line for line in lines)


class TestConclusion:
    def made(self, accounted: float, dropped: int = 0) -> Profile:
        sums = SpanSums(1.0, {"norm": 0.3}, {"norm": 3}, {"decode": accounted})
        return Profile({"share.op.rms_norm": 0.3, "throughput.output_tok_s": 9.0}, sums, "", True, dropped, 4)

    def test_statuses(self) -> None:
        settings = ProfileSettings()
        assert conclude(self.made(0.95), settings).status is Status.CONFIRMED
        assert conclude(self.made(0.5), settings).status is Status.INCONCLUSIVE
        assert conclude(self.made(0.95, dropped=3), settings).status is Status.INVALID


def test_it_is_found_by_its_folder() -> None:
    assert discover()["profile"] is PROBE


class TestProbe:
    def test_a_planted_cost_is_found_and_named(self, bed: Bed, tmp_path: Path) -> None:
        workload = write_workload(tmp_path / "w.jsonl", count=10, tokens=8)
        slow = bed.tree("slow-norm-profile", rms("for _ in range(60):\n    y = self.plain(x)\nreturn y"))
        verdict = PROBE.run(bed.question(slow, workload), bed.context())
        assert verdict.status is Status.CONFIRMED, verdict.line()
        assert verdict.at[0].operator == "rms_norm"
        assert verdict.metrics["share.op.rms_norm"] > 0.5
        facts = bed.evidence(verdict.evidence)["facts"]
        assert facts["launch.max_batch"] == 4
        assert facts["launch.operators.rms_norm"] == "torch"
        assert facts["launch.prefix_cache"] is False
        assert 0 < facts["decode.occupancy"] <= 1
        assert facts["prefix.hit_share"] == 0.0
        assert facts["weights.bytes"] > 0
        shares = [value for name, value in facts.items() if name.startswith("share.phase.")]
        assert 0.8 < sum(shares) <= 1.001
        ops = [value for name, value in facts.items() if name.startswith("share.op.")]
        assert sum(ops) + facts["share.dispatch"] == pytest.approx(1.0)
        assert not any(isinstance(value, float) and math.isnan(value) for value in facts.values())

    def test_a_prefix_cache_is_seen_to_hit(self, bed: Bed, tmp_path: Path) -> None:
        workload = write_workload(tmp_path / "w.jsonl", count=12, tokens=4)
        cached = bed.tree("cached-profile", prefix_cache=True, block_size=8)
        verdict = PROBE.run(bed.question(cached, workload), bed.context())
        assert verdict.metrics["prefix.repeat_share"] > 0.3
        assert 0.1 < verdict.metrics["prefix.hit_share"] <= verdict.metrics["prefix.repeat_share"] + 1e-9

    def test_a_long_workload_is_cut_and_says_so(self, bed: Bed, tmp_path: Path) -> None:
        workload = write_workload(tmp_path / "w.jsonl", count=40, tokens=60)
        probe = type(PROBE)(ProfileSettings(seconds=0.05, steps=2))
        verdict = probe.run(bed.question(bed.tree("same"), workload), bed.context())
        assert verdict.status is Status.CONFIRMED, verdict.line()
        assert "the workload after its first part" in verdict.gaps
