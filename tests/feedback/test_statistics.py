"""What the statistics promise: coverage, false alarms, invariances.

And a discarding rule that does not favour an arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.statistics import (
    Comparison,
    NoiseFloor,
    Pass,
    Plan,
    Unit,
    amdahl_ceiling,
    arm_time,
    compare,
    impossible,
    observations,
    status,
)
from feedback.student import t_cdf, t_quantile
from feedback.verdict import Status

Draw = Callable[[np.random.Generator], float]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng: float(rng.standard_normal()),
    "heavy tails (t3)": lambda rng: float(rng.standard_t(3)) / math.sqrt(3),
    "one start in ten is odd": lambda rng: float(rng.standard_normal()) * (4 if rng.random() < 0.1 else 1) / 2.5**0.5,
}


def make_pass(
    log_ratio: float, instances: tuple[str, str], rng: np.random.Generator | None = None, within: float = 0.003
) -> Pass:
    """A pass of twelve units an arm whose true log ratio is known; `within` is the sd that units add to it."""
    count = 12
    noise = np.zeros((2, count)) if rng is None else rng.standard_normal((2, count)) * within * math.sqrt(count / 2)
    base = tuple(Unit(0.15 * math.exp(value), 10) for value in noise[0])
    candidate = tuple(Unit(0.15 * math.exp(value - log_ratio), 10) for value in noise[1])
    return Pass(base, candidate, instances)


class Machine:
    """Starts engines whose speed differs from start to start by `sd` (log), drawn once an instance."""

    def __init__(self, rng: np.random.Generator, draw: Draw, sd: float = 0.01) -> None:
        self.rng, self.draw, self.sd = rng, draw, sd
        self.offsets: dict[str, float] = {}

    def offset(self, instance: str) -> float:
        if instance not in self.offsets:
            self.offsets[instance] = self.sd * self.draw(self.rng)
        return self.offsets[instance]

    def timed(self, base: str, candidate: str, effect: float = 0.0, label: str = "") -> Pass:
        """A pass of two instances; `label` hides from the statistics that an instance was met before."""
        log_ratio = effect + self.offset(candidate) - self.offset(base)
        return make_pass(log_ratio, (label or base, candidate), self.rng)

    def floor(self, pairs: int, shared_base: bool = False) -> NoiseFloor:
        names = [("live" if shared_base else f"aa-base-{k}", f"aa-{k}") for k in range(pairs)]
        return NoiseFloor.of([self.timed(a, b, label=f"{a}-{k}") for k, (a, b) in enumerate(names)])


def study(
    plan: Plan, effect: float, pairs: int, draw: Draw, shared_base: bool, rounds: int, seed: int
) -> dict[str, float]:
    """Many sessions: how often the interval covers the truth, and how often each decision falls."""
    rng = np.random.default_rng(seed)
    counts = {"covered": 0, "confirmed": 0, "refuted": 0, "futile": 0, "exhausted": 0, "passes": 0}
    for _ in range(rounds):
        machine = Machine(rng, draw)
        floor = machine.floor(pairs, shared_base)
        passes: list[Pass] = []
        while True:
            base = "live" if shared_base and not passes else f"base-{len(passes)}"
            passes.append(machine.timed(base, f"candidate-{len(passes)}", effect))
            comparison, decision = plan.look(passes, floor)
            if decision != "continue":
                break
        counts["covered"] += comparison.low <= math.exp(effect) <= comparison.high
        counts[decision] += 1
        counts["passes"] += len(passes)
    return {name: count / rounds for name, count in counts.items()}


class TestStudent:
    @pytest.mark.parametrize(
        ("p", "df", "value"),
        [(0.975, 1, 12.7062), (0.975, 4, 2.77645), (0.995, 10, 3.16927), (0.95, 30, 1.69726)],
    )
    def test_tabled_quantiles(self, p: float, df: float, value: float) -> None:
        assert t_quantile(p, df) == pytest.approx(value, rel=2e-5)

    @pytest.mark.parametrize("df", [0.7, 2.5, 33.3])
    def test_fractional_degrees_of_freedom_integrate_the_density(self, df: float) -> None:
        t = np.linspace(0, 1.7, 200_001)
        scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
        half = float(np.trapezoid(scale * (1 + t**2 / df) ** (-(df + 1) / 2), t))
        assert t_cdf(1.7, df) == pytest.approx(0.5 + half, abs=1e-9)

    @given(st.floats(0.001, 0.999), st.floats(0.5, 500))
    def test_inverts_its_cdf_and_is_odd(self, p: float, df: float) -> None:
        assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)
        assert t_quantile(1 - p, df) == pytest.approx(-t_quantile(p, df), rel=1e-6, abs=1e-9)

    def test_refuses_what_is_no_probability(self) -> None:
        with pytest.raises(ValueError, match="0 < p < 1"):
            t_quantile(1.0, 3)


class TestCoverage:
    """Rates over simulated sessions; bounds are three binomial standard errors below 95 % (2.5 % above zero)."""

    @pytest.mark.parametrize("shared_base", [False, True], ids=["fresh base", "live base"])
    @pytest.mark.parametrize("name", DISTRIBUTIONS)
    def test_one_pass_has_an_honest_interval(self, name: str, shared_base: bool) -> None:
        found = study(Plan(margin=1.02), 0.03, 4, DISTRIBUTIONS[name], shared_base, rounds=400, seed=1)
        least = 0.95 if name == "normal" else 0.93  # heavy tails cost a little with four A/A pairs
        assert found["covered"] >= least - 3 * math.sqrt(0.05 * 0.95 / 400)

    @pytest.mark.parametrize("name", DISTRIBUTIONS)
    def test_looking_three_times_keeps_the_coverage(self, name: str) -> None:
        found = study(Plan(margin=1.02, max_passes=3), 0.03, 4, DISTRIBUTIONS[name], True, rounds=400, seed=2)
        assert found["covered"] >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)

    def test_a_candidate_that_changes_nothing_is_hardly_ever_confirmed(self) -> None:
        found = study(Plan(margin=1.0, max_passes=3), 0.0, 4, DISTRIBUTIONS["normal"], True, rounds=600, seed=3)
        assert found["confirmed"] <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 600)

    def test_a_margin_makes_false_alarms_rarer_still(self) -> None:
        found = study(Plan(margin=1.02, max_passes=3), 0.0, 4, DISTRIBUTIONS["normal"], True, rounds=400, seed=4)
        assert found["confirmed"] <= 0.01

    def test_a_real_gain_is_found_and_more_passes_find_more(self) -> None:
        one = study(Plan(margin=1.02), 0.08, 4, DISTRIBUTIONS["normal"], False, rounds=200, seed=5)
        three = study(Plan(margin=1.02, max_passes=3), 0.08, 4, DISTRIBUTIONS["normal"], False, rounds=200, seed=5)
        assert one["confirmed"] > 0.6
        assert three["confirmed"] > 0.85
        assert three["passes"] < 2.5

    def test_repeating_the_same_two_processes_does_not_feign_certainty(self) -> None:
        """Ten passes of one instance pair: their common offset must stay inside the interval."""
        rng = np.random.default_rng(6)
        covered = 0
        for _ in range(300):
            machine = Machine(rng, DISTRIBUTIONS["normal"])
            floor = machine.floor(4)
            passes = [machine.timed("b", "c", 0.03) for _ in range(10)]
            comparison = compare(passes, floor)
            assert comparison.groups == 1
            covered += comparison.low <= math.exp(0.03) <= comparison.high
        assert covered / 300 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 300)

    def test_minimal_detectable_effect_is_what_is_detected_four_times_in_five(self) -> None:
        rng = np.random.default_rng(7)
        hits, rounds = 0, 400
        for _ in range(rounds):
            machine = Machine(rng, DISTRIBUTIONS["normal"])
            floor = machine.floor(12)
            effect = math.log1p(compare([machine.timed("b0", "c0")], floor).mde)
            hits += compare([machine.timed("b1", "c1", effect)], floor).low > 1.0
        assert hits / rounds == pytest.approx(0.8, abs=0.07)


def passes_strategy() -> st.SearchStrategy[list[Pass]]:
    unit = st.builds(
        Unit,
        seconds=st.floats(0.05, 0.5),
        tokens=st.integers(1, 50),
        other_cpu_share=st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3]),
        steps=st.integers(1, 8),
    )
    arm = st.lists(unit, min_size=4, max_size=9).map(tuple)
    one = st.builds(Pass, arm, arm, st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")))
    return st.lists(one, min_size=1, max_size=4).filter(lambda found: any(item.usable for item in found))


FLOOR = NoiseFloor(sd_log=0.01, n=4, within=1e-6)


class TestInvariances:
    @given(passes_strategy())
    def test_the_effect_lies_in_its_interval_and_the_status_follows(self, passes: list[Pass]) -> None:
        found = compare(passes, FLOOR, margin=1.02)
        assert 0 < found.low <= found.effect <= found.high
        assert found.mde > 0
        expected = (
            Status.CONFIRMED if found.low >= 1.02 else Status.REFUTED if found.high < 1.02 else Status.INCONCLUSIVE
        )
        assert status(found) is expected

    @given(passes_strategy(), st.floats(0.1, 10))
    def test_a_slower_base_scales_the_effect(self, passes: list[Pass], factor: float) -> None:
        def slowed(arm: tuple[Unit, ...]) -> tuple[Unit, ...]:
            return tuple(Unit(u.seconds * factor, u.tokens, u.other_cpu_share, u.steps) for u in arm)

        before = compare(passes, FLOOR)
        after = compare([Pass(slowed(p.base), p.candidate, p.instances) for p in passes], FLOOR)
        assert after.effect == pytest.approx(before.effect * factor, rel=1e-6)
        assert after.high / after.low == pytest.approx(before.high / before.low, rel=1e-5)

    @given(passes_strategy())
    def test_swapping_the_arms_mirrors_the_answer(self, passes: list[Pass]) -> None:
        one = compare(passes, FLOOR)
        other = compare([Pass(p.candidate, p.base, p.instances) for p in passes], FLOOR)
        assert other.effect == pytest.approx(1 / one.effect, rel=1e-9)
        assert one.groups > 2 or other.interval == pytest.approx((1 / one.high, 1 / one.low), rel=1e-6)

    @given(passes_strategy(), st.floats(0.0, 0.1))
    def test_a_noisier_machine_never_narrows_the_interval(self, passes: list[Pass], more: float) -> None:
        quiet = compare(passes, FLOOR)
        noisy = compare(passes, NoiseFloor(FLOOR.sd_log + more, FLOOR.n, FLOOR.within))
        assert noisy.low <= quiet.low
        assert noisy.high >= quiet.high

    @given(passes_strategy())
    def test_groups_are_the_connected_instances(self, passes: list[Pass]) -> None:
        usable = [item for item in passes if item.usable]
        groups = observations(usable)
        assert sum(len(group.passes) for group in groups) == len(usable)
        labels = {label for item in usable for label in item.instances}
        edges = len({item.instances for item in usable})
        assert len(groups) >= max(1, len(labels) - edges)
        assert len(groups) <= len({item.instances[0] for item in usable})

    def test_a_pass_noisier_inside_than_the_floor_is_wider(self) -> None:
        rng = np.random.default_rng(0)
        floor = Machine(rng, DISTRIBUTIONS["normal"]).floor(4)
        calm = compare([make_pass(0.1, ("b", "c"), rng, within=0.001)], floor)
        wild = compare([make_pass(0.1, ("b", "c"), rng, within=0.05)], floor)
        assert math.log(wild.high / wild.low) > 2 * math.log(calm.high / calm.low)


class Workday:
    """An engine's pass as units of known work: prefill bursts and decode that slowly gets longer."""

    def __init__(self, rng: np.random.Generator, speed: float = 1.0) -> None:
        self.rng, self.speed = rng, speed

    def units(self, disturbed: float) -> tuple[Unit, ...]:
        """120 units; each is disturbed with probability `disturbed`, which takes 20-60 % longer."""
        found = []
        for index in range(120):
            prefill = index % 30 < 4
            steps, tokens, prompt = (1, 1, 250) if prefill else (5, 20, 0)
            seconds = (0.02 + 0.0008 * prompt if prefill else steps * (0.028 + 0.00004 * (index % 30))) / self.speed
            seconds *= math.exp(0.01 * self.rng.standard_normal())
            hit = self.rng.random() < disturbed
            seconds *= 1 + (0.2 + 0.4 * self.rng.random()) * hit
            found.append(Unit(seconds, tokens, 0.5 * hit, steps, prompt))
        return tuple(found)


class TestDiscarding:
    def test_disturbance_moves_the_ratio_less_than_dropping_or_keeping_would(self) -> None:
        rng = np.random.default_rng(8)
        kept, dropped, replaced = [], [], []
        for _ in range(150):
            arms = [Workday(rng).units(0.1), Workday(rng, speed=1.25).units(0.1)]
            throughput = [arm_time(arm).throughput for arm in arms]
            replaced.append(math.log(throughput[1] / throughput[0] / 1.25))
            raw = [sum(u.tokens for u in arm) / sum(u.seconds for u in arm) for arm in arms]
            kept.append(math.log(raw[1] / raw[0] / 1.25))
            clean = [[u for u in arm if not u.disturbed] for arm in arms]
            rate = [sum(u.tokens for u in arm) / sum(u.seconds for u in arm) for arm in clean]
            dropped.append(math.log(rate[1] / rate[0] / 1.25))
        rms = [float(np.sqrt(np.mean(np.square(values)))) for values in (replaced, dropped, kept)]
        assert abs(float(np.mean(replaced))) < 0.002
        assert rms[0] < 0.5 * rms[1]
        assert rms[0] < 0.5 * rms[2]

    def test_the_error_of_replacing_is_part_of_the_variance(self) -> None:
        rng = np.random.default_rng(9)
        errors, claimed = [], []
        for _ in range(200):
            calm = Workday(rng).units(0.0)
            disturbed = rng.random(len(calm)) < 0.1
            arm = [
                Unit(u.seconds * (1.4 if hit else 1), u.tokens, 0.5 * hit, u.steps, u.prompt_tokens)
                for u, hit in zip(calm, disturbed, strict=True)
            ]
            found = arm_time(arm)
            errors.append(math.log(found.seconds / sum(u.seconds for u in calm)))
            claimed.append(found.variance)
        assert float(np.std(errors)) <= 1.2 * math.sqrt(float(np.mean(claimed)))

    def test_a_replaced_unit_never_costs_more_than_was_observed(self) -> None:
        calm = [Unit(0.15, 10, 0.0, 5)] * 10
        odd = Unit(0.05, 10, 0.9, 5)
        assert arm_time([*calm, odd]).seconds == pytest.approx(1.55)

    def test_tokens_of_a_discarded_unit_still_count(self) -> None:
        arm = [Unit(0.15, 10, 0.0, 5)] * 10 + [Unit(0.9, 10, 0.5, 5)]
        found = arm_time(arm)
        assert (found.tokens, found.discarded) == (110, 1)
        assert found.throughput == pytest.approx(10 / 0.15)

    def test_a_pass_that_is_mostly_disturbed_is_not_used(self) -> None:
        noisy = Pass((Unit(0.1, 5, 0.5),) * 3 + (Unit(0.1, 5),) * 7, (Unit(0.1, 5),) * 10)
        assert not noisy.usable
        with pytest.raises(ValueError, match="no usable pass"):
            compare([noisy], FLOOR)
        with pytest.raises(ValueError, match="no usable A/A pass"):
            NoiseFloor.of([noisy])

    def test_an_arm_without_a_clean_unit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="every unit"):
            arm_time([Unit(0.1, 5, 0.5)])


class TestPlan:
    def test_the_looks_together_spend_five_percent(self) -> None:
        assert sum(Plan(max_passes=5).spent) == pytest.approx(0.05)
        assert Plan().spent == pytest.approx((0.05,))

    @pytest.mark.parametrize("bad", [{"max_passes": 0}, {"first_share": 0.0}, {"confidence": 1.0}])
    def test_a_plan_that_cannot_be_followed_is_refused(self, bad: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="a plan needs"):
            Plan(**bad)  # type: ignore[arg-type]

    def test_it_stops_when_no_remaining_pass_could_decide(self) -> None:
        """A machine this noisy cannot tell 1 %: the second pass would be wasted."""
        floor = NoiseFloor(sd_log=0.2, n=2)
        _, decision = Plan(margin=1.01, max_passes=2).look([make_pass(0.01, ("b", "c"))], floor)
        assert decision == "futile"

    def test_it_goes_on_while_another_pass_may_decide(self) -> None:
        floor = NoiseFloor(sd_log=0.01, n=4)
        _, decision = Plan(margin=1.02, max_passes=3).look([make_pass(0.04, ("b", "c"))], floor)
        assert decision == "continue"


class TestAmdahl:
    @given(st.floats(0, 0.99))
    def test_the_ceiling_is_reached_when_the_share_costs_nothing(self, share: float) -> None:
        assert amdahl_ceiling(share) * (1 - share) == pytest.approx(1.0)

    def test_more_than_the_ceiling_is_impossible(self) -> None:
        def speedup(low: float, effect: float) -> Comparison:
            return Comparison(effect, low, effect * 1.1, 1, 1, 0.01, 1.02, 0.02, 0, 0.95, 4)

        assert impossible(speedup(1.2, 1.25), share=0.2) is None
        text = impossible(speedup(1.5, 1.6), share=0.2)
        assert text is not None
        assert "1.25x" in text
        assert impossible(speedup(1.5, 1.6), share=1.0) is None

    def test_a_share_outside_zero_to_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="between 0 and 1"):
            amdahl_ceiling(1.2)


def test_equal_settings_are_reproducible() -> None:
    passes = [make_pass(0.02 * k, (f"b{k}", f"c{k}")) for k in range(4)]
    assert compare(passes, FLOOR) == compare(passes, FLOOR)
