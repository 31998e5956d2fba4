"""The static layer on whole candidates: the planted ones are refused with the place, honest ones are not."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from feedback.static.probe import PROBE
from feedback.verdict import Confidence, Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import CLEAN, OPS, RUNTIME, STATIC, Plant, replaces, silu, unchanged, writes

__all__ = ["bed"]


@pytest.fixture(scope="module")
def workload(bed: Bed) -> Path:
    return write_workload(bed.folder / "small.jsonl", 3, 4)


def asked(bed: Bed, workload: Path, plant: Plant, **more) -> Verdict:
    tree = bed.tree(plant.name.replace(" ", "-"), plant.plant, **plant.launch)
    return PROBE.run(bed.question(tree, workload, kind=plant.kind, **more), bed.context())


@pytest.mark.parametrize("plant", STATIC, ids=lambda plant: plant.name)
def test_planted_faults_are_refuted_with_place_and_reason(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert plant.says in verdict.observed
    assert verdict.at
    assert verdict.at[0].file


@pytest.mark.parametrize("plant", CLEAN, ids=lambda plant: plant.name)
def test_honest_candidates_pass(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert (verdict.status, verdict.confidence) == (Status.CONFIRMED, Confidence.PROOF), verdict.line()


@pytest.mark.parametrize("plant", RUNTIME, ids=lambda plant: plant.name)
def test_what_only_running_shows_is_not_claimed_here(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert "what the code does when it runs" in verdict.gaps


def test_soft_signs_are_named_and_lower_the_confidence(bed, workload):
    code = silu("key = gate.data_ptr()\ntable = {key: gate}\nreturn F.silu(table[gate.data_ptr()]) * up")
    verdict = asked(bed, workload, Plant("soft", "", "", code))
    assert (verdict.status, verdict.confidence) == (Status.CONFIRMED, Confidence.HEURISTIC)
    assert "object identity or address" in verdict.observed
    assert verdict.at[0].line == 17


def test_an_implementation_of_the_candidates_own_may_be_selected(bed, workload):
    text = (bed.folder / "pristine" / OPS / "rms_norm" / "torch.py").read_text()
    launch = {"operators": {"rms_norm": "mine"}}
    own = Plant("own-implementation", "", "", writes(f"{OPS}/rms_norm/mine.py", text), launch=launch)
    assert asked(bed, workload, own).status is Status.CONFIRMED
    missing = Plant("selects-what-it-lacks", "", "", unchanged, launch=launch)
    verdict = asked(bed, workload, missing)
    assert verdict.status is Status.REFUTED
    assert verdict.at[0].parameter == "operators.rms_norm"


def test_an_implementation_that_the_start_left_out_cannot_be_selected(bed, workload):
    def plant(root: Path) -> None:
        (root / OPS / "linear" / "prepacked.py").unlink()

    tree = bed.tree("left-out", plant, operators={"linear": "prepacked"})
    verdict = PROBE.run(bed.question(tree, workload, base=tree, kind="launch"), bed.context())
    assert verdict.status is Status.REFUTED
    assert "'prepacked' has no file target_engine/ops/linear/prepacked.py in this tree" in verdict.observed


def test_the_goals_edit_scope_binds(bed, workload):
    plant = Plant("scoped", "", "", replaces(f"{OPS}/linear/torch.py", ("plain form", "simple form")))
    assert asked(bed, workload, plant, scope=("target_engine/ops/**",)).status is Status.CONFIRMED
    verdict = asked(bed, workload, plant, scope=("target_engine/scheduling/**",))
    assert verdict.status is Status.REFUTED
    assert "outside the edit scope" in verdict.observed


@pytest.mark.timing
def test_it_takes_less_than_a_second(bed, workload):
    bed.pool.warm_up()
    seconds = []
    for index, plant in enumerate((CLEAN[0], CLEAN[0], CLEAN[0], STATIC[2], STATIC[2])):
        began = time.perf_counter()
        asked(bed, workload, plant)
        if index:  # the first opens the oracle
            seconds.append(time.perf_counter() - began)
    assert statistics.median(seconds) < 1.0
