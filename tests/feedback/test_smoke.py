"""The smoke layer: crash, hang, error and wrong first tokens become one precise line."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.load.workload import Row
from feedback.smoke import probe
from feedback.smoke.probe import PROBE, pick, short_requests
from feedback.verdict import Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import CLEAN, SMOKE, Plant, replaces

__all__ = ["bed"]


@pytest.fixture(scope="module")
def workload(bed: Bed) -> Path:
    return write_workload(bed.folder / "small.jsonl", 6, 4)


def asked(bed: Bed, workload: Path, plant: Plant, **more) -> Verdict:
    tree = bed.tree(plant.name.replace(" ", "-"), plant.plant, **plant.launch)
    return PROBE.run(bed.question(tree, workload, kind=plant.kind, **more), bed.context())


@pytest.mark.parametrize("plant", SMOKE, ids=lambda plant: plant.name)
def test_planted_faults_are_refuted_in_one_line(bed, workload, plant, monkeypatch):
    monkeypatch.setattr(probe, "CALL_SECONDS", 3.0)
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert plant.says in verdict.observed


@pytest.mark.parametrize("plant", CLEAN, ids=lambda plant: plant.name)
def test_honest_candidates_pass(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.metrics["verified_tokens"] == 24.0


def test_a_crash_names_its_place(bed, workload):
    verdict = asked(bed, workload, next(plant for plant in SMOKE if plant.name == "crashes"))
    assert verdict.at[0].file == "target_engine/ops/silu_mul/torch.py"


def test_what_a_candidate_prints_decides_nothing_and_is_kept(bed, workload):
    verdict = asked(bed, workload, next(plant for plant in SMOKE if plant.name == "prints a fake result"))
    folder = bed.folder / "evidence" / (verdict.evidence or "")
    assert '"effect": 9.9' in (folder / "candidate-stdout.txt").read_text()


def test_a_type_change_is_judged_by_regret(bed, workload):
    tree = bed.tree("base", dtype="bfloat16")
    verdict = PROBE.run(bed.question(tree, workload, kind="launch", changes_numerics=True), bed.context())
    assert verdict.status is Status.CONFIRMED, verdict.line()


ENGINE = "target_engine/engine.py"
OUTSIDE = replaces(ENGINE, ("request.id, sampled[request.id],", "request.id, 10**6,"))
REVERSED = replaces(
    "target_engine/tokenizer.py",
    (
        "    def encode(self",
        "    def encode(self, text):\n        return self._encode(text)[::-1]\n\n    def _encode(self",
    ),
)


def test_tokens_outside_the_vocabulary_are_the_candidates_fault(bed, workload):
    verdict = asked(bed, workload, Plant("outside-the-vocabulary", "", "", OUTSIDE))
    assert verdict.status is Status.REFUTED
    assert "outside the vocabulary" in verdict.observed


def test_another_tokenizer_is_noticed(bed, workload):
    verdict = asked(bed, workload, Plant("reversed", "", "", REVERSED))
    assert verdict.status is Status.REFUTED
    assert "tokenizer" in verdict.observed


def test_a_configuration_that_cannot_start_says_why(bed, workload):
    verdict = PROBE.run(bed.question(bed.tree("base", max_model_len=100_000), workload, kind="launch"), bed.context())
    assert verdict.status is Status.REFUTED
    assert "max_model_len 100000 is longer than the model's" in verdict.observed


def test_requests_are_drawn_by_the_seed_and_of_different_lengths():
    rows = [Row(id=f"r{i}", prompt_token_ids=tuple(range(100)), max_tokens=50) for i in range(10)]
    assert pick(rows, 1) == pick(rows, 1)
    assert len({pick(rows, seed) for seed in range(8)}) > 1
    requests = short_requests(pick(rows, 1), [])
    assert [len(request.prompt_token_ids or ()) for request in requests] == [40, 33, 26]
    assert all((request.prompt_token_ids or ())[-1] == 99 for request in requests)
