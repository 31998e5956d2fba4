"""The operator layer on planted candidates: what is wrong is named with operator, condition and pattern."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedback.operators.probe import PROBE, as_selected
from feedback.verdict import Status, Verdict
from feedback.workers.failures import WorkerFailure
from target_engine.ops import registry
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import CLEAN, OPERATORS, OPS, Plant, silu, unchanged, writes

__all__ = ["bed"]


@pytest.fixture(scope="module")
def workload(bed: Bed) -> Path:
    return write_workload(bed.folder / "small.jsonl", 3, 4)


def asked(bed: Bed, workload: Path, plant: Plant, **more) -> Verdict:
    tree = bed.tree(plant.name.replace(" ", "-"), plant.plant, **plant.launch)
    values = {"kind": plant.kind, "operators": plant.operators} | more
    return PROBE.run(bed.question(tree, workload, **values), bed.context())


@pytest.mark.parametrize("plant", OPERATORS, ids=lambda plant: plant.name)
def test_planted_faults_are_refuted_with_operator_and_condition(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert plant.says in verdict.line()
    place = verdict.at[0]
    assert (place.operator, place.implementation) == (plant.operators[0], "torch")
    assert place.file == f"target_engine/ops/{plant.operators[0]}/torch.py"
    assert place.condition


@pytest.mark.parametrize("plant", [plant for plant in CLEAN if plant.operators], ids=lambda plant: plant.name)
def test_honest_candidates_pass(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.metrics["worst_error_ratio"] < 1.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sizes_that_nobody_could_know_are_checked_whatever_the_seed(bed, workload, seed):
    plant = next(plant for plant in OPERATORS if plant.name == "exact only at the checked sizes")
    verdict = asked(bed, workload, plant, seed=seed)
    assert verdict.status is Status.REFUTED
    assert (verdict.at[0].condition or "").startswith("fresh-")


def test_a_candidate_is_not_believed_about_what_it_touched(bed, workload):
    plant = next(plant for plant in OPERATORS if plant.name == "wrong columns")
    verdict = asked(bed, workload, plant, operators=("linear",))
    assert verdict.status is Status.REFUTED
    assert verdict.at[0].operator == "rms_norm"


def test_all_operators_are_right_in_half_width_and_with_the_best_implementations(bed, workload):
    best = {"rms_norm": "library", "qkv_projection": "fused", "gate_up_projection": "fused", "linear": "prepacked"}
    narrow = {name: chosen for name, chosen in best.items() if not registry.unavailable(name, chosen, "bfloat16")}
    for launch in ({"dtype": "bfloat16"}, {"operators": best}, {"dtype": "bfloat16", "operators": narrow}):
        verdict = asked(bed, workload, Plant("base", "", "", unchanged, kind="launch", launch=launch))
        assert verdict.status is Status.CONFIRMED, verdict.line()


def test_an_implementation_that_the_trusted_tree_lacks_is_checked_against_its_reference(bed, workload):
    text = (bed.folder / "pristine" / OPS / "rms_norm" / "torch.py").read_text()
    launch = {"operators": {"rms_norm": "mine"}}
    right = Plant("mine", "", "", writes(f"{OPS}/rms_norm/mine.py", text), launch=launch)
    assert asked(bed, workload, right).status is Status.CONFIRMED
    wrong = Plant(
        "mine-wrong", "", "", writes(f"{OPS}/rms_norm/mine.py", text.replace("+ self.eps", "+ 0.1")), launch=launch
    )
    verdict = asked(bed, workload, wrong)
    assert verdict.status is Status.REFUTED
    assert (verdict.at[0].implementation, verdict.at[0].file) == ("mine", "target_engine/ops/rms_norm/mine.py")


def test_a_crash_ends_the_check_with_the_place(bed, workload):
    crash = silu("if gate.shape[0] == 17:\n    ctypes.string_at(0)\nreturn F.silu(gate) * up", imports="import ctypes")
    verdict = asked(bed, workload, Plant("crashes-at-17", "", "", crash, operators=("silu_mul",)))
    assert verdict.status is Status.REFUTED
    assert "SIGSEGV" in verdict.observed
    assert "N=17" in (verdict.at[0].condition or "")


def test_the_first_wrong_case_can_be_looked_at_again(bed, workload):
    plant = next(plant for plant in OPERATORS if plant.name == "wrong columns")
    verdict = asked(bed, workload, plant)
    with np.load(bed.folder / "evidence" / (verdict.evidence or "") / "arrays.npz") as arrays:
        wrong = ~np.isclose(arrays["got.y"], arrays["expected.y"], rtol=1e-4, atol=1e-5)
        assert set(np.flatnonzero(wrong.any(axis=0)) % 16) == {3}
        assert arrays["input.x"].shape == arrays["got.y"].shape


def test_a_worker_that_describes_its_operators_wrongly_is_refuted(bed, workload):
    def plant(root: Path) -> None:
        launch = root / "target_engine" / "launch.py"
        launch.write_text(launch.read_text() + "\n\nLaunchConfig.implementation = lambda self, operator: 7\n")

    verdict = asked(bed, workload, Plant("describes-wrongly", "", "", plant))
    assert verdict.status is Status.REFUTED
    assert "describes its operators wrongly" in verdict.observed


@pytest.mark.parametrize("reported", [5, [{}], ["rms_norm"], [{"name": "rms_norm", "selected": 3}]])
def test_a_candidate_that_describes_its_operators_wrongly_has_failed(reported):
    with pytest.raises(WorkerFailure, match="describes its operators wrongly"):
        as_selected((), reported)
