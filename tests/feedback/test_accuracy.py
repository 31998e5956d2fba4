"""The accuracy layer: type changes by KL and NLL, exact moves by tokens too, self-reported scores not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from feedback.accuracy.limits import AccuracyLimits
from feedback.accuracy.material import cut
from feedback.accuracy.probe import PROBE
from feedback.verdict import Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import ACCURACY, CLEAN, Plant, replaces, unchanged

__all__ = ["bed"]

RETURN = "return self.lm_head(self.final_norm(x[step.logit_rows]))"


def on_many_rows(*lines: str) -> Callable[[Path], tuple[str, ...]]:
    """A model that does something to the logits whenever more rows are wanted than a small batch decodes."""
    text = [RETURN.replace("return", "logits ="), "if len(step.logit_rows) > 8:", *(f"    {line}" for line in lines)]
    return replaces("target_engine/models/llama.py", (RETURN, "\n        ".join([*text, "return logits"])))


HALF = Plant("base", "", "", unchanged, kind="launch", launch={"dtype": "bfloat16"}, changes_numerics=True)


@pytest.fixture(scope="module")
def workload(bed: Bed) -> Path:
    return write_workload(bed.folder / "small.jsonl", 6, 4)


def asked(bed: Bed, workload: Path, plant: Plant, **more) -> Verdict:
    tree = bed.tree(plant.name.replace(" ", "-"), plant.plant, **plant.launch)
    values = {"kind": plant.kind, "changes_numerics": plant.changes_numerics} | more
    return PROBE.run(bed.question(tree, workload, **values), bed.context())


@pytest.mark.parametrize("plant", ACCURACY, ids=lambda plant: plant.name)
def test_planted_faults_are_refuted(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert plant.says in verdict.observed


@pytest.mark.parametrize("plant", CLEAN, ids=lambda plant: plant.name)
def test_honest_candidates_pass(bed, workload, plant):
    verdict = asked(bed, workload, plant)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.metrics["mean_kl_nats"] < 1e-9


def test_half_width_is_admitted_and_measured(bed, workload):
    verdict = asked(bed, workload, HALF)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert 1e-5 < verdict.metrics["mean_kl_nats"] < 0.01
    assert abs(verdict.metrics["nll_increase_relative"]) < 0.005


@pytest.mark.parametrize(
    ("limits", "status"), [({"nll_increase_relative": 0.005}, Status.INCONCLUSIVE), ({}, Status.CONFIRMED)]
)
def test_a_bounded_nll_that_cannot_be_measured_is_not_confirmed(bed, workload, monkeypatch, limits, status):
    monkeypatch.setattr("feedback.accuracy.material.TEXT_NAME", "there-is-none.txt")
    verdict = asked(bed, workload, CLEAN[0], limits=limits)
    assert verdict.status is status, verdict.line()
    assert any("there-is-none.txt" in gap for gap in verdict.gaps)


def test_the_goals_limits_bind(bed, workload):
    verdict = asked(bed, workload, HALF, limits={"mean_kl": 1e-6})
    assert verdict.status is Status.REFUTED
    assert verdict.observed.startswith("mean KL 0.001")


def test_a_limit_inside_the_interval_is_not_decided(bed, workload):
    measured = asked(bed, workload, HALF).metrics["mean_kl_nats"]
    verdict = asked(bed, workload, HALF, limits={"mean_kl": measured})
    assert verdict.status is Status.INCONCLUSIVE
    assert "not separated from" in verdict.observed


def test_scores_that_flatter_themselves_are_caught_by_the_reference(bed, workload):
    ahead = on_many_rows("logits[:-1].scatter_(1, step.token_ids[step.logit_rows[:-1] + 1].unsqueeze(1), 60.0)")
    verdict = asked(bed, workload, Plant("looks-ahead", "", "", ahead, changes_numerics=True))
    assert verdict.status is Status.REFUTED
    assert "mean KL" in verdict.observed
    assert verdict.metrics["nll_increase_relative"] < -0.5  # by its own account it is much better


def test_logits_that_are_no_numbers_are_refuted(bed, workload):
    plant = on_many_rows('logits[3] = float("nan")')
    verdict = asked(bed, workload, Plant("nan-scores", "", "", plant, changes_numerics=True))
    assert verdict.status is Status.REFUTED
    assert "not finite, first at token" in verdict.observed


def test_an_engine_that_scores_well_and_generates_something_else_is_caught(bed, workload):
    plant = replaces(
        "target_engine/engine.py", ("request.id, sampled[request.id],", "request.id, sampled[request.id] ^ 1,")
    )
    verdict = asked(bed, workload, Plant("two-faces", "", "", plant, changes_numerics=True))
    assert verdict.status is Status.REFUTED
    assert verdict.observed.startswith("greedy outputs are wrong")


def test_kl_is_bounded_in_step_with_the_nll_unless_named():
    assert AccuracyLimits.given({}) == AccuracyLimits(0.005, 0.01)
    assert AccuracyLimits.given({"nll_increase_relative": 0.02, "ttft_p95_ms": 10}) == AccuracyLimits(0.02, 0.04)
    assert AccuracyLimits.given({"mean_kl": 0.5}) == AccuracyLimits(0.005, 0.5)


def test_a_text_is_cut_into_passages_that_score_each_token_once():
    passages = cut(range(700), 256)
    assert [(p.prompt[0], p.output[-1]) for p in passages] == [(0, 255), (256, 511), (512, 699)]
    assert len(cut(range(600), 256)) == 2  # the rest is under half a passage
    assert cut(range(5), 256)[0].output == (1, 2, 3, 4)
    assert cut([7], 256) == ()
