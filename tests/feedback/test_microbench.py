"""Microbench: which conditions gain, with intervals that hold; fresh inputs that differ.

Wrong timed outputs refuted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.microbench.conditions import Condition, judge_grid
from feedback.microbench.inputs import LEAST_SETS, constants, fresh_sets, runtime, unit_bytes
from feedback.microbench.probe import PROBE, MicrobenchProbe, MicrobenchSettings, conclude
from feedback.probe import discover
from feedback.statistics import Pass, Unit
from feedback.target import Arrays, Case, OperatorInfo, Tensor, Tolerance
from feedback.verdict import Status
from tests.feedback.bed import Bed, bed, undisturbed, write_workload
from tests.feedback.planted import PACKAGE, rms, silu

__all__ = ["bed", "undisturbed"]

QUICK = MicrobenchProbe(MicrobenchSettings(replicates=2))


def timed(log_ratio: float, label: str, rng: np.random.Generator, unit: float = 0.005, start: float = 0.02) -> Pass:
    """Three units a side; `unit` is the noise of a unit, `start` that of an instance."""
    offset = start * rng.standard_normal()
    sides = [
        tuple(Unit(0.02 * math.exp(unit * rng.standard_normal() - shift), 8) for _ in range(3))
        for shift in (0.0, log_ratio + offset)
    ]
    return Pass(sides[0], sides[1], (f"base {label}", f"other {label}"))


def grid(effects: dict[str, float], rng: np.random.Generator, replicates: int = 3) -> list[Condition]:
    """Conditions with known log ratios."""
    return [
        Condition(
            "op",
            name,
            "N=1",
            tuple(timed(effect, f"{name} {number}", rng) for number in range(replicates)),
            tuple(timed(0.0, f"{name} control {number}", rng) for number in range(replicates)),
        )
        for name, effect in effects.items()
    ]


class TestGrid:
    def test_intervals_cover_each_condition_and_the_mean(self) -> None:
        rng = np.random.default_rng(0)
        effects = {"small": 0.0, "middle": 0.1, "large": 0.3}
        rounds, covered, overall = 200, 0, 0
        for _ in range(rounds):
            found = judge_grid(grid(effects, rng), 1.0)
            for item, effect in zip(found.conditions, effects.values(), strict=True):
                assert item.comparison is not None
                covered += item.comparison.low <= math.exp(effect) <= item.comparison.high
            assert found.overall is not None
            mean = math.exp(sum(effects.values()) / 3)
            overall += found.overall.low <= mean <= found.overall.high
        assert covered / (3 * rounds) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / (3 * rounds))
        assert overall / rounds >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / rounds)

    def test_differences_between_conditions_do_not_widen_the_mean(self) -> None:
        rng, same = np.random.default_rng(1), np.random.default_rng(1)
        apart = judge_grid(grid({"a": -0.5, "b": 0.9}, rng), 1.0).overall
        alike = judge_grid(grid({"a": 0.2, "b": 0.2}, same), 1.0).overall
        assert apart is not None
        assert alike is not None
        assert apart.high / apart.low == pytest.approx(alike.high / alike.low, rel=1e-6)

    def test_it_tells_which_conditions_gain_and_which_lose(self) -> None:
        found = judge_grid(grid({"small": -0.4, "large": 0.6}, np.random.default_rng(2)), 1.0)
        assert [item.condition.name for item in found.slower()] == ["small"]
        assert [item.condition.name for item in found.faster()] == ["large"]
        finding = conclude(found, 1.0, "stated", [])
        assert finding.observed.startswith("1 of 2 conditions faster, 1 slower, op small 0.")
        assert " to op large 1." in finding.observed
        assert finding.at[0].condition == "small N=1"

    def test_conditions_without_every_replicate_stay_out_of_the_mean(self) -> None:
        conditions = grid({"a": 0.2, "b": 0.9}, np.random.default_rng(3))
        cut = Condition("op", "b", "N=1", conditions[1].comparisons[:1], conditions[1].controls[:1])
        found = judge_grid([conditions[0], cut], 1.0)
        assert found.overall is not None
        assert found.overall.effect == pytest.approx(math.exp(0.2), rel=0.1)
        assert found.conditions[1].comparison is not None

    def test_disturbed_units_alone_are_invalid(self) -> None:
        noisy = tuple(Unit(0.02, 8, 0.9) for _ in range(3))
        one = Pass(noisy, noisy, ("a", "b"))
        found = conclude(judge_grid([Condition("op", "a", "N=1", (one,), (one,))], 1.0), 1.0, "stated", [])
        assert found.status is Status.INVALID
        assert "no undisturbed control units" in found.observed


def info(*tensors: Tensor) -> OperatorInfo:
    return OperatorInfo(
        name="op",
        role="op",
        doc="",
        tensors=tensors,
        cases=(Case(name="a", dims={}),),
        tolerance={"float32": Tolerance(atol=1.0, rtol=1.0, reason="")},
        implementations=("torch",),
        selected="torch",
    )


WEIGHT = Tensor(name="w", shape=("K",), dtype="compute", kind="constant")
X = Tensor(name="x", shape=("N", "K"), dtype="compute", kind="runtime")
IDS = Tensor(name="ids", shape=("N",), dtype="int64", kind="runtime")
SCALE = Tensor(name="t", shape=("N",), dtype="float32", kind="runtime")
CACHE = Tensor(name="cache", shape=("B",), dtype="compute", kind="inout")


class TestFreshInputs:
    def draw(self, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        floats = {name: rng.standard_normal(24).astype(np.float32) for name in ("w", "x", "t", "cache")}
        return {**floats, "ids": rng.integers(0, 2**40, 24)}

    @given(st.integers(0, 2**32), st.integers(LEAST_SETS, 12))
    def test_sets_differ_in_value_and_share_no_memory(self, seed: int, count: int) -> None:
        sets = fresh_sets(info(WEIGHT, X, IDS, SCALE, CACHE), count, np.random.default_rng(seed), self.draw)
        assert len(sets) == count
        for name in ("x", "cache"):
            assert len({item[name].tobytes() for item in sets}) == count
            assert not any(np.shares_memory(sets[0][name], item[name]) for item in sets[1:])

    @given(st.integers(0, 2**32))
    def test_only_activations_change_and_only_their_signs(self, seed: int) -> None:
        first, *rest = fresh_sets(info(WEIGHT, X, IDS, SCALE), 8, np.random.default_rng(seed), self.draw)
        assert "w" not in first
        for item in rest:
            assert np.array_equal(np.abs(item["x"]), np.abs(first["x"]))
            assert np.array_equal(item["ids"], first["ids"])  # indices stay valid
            assert np.array_equal(item["t"], first["t"])  # a temperature has no sign
            assert item["x"].dtype == np.float32

    def test_without_activations_every_set_is_drawn(self) -> None:
        sets = fresh_sets(info(WEIGHT, IDS), 9, np.random.default_rng(0), self.draw)
        assert len({item["ids"].tobytes() for item in sets}) == 9

    def test_constants_and_the_rest_are_told_apart(self) -> None:
        drawn, described = self.draw(0), info(WEIGHT, X)
        assert constants(described, drawn).keys() == {"w"}
        assert "w" not in runtime(described, drawn)

    def test_the_size_of_a_unit_counts_results_by_their_specification(self) -> None:
        out = Tensor(name="y", shape=("N", 3), dtype="compute", kind="output")
        case = Case(name="a", dims={"N": 5, "B": 7})
        assert unit_bytes(info(X, CACHE, out), case, {"x": np.zeros(4, np.float32)}) == 16 + 4 * (15 + 7)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_workload(tmp_path_factory.mktemp("micro") / "small.jsonl", count=2, tokens=4)


def test_it_is_found_by_its_folder() -> None:
    assert discover()["microbench"] is PROBE


@pytest.mark.usefixtures("undisturbed")
class TestProbe:
    def test_a_slower_operator_is_refuted_on_every_condition(self, bed: Bed, workload: Any) -> None:
        """Forty times the work: no noise of a shared machine hides it."""
        slow = bed.tree("slow-norm", rms("for _ in range(40):\n    y = self.plain(x)\nreturn y"))
        verdict = QUICK.run(bed.question(slow, workload, operators=("rms_norm",)), bed.context(None))
        assert verdict.status is Status.REFUTED, verdict.line()
        assert verdict.effect is not None
        assert verdict.effect < 0.5
        data = bed.evidence(verdict.evidence)
        assert {row["condition"] for row in data["conditions"]} == {
            name.removeprefix("ratio rms_norm ") for name in verdict.metrics
        }
        for row in data["conditions"]:
            assert row["comparison"]["high"] < 1.0
            assert all(unit["tokens"] >= LEAST_SETS for side in row["units"] for unit in side["base"])

    def test_only_touched_operators_are_timed(self, bed: Bed, workload: Any) -> None:
        changed = bed.tree("silu-comment", lambda root: append(root, f"{PACKAGE}/ops/silu_mul/torch.py"))
        question = bed.question(changed, workload, changed=(f"{PACKAGE}/ops/silu_mul/torch.py",))
        verdict = MicrobenchProbe(MicrobenchSettings(replicates=1)).run(question, bed.context(None))
        assert {name.split()[1] for name in verdict.metrics} == {"silu_mul"}

    def test_right_at_first_and_wrong_while_timed_is_refuted(self, bed: Bed, workload: Any) -> None:
        """Answers the check honestly and a timed batch with what it has in store."""
        plant = silu(
            "self.calls = getattr(self, 'calls', 0) + 1\n"
            "if self.calls < 12 or not hasattr(self, 'kept'):\n    self.kept = F.silu(gate) * up\n"
            "return self.kept.clone()"
        )
        verdict = QUICK.run(
            bed.question(bed.tree("stale", plant), workload, operators=("silu_mul",)), bed.context(None)
        )
        assert verdict.status is Status.REFUTED, verdict.line()
        assert "silu_mul: a timed output is wrong" in verdict.observed
        assert verdict.at[0].condition
        assert verdict.effect is None

    def test_a_failing_base_teaches_nothing(self, bed: Bed, workload: Any) -> None:
        broken = bed.tree("broken-norm", rms("return x / (1 // 0)"))
        question = bed.question(bed.tree("same"), workload, base=broken, operators=("rms_norm",))
        verdict = QUICK.run(question, bed.context(None))
        assert verdict.status is Status.INVALID, verdict.line()
        assert "the base failed: error in operator_run" in verdict.observed

    def test_a_crashing_candidate_is_refuted_with_its_place(self, bed: Bed, workload: Any) -> None:
        crash = bed.tree("crash-norm", rms("import ctypes\nctypes.string_at(0)"))
        verdict = QUICK.run(bed.question(crash, workload, operators=("rms_norm",)), bed.context(None))
        assert verdict.status is Status.REFUTED
        assert "SIGSEGV" in verdict.observed
        assert verdict.at[0].file == f"{PACKAGE}/ops/rms_norm/torch.py"


def append(root: Any, path: str) -> None:
    with (root / path).open("a") as file:
        file.write("# a comment\n")
