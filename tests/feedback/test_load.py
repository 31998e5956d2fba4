"""The load probe on live engines: wrong, lying, crashing and cheating candidates are refuted with place and reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from feedback.load.ab import Policy
from feedback.load.arms import LiveArms
from feedback.load.conclusion import LoadSettings, bounds_for, conclude
from feedback.load.passes import FloorSettings
from feedback.load.probe import PROBE, LoadProbe
from feedback.load.verify import Bounds, Verification
from feedback.probe import discover
from feedback.statistics import Comparison
from feedback.target import Description, Parameter
from feedback.verdict import Status, Verdict
from tests.feedback.bed import QUIET, Bed, bed, undisturbed, write_workload
from tests.feedback.planted import PACKAGE, replaces, silu

__all__ = ["bed", "undisturbed"]

ENGINE = f"{PACKAGE}/engine.py"
ONE_PASS = LoadProbe(LoadSettings(max_passes=1, policy=Policy(unit_seconds=0.02)))


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("load") / "small.jsonl", count=8, tokens=24)


def asked(bed: Bed, workload: Path, name: str, plant: Callable[[Path], Any], probe: LoadProbe = ONE_PASS) -> Verdict:
    return probe.run(bed.question(bed.tree(name, plant), workload), bed.context())


def test_it_is_found_by_its_folder() -> None:
    assert discover()["load"] is PROBE


@pytest.mark.usefixtures("undisturbed")
class TestRefusals:
    def test_a_wrong_token_deep_in_an_output_is_named(self, bed: Bed, workload: Path) -> None:
        """Right for the first tokens, which is all that a smoke test sees."""
        late = silu("y = F.silu(gate) * up\nif len(gate) < 5 and self.late():\n    y = -y\nreturn y")

        def plant(root: Path) -> tuple[str, ...]:
            changed = late(root)
            body = "    calls = 0\n\n    def late(self):\n        self.calls += 1\n        return self.calls > 40\n"
            with (root / changed[0]).open("a") as file:
                file.write("\n" + body)
            return changed

        verdict = asked(bed, workload, "late", plant)
        assert verdict.status is Status.REFUTED, verdict.line()
        assert "wrong output: request r" in verdict.observed
        assert "where the oracle takes" in verdict.observed
        assert verdict.at[0].request
        assert verdict.effect is None  # the speed of wrong outputs is nobody's business
        assert bed.evidence(verdict.evidence)["wrong"]

    def test_tokens_that_were_not_computed_are_told(self, bed: Bed, workload: Path) -> None:
        """The engine ends requests early and says that they are done."""
        half = (
            "import dataclasses\n\n\ndef _half(s):\n"
            "    return dataclasses.replace(s, max_tokens=max(1, s.max_tokens // 2))\n"
        )
        inside = replaces(
            ENGINE,
            ("self.scheduler.add(Request(id,", "sampling = _half(sampling)\n        self.scheduler.add(Request(id,"),
            ("class Engine:", f"{half}\n\nclass Engine:"),
        )
        verdict = asked(bed, workload, "half-inside", inside)
        assert verdict.status is Status.REFUTED, verdict.line()
        assert "its reports cannot be true: ended with 'length' after" in verdict.observed

    def test_a_crash_in_the_middle_is_one_line(self, bed: Bed, workload: Path) -> None:
        plant = silu(
            "self.calls = getattr(self, 'calls', 0) + 1\n"
            "if self.calls > 40:\n    ctypes.string_at(0)\nreturn F.silu(gate) * up",
            imports="import ctypes",
        )
        verdict = asked(bed, workload, "crash", plant)
        assert verdict.status is Status.REFUTED
        assert "SIGSEGV" in verdict.observed
        assert verdict.at[0].file == f"{PACKAGE}/ops/silu_mul/torch.py"

    def test_work_outside_its_turn_is_told(self, bed: Bed, workload: Path) -> None:
        body = (
            "import threading\n\n\ndef _busy():\n    while True:\n        sum(range(1000))\n\n\n"
            "threading.Thread(target=_busy, daemon=True).start()\n"
        )
        plant = replaces(ENGINE, ("class Engine:", f"{body}\n\nclass Engine:"))
        verdict = asked(bed, workload, "busy", plant)
        assert verdict.status is Status.REFUTED, verdict.line()
        assert "of its CPU time while the base was timed" in verdict.observed

    def test_a_base_that_fails_teaches_nothing_about_the_candidate(self, bed: Bed, workload: Path) -> None:
        broken = bed.tree("broken-base", silu("return F.silu(gate) * up / (1 // 0)"))
        verdict = ONE_PASS.run(bed.question(bed.tree("same"), workload, base=broken), bed.context())
        assert verdict.status is Status.INVALID
        assert "the base does not start" in verdict.observed
        assert "ZeroDivisionError" in verdict.observed

    def test_ids_outside_the_vocabulary_are_the_candidates_fault(self, bed: Bed, workload: Path) -> None:
        plant = replaces(
            ENGINE, ("Output(request.id, sampled[request.id],", "Output(request.id, sampled[request.id] + 10**6,")
        )
        verdict = asked(bed, workload, "outside", plant)
        assert verdict.status is Status.REFUTED, verdict.line()
        assert "is not in the vocabulary of 300" in verdict.observed


@pytest.mark.usefixtures("undisturbed")
class TestAnswers:
    def test_every_timed_output_is_verified_and_the_evidence_can_repeat_it(self, bed: Bed, workload: Path) -> None:
        question = bed.question(bed.tree("same"), workload, limits={"ttft_p95_ms": 60_000.0, "nll_ratio": 1.01})
        verdict = ONE_PASS.run(question, bed.context())
        assert verdict.status in (Status.INCONCLUSIVE, Status.REFUTED, Status.CONFIRMED)
        assert verdict.metrics["verified_tokens"] == 8 * 24
        assert verdict.metrics["greedy_agreement"] == 1.0
        assert {"output_throughput", "p95_ttft_ms", "mean_tpot_ms", "peak_memory_bytes"} <= verdict.metrics.keys()
        assert "limit nll_ratio is not one of load's" in verdict.gaps
        data = bed.evidence(verdict.evidence)
        assert sum(row[2] for row in data["units"]["0-candidate"]) == 8 * 24
        orders = sorted(row[0] for side in ("base", "candidate") for row in data["units"][f"0-{side}"])
        assert orders == list(range(len(orders)))
        assert verdict.predicate_digest == ONE_PASS.predicate(question).digest

    def test_the_base_engine_lives_on_for_the_next_candidate(self, bed: Bed, workload: Path) -> None:
        labels = []
        for name in ("same", "same-again"):
            verdict = ONE_PASS.run(bed.question(bed.tree(name), workload), bed.context())
            labels.append(bed.evidence(verdict.evidence)["instances"][0])
        assert labels[0][0] == labels[1][0]
        assert labels[0][1] != labels[1][1]

    def test_a_dead_base_is_started_again(self, bed: Bed, workload: Path) -> None:
        arms = LiveArms.of(bed.pool)
        ONE_PASS.run(bed.question(bed.tree("same"), workload), bed.context())
        arms._base[1].worker.close()  # type: ignore[index]
        verdict = ONE_PASS.run(bed.question(bed.tree("same"), workload), bed.context())
        assert verdict.status is not Status.INVALID, verdict.line()

    def test_more_passes_are_over_rebuilt_pairs(self, bed: Bed, workload: Path) -> None:
        probe = LoadProbe(LoadSettings(margin=1.5, max_passes=2, policy=Policy(unit_seconds=0.02)))
        wide = type(QUIET)(sd_log=0.2, n=30, within=1.0)  # one pass cannot decide, two might
        verdict = probe.run(bed.question(bed.tree("twice", max_batch=6), workload), bed.context(wide))
        instances = bed.evidence(verdict.evidence)["instances"]
        labels = [label for pair in instances for label in pair]
        assert len(set(labels)) == len(labels)
        assert verdict.metrics["verified_tokens"] == len(instances) * 8 * 24

    def test_a_broken_limit_refutes_whatever_the_speed(self, bed: Bed, workload: Path) -> None:
        question = bed.question(bed.tree("same"), workload, limits={"ttft_p95_ms": 0.001})
        verdict = ONE_PASS.run(question, bed.context())
        assert verdict.status is Status.REFUTED
        assert verdict.observed.startswith("limit broken: ttft_p95_ms is ")

    def test_reuse_of_prefixes_across_passes_is_no_gain(self, bed: Bed, workload: Path) -> None:
        """A live engine with a prefix cache has seen every prompt of the workload.

        A pass must find none of them there.
        """
        tree = bed.tree("cached", prefix_cache=True)
        verdict = ONE_PASS.run(bed.question(tree, workload, base=tree), bed.context())
        counters = bed.evidence(verdict.evidence)["counters"][0]
        shared_in_a_pass = counters[0]["cached_prompt_tokens"]
        assert counters[1]["cached_prompt_tokens"] == shared_in_a_pass
        assert shared_in_a_pass < 0.5 * counters[0]["prompt_tokens"]


@pytest.mark.usefixtures("undisturbed")
class TestOpenLoop:
    def test_both_serve_the_same_arrivals_and_its_limits_count(self, bed: Bed, workload: Path) -> None:
        settings = LoadSettings(max_passes=1, policy=Policy(unit_seconds=0.02), open_loop_rate=40.0)
        limits = {"open_ttft_p95_ms": 0.001, "open_e2el_p99_ms": 60_000.0}
        verdict = LoadProbe(settings).run(bed.question(bed.tree("same"), workload, limits=limits), bed.context())
        assert verdict.status is Status.REFUTED
        assert verdict.observed.startswith("limit broken: open_ttft_p95_ms is ")
        assert "open_e2el_p99_ms" not in verdict.observed
        assert {"open_p95_ttft_ms", "base_open_p95_ttft_ms", "open_request_throughput"} <= verdict.metrics.keys()
        assert verdict.metrics["verified_tokens"] == 2 * 8 * 24
        assert "open-loop arrivals" not in verdict.gaps


class TestDisturbance:
    def test_a_busy_machine_makes_it_invalid_in_bounded_time(
        self, bed: Bed, workload: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feedback.load.disturbance.CpuMeter.other_share", lambda *_: 0.5)
        verdict = ONE_PASS.run(bed.question(bed.tree("same"), workload), bed.context())
        assert verdict.status is Status.INVALID
        assert "not quiet enough to time anything; 3 passes were thrown away" in verdict.observed
        assert len(bed.evidence(verdict.evidence)["unusable_units"]) == 2 * 3

    def test_without_a_floor_one_is_measured_and_kept_for_the_session(
        self, bed: Bed, workload: Path, undisturbed: None
    ) -> None:
        floor = FloorSettings(pairs=2, rows=4, policy=Policy(unit_seconds=0.02))
        probe = LoadProbe(LoadSettings(max_passes=1, policy=Policy(unit_seconds=0.02), floor=floor))
        context = bed.context(noise=None)
        verdict = probe.run(bed.question(bed.tree("same"), workload), context)
        assert context.noise is not None
        assert context.noise.n == 2
        assert verdict.noise_floor == pytest.approx(context.noise.spread)
        assert bed.evidence(verdict.evidence)["floor_units"].keys() == {
            "0-base",
            "0-candidate",
            "1-base",
            "1-candidate",
        }


@pytest.fixture
def made() -> Callable[..., Any]:
    """`conclude` on made-up measurements."""

    def conclusion(
        low: float, effect: float, high: float, decision: str, share: float | None = None, **limits: float
    ) -> Any:
        comparison = Comparison(effect, low, high, 2, 2, 0.01, 1.02, 0.03, 1, 0.97, 4)
        figures = (
            {"output_throughput": 100.0 * effect, "p95_ttft_ms": 50.0},
            {"output_throughput": 100.0, "p95_ttft_ms": 40.0},
        )
        checked = [Verification(4, 100, 0.0, 0.0, 0.0, 1.0, ())]
        question = type("Asked", (), {"limits": limits})()
        return conclude(question, LoadSettings(touched_share=share), "w", comparison, decision, figures, checked)  # type: ignore[arg-type]

    return conclusion


class TestConclusion:
    def test_statuses(self, made: Callable[..., Any]) -> None:
        assert made(1.1, 1.2, 1.3, "confirmed").status is Status.CONFIRMED
        assert made(0.9, 0.95, 1.0, "refuted").status is Status.REFUTED
        assert made(0.9, 1.05, 1.2, "futile").status is Status.INCONCLUSIVE
        assert "all passes are used up" in made(0.9, 1.05, 1.2, "exhausted").observed

    def test_more_than_amdahl_allows_is_invalid(self, made: Callable[..., Any]) -> None:
        found = made(1.5, 1.6, 1.7, "confirmed", share=0.2)
        assert found.status is Status.INVALID
        assert "more than the 1.25x" in found.gaps[0]
        assert made(1.1, 1.2, 1.3, "confirmed", share=0.2).status is Status.CONFIRMED

    def test_a_relative_limit_is_against_the_same_passes(self, made: Callable[..., Any]) -> None:
        found = made(1.1, 1.2, 1.3, "confirmed", ttft_p95_ms_ratio=1.2)
        assert found.status is Status.REFUTED
        assert "ttft_p95_ms_ratio is 1.25, limit 1.2" in found.observed


class TestExactness:
    """Token equality is asked for exactly when the arithmetic is the oracle's."""

    def bounds(self, bed: Bed, **changes: Any) -> bool:
        parameter = Parameter(
            name="dtype",
            kind="choice",
            values=("float32", "bfloat16"),
            default="float32",
            doc="",
            changes_numerics=True,
        )
        description = Description(
            protocol_version=1, name="t", profile_path="p", launch_space=(parameter,), workloads=()
        )
        config = changes.pop("config", {})
        question = bed.question(bed.tree("same", **config), Path("w.jsonl"), **changes)
        return bounds_for(question, description).exact

    def test_rules(self, bed: Bed) -> None:
        assert self.bounds(bed)
        assert not self.bounds(bed, changes_numerics=True)
        assert not self.bounds(bed, config={"dtype": "bfloat16"})
        assert self.bounds(bed, config={"max_batch": 16})

    def test_bounds_may_come_from_the_goal(self, bed: Bed) -> None:
        description = Description(protocol_version=1, name="t", profile_path="p", launch_space=(), workloads=())
        question = bed.question(bed.tree("same"), Path("w.jsonl"), limits={"regret_mean_nats": 0.003})
        assert bounds_for(question, description).mean == 0.003


@pytest.mark.timing
class TestTiming:
    def test_a_real_gain_is_confirmed_and_a_real_loss_refuted(
        self, bed: Bed, undisturbed: None, tmp_path: Path
    ) -> None:
        """Four slots against one, on a workload of some seconds: a factor that no noise hides."""
        long = write_workload(tmp_path / "long.jsonl", count=32, tokens=48)
        floor = FloorSettings(pairs=3, rows=16)
        probe = LoadProbe(LoadSettings(max_passes=2, floor=floor))
        one, four = bed.tree("one", max_batch=1), bed.tree("four", max_batch=4)
        context = bed.context(noise=None)
        gain = probe.run(bed.question(four, long, base=one, kind="launch"), context)
        assert gain.status is Status.CONFIRMED, gain.line()
        assert gain.interval is not None
        assert gain.interval[0] > 1.3
        loss = probe.run(bed.question(one, long, base=four, kind="launch"), context)
        assert loss.status is Status.REFUTED, loss.line()
        assert loss.effect is not None
        assert gain.effect is not None
        assert loss.effect * gain.effect == pytest.approx(1.0, abs=0.25)


def test_the_predicate_is_fixed_by_the_question(bed: Bed, workload: Path) -> None:
    question = bed.question(bed.tree("same"), workload)
    assert PROBE.predicate(question) == PROBE.predicate(question)
    other = LoadProbe(LoadSettings(margin=1.05)).predicate(question)
    assert other.digest != PROBE.predicate(question).digest
    assert PROBE.predicate(question).parameters["bounds"] == asdict(Bounds())
