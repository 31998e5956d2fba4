"""Interleaved A/B on engines of known speed: the ratio is recovered, drift cancels.

And lies about tokens are caught.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.load.ab import Arm, ArmFailed, PassRun, Policy, run_pass, too_disturbed
from feedback.load.collect import PATIENCE, Misreport
from feedback.load.disturbance import CpuMeter, CpuReading
from feedback.load.openloop import run_open_loop
from feedback.load.passes import LEAST_ROWS, FloorSettings
from feedback.statistics import arm_time
from feedback.target import Progress, Request, StepReport
from tests.feedback.synthetic_engine import FakeClock, SyntheticEngine, requests


class QuietMeter(CpuMeter):
    """Readings of a machine on which nothing else runs, or on which `shares` are taken in turn."""

    def __init__(self, shares: Iterator[float] | None = None) -> None:
        super().__init__(())
        self.shares = shares

    def read(self) -> CpuReading:
        return CpuReading(0.0, 0.0, {}, {})

    def other_share(self, before: CpuReading, after: CpuReading) -> float:
        return next(self.shares) if self.shares else 0.0


def pair(clock: FakeClock, base: SyntheticEngine, candidate: SyntheticEngine, policy: Policy | None = None) -> PassRun:
    arms = [Arm(label, engine, os.getpid()) for label, engine in (("base", base), ("candidate", candidate))]
    return run_pass(arms[0], arms[1], requests(), policy, meter=QuietMeter(), clock=clock)


def ratio(run: PassRun) -> float:
    return math.exp(run.timing.log_ratio()[0])


class TestTiming:
    @given(st.floats(0.3, 4.0), st.floats(0.05, 0.4), st.sampled_from(["alternate", "base_first", "random"]))
    def test_the_ratio_is_recovered_whatever_the_policy(self, speed: float, unit: float, order: str) -> None:
        clock = FakeClock()
        base = SyntheticEngine(clock)
        candidate = SyntheticEngine(clock, step_seconds=0.03 / speed, prompt_seconds=0.001 / speed)
        run = pair(clock, base, candidate, Policy(unit, order=order))  # type: ignore[arg-type]
        assert ratio(run) == pytest.approx(speed, rel=1e-9)
        assert sum(u.tokens for u in run.timing.base) == sum(u.tokens for u in run.timing.candidate) == 240
        assert sum(u.prompt_tokens for u in run.timing.base) == 480

    def test_units_last_about_as_long_as_asked(self) -> None:
        clock = FakeClock()
        run = pair(clock, SyntheticEngine(clock), SyntheticEngine(clock, step_seconds=0.004))
        for arm in (run.timing.base, run.timing.candidate):
            middle = sorted(unit.seconds for unit in arm)[len(arm) // 2]
            assert 0.1 <= middle <= 0.2

    def test_who_goes_first_alternates(self) -> None:
        clock = FakeClock()
        run = pair(clock, SyntheticEngine(clock), SyntheticEngine(clock))
        sides = dict.fromkeys(run.base.order, "A") | dict.fromkeys(run.candidate.order, "B")
        assert "".join(sides[number] for number in range(8)) == "ABBAABBA"

    def test_linear_drift_cancels_where_whole_runs_are_fooled(self) -> None:
        def drifting(policy: Policy) -> float:
            clock = FakeClock()
            engines = [SyntheticEngine(clock, drift=lambda now: 1 + 0.05 * now) for _ in range(2)]
            return ratio(pair(clock, engines[0], engines[1], policy))

        assert drifting(Policy()) == pytest.approx(1.0, abs=0.01)
        assert drifting(Policy(unit_seconds=math.inf)) < 0.9

    def test_whole_run_pairs_are_one_unit_an_arm(self) -> None:
        clock = FakeClock()
        run = pair(clock, SyntheticEngine(clock), SyntheticEngine(clock, step_seconds=0.01), Policy(math.inf))
        assert (len(run.timing.base), len(run.timing.candidate)) == (1, 1)

    def test_an_arms_clock_is_its_own(self) -> None:
        """The first token of the last request counts base time alone, not what the candidate took in between."""
        clock = FakeClock()
        run = pair(clock, SyntheticEngine(clock), SyntheticEngine(clock, step_seconds=0.3))
        assert run.base.busy_seconds == pytest.approx(60 * 0.03 + 0.48)
        assert run.base.records[-1].token_times[-1] == pytest.approx(run.base.busy_seconds)
        ttfts = [record.ttft for record in run.base.records]
        assert ttfts == sorted(ttfts)
        assert run.base.counters == {"steps": 60.0, "output_tokens": 240.0}

    def test_work_done_as_requests_are_accepted_is_timed(self) -> None:
        class Eager(SyntheticEngine):
            """Takes its time in `submit`, and next to none in `step`."""

            def submit(self, requests: list[Request]) -> None:
                super().submit(requests)
                self.clock.now += 5.0

        clock = FakeClock()
        run = pair(clock, SyntheticEngine(clock), Eager(clock, step_seconds=1e-6, prompt_seconds=1e-6))
        assert sum(unit.seconds for unit in run.timing.candidate) > 5.0
        assert ratio(run) < 1.0

    def test_work_in_the_others_turns_alone_is_not_taken_for_rest(self) -> None:
        clock = FakeClock()
        run = pair(clock, SyntheticEngine(clock), SyntheticEngine(clock)).candidate
        assert run.off_turn_share == 0.0
        assert replace(run, off_turn_cpu_seconds=1.0).off_turn_share == math.inf
        assert replace(run, own_cpu_seconds=4.0, off_turn_cpu_seconds=1.0).off_turn_share == 0.25

    def test_disturbed_units_are_marked_and_a_noisy_pass_says_why(self) -> None:
        clock = FakeClock()
        shares = iter([0.0, 0.0, 0.5] * 1000)
        arms = [Arm(label, SyntheticEngine(clock), os.getpid()) for label in ("b", "c")]
        run = run_pass(arms[0], arms[1], requests(), meter=QuietMeter(shares), clock=clock)
        assert 0.2 < run.timing.discarded_share < 0.5
        assert "not quiet enough" in (too_disturbed(run.timing) or "")
        assert arm_time(run.timing.base).tokens == 240


class Lying(SyntheticEngine):
    """Reports something that is not so from its third report on."""

    def __init__(self, clock: FakeClock, lie: str) -> None:
        super().__init__(clock)
        self.lie, self.reports = lie, 0

    def report(self, steps: int, progress: tuple[Progress, ...], unfinished: int) -> StepReport:
        self.reports += 1
        if self.reports >= 3:
            steps, progress, unfinished = self.twist(steps, progress, unfinished)
        return StepReport(steps=steps, progress=progress, unfinished=unfinished)

    def twist(
        self, steps: int, progress: tuple[Progress, ...], unfinished: int
    ) -> tuple[int, tuple[Progress, ...], int]:
        first = progress[0] if progress else Progress(id="r0", token_ids=(1,))
        match self.lie:
            case "more tokens than asked":
                return steps, (first.model_copy(update={"token_ids": (1,) * 50}), *progress[1:]), unfinished
            case "a request of its own":
                return steps, (*progress, Progress(id="r99", token_ids=(1,))), unfinished
            case "an early end":
                return steps, (first.model_copy(update={"finish_reason": "stop"}), *progress[1:]), unfinished - 1
            case "an error as an end":
                return steps, (first.model_copy(update={"finish_reason": "error"}), *progress[1:]), unfinished - 1
            case "fewer left than there are":
                return steps, progress, 0
            case "more steps than asked":
                return 10_000, progress, unfinished
            case "tokens without a step":
                return 0, progress, unfinished
        raise AssertionError(self.lie)


class TestLies:
    @pytest.mark.parametrize(
        ("lie", "request_id", "message"),
        [
            ("more tokens than asked", "r0", "where 20 were asked for"),
            ("a request of its own", "r99", "was not submitted"),
            ("an early end", "r0", "ended with 'stop' after"),
            ("an error as an end", "r0", "ended with 'error' after"),
            ("fewer left than there are", None, "says 0 requests are unfinished where"),
            ("more steps than asked", None, "reported 10000 steps where at most"),
            ("tokens without a step", "r0", "reported new tokens without a step"),
        ],
    )
    def test_a_lie_fails_the_arm_that_told_it(self, lie: str, request_id: str | None, message: str) -> None:
        clock = FakeClock()
        with pytest.raises(ArmFailed, match=message) as caught:
            pair(clock, SyntheticEngine(clock), Lying(clock, lie))
        assert caught.value.side == "candidate"
        assert isinstance(caught.value.cause, Misreport)
        assert caught.value.cause.request == request_id

    def test_going_on_after_the_end_is_caught(self) -> None:
        class Endless(SyntheticEngine):
            def report(self, steps: int, progress: tuple[Progress, ...], unfinished: int) -> StepReport:
                extra = tuple(
                    item.model_copy(update={"finish_reason": None}) for item in progress if item.finish_reason
                )
                return StepReport(steps=steps, progress=(*progress, *extra), unfinished=unfinished)

        clock = FakeClock()
        with pytest.raises(ArmFailed, match="went on with 'r0' after it had finished"):
            pair(clock, Endless(clock), SyntheticEngine(clock))

    def test_a_stuck_engine_is_told_from_a_long_prefill(self) -> None:
        class Stuck(SyntheticEngine):
            stepped = 0

            def step(self, n: int) -> StepReport:
                self.stepped += n
                return StepReport(steps=n, progress=(), unfinished=12)

        clock = FakeClock()
        engine = Stuck(clock)
        with pytest.raises(ArmFailed, match="it is stuck") as caught:
            pair(clock, SyntheticEngine(clock), engine, Policy(unit_seconds=math.inf))
        assert caught.value.side == "candidate"

        slow = Stuck(clock)
        with pytest.raises(ArmFailed, match="it is stuck"):
            pair(clock, SyntheticEngine(clock), slow, Policy())
        assert slow.stepped > 12 * 40 + PATIENCE  # every prompt token had its chance of a step

    def test_a_crash_carries_the_arms_name(self) -> None:
        class Crashing(SyntheticEngine):
            def step(self, n: int) -> StepReport:
                raise RuntimeError("crash in step: SIGSEGV")

        clock = FakeClock()
        with pytest.raises(ArmFailed, match="base: crash in step: SIGSEGV") as caught:
            pair(clock, Crashing(clock), SyntheticEngine(clock))
        assert caught.value.side == "base"


class TestOpenLoop:
    def test_latency_counts_from_the_arrival(self) -> None:
        clock = FakeClock()

        def wait(seconds: float) -> None:
            clock.now += seconds

        asked = requests(count=3, tokens=10, prompt=10)
        engine = SyntheticEngine(clock, step_seconds=0.1, prompt_seconds=0.0, slots=1)
        run = run_open_loop(engine, asked, [0.0, 0.05, 30.0], clock=clock, wait=wait)
        assert [record.ttft for record in run.records] == pytest.approx([0.1, 1.05, 0.1])
        assert run.lateness == pytest.approx((0.0, 0.05, 0.0))
        assert run.steps == 30
        found = run.metrics({"ttft": 500})
        assert found["request_goodput"] == pytest.approx(2 / run.duration)
        assert found["mean_tpot_ms"] == pytest.approx(100)

    def test_every_request_needs_an_arrival(self) -> None:
        with pytest.raises(ValueError, match="3 requests with 1 arrival"):
            run_open_loop(SyntheticEngine(FakeClock()), requests(count=3), [0.0])


@given(st.integers(1, 200), st.floats(0.01, 1e4), st.floats(1.0, 1e4))
def test_a_noise_floor_takes_no_more_than_it_may_but_keeps_enough_requests(
    rows: int, seconds: float, may: float
) -> None:
    settings = FloorSettings(seconds=may)
    taken = settings.affordable(rows, seconds)
    assert min(rows, LEAST_ROWS) <= taken <= rows
    needed = 4 * settings.pairs * seconds * taken / rows
    affordable = needed <= may * (1 + 1e-9)
    assert taken in (rows, LEAST_ROWS) or affordable
    assert taken < rows or rows <= LEAST_ROWS or affordable
    assert FloorSettings().affordable(rows, seconds) == rows
