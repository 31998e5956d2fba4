"""The sharding layer on planted faults: which operator, which cut, which step; and what it cannot answer is no pass."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feedback.evidence import EvidenceStore
from feedback.probe import Context, Question, Tree, discover
from feedback.sharding import probe as layer
from feedback.sharding import subject
from feedback.sharding.planned import UNCUT
from feedback.sharding.probe import PROBE
from feedback.verdict import Status, Verdict
from feedback.workers.pool import Limits, WorkerPool
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import OPS, replaces
from tests.feedback.planted_sharding import FAULTS, ShardPlant
from tests.infra_agent import toy_target
from tests.target_engine.hybrid_model import make_hybrid

__all__ = ["bed"]


@pytest.fixture(scope="module")
def hybrid(bed: Bed) -> Bed:
    """The test bed on a hybrid model."""
    return Bed(bed.folder, bed.pool, make_hybrid(bed.folder / "hybrid"))


def asked(bed: Bed, name: str, plant=None, operators: tuple[str, ...] = (), **launch) -> Verdict:
    workload = write_workload(bed.folder / "small.jsonl", 3, 4)
    tree = bed.tree(name.replace(" ", "-"), plant, **launch)
    return PROBE.run(bed.question(tree, workload, base=bed.tree("base", **launch), operators=operators), bed.context())


def localised(bed: Bed, verdict: Verdict) -> list[dict]:
    return [cut["localised"] for cut in bed.evidence(verdict.evidence)["cuts"] if "localised" in cut]


def test_it_is_found_and_cheap():
    assert discover()["sharding"] is PROBE
    assert PROBE.cost_prior < 10


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.name)
def test_planted_faults_are_refuted_with_operator_cut_and_step(bed, hybrid, monkeypatch, plant: ShardPlant):
    monkeypatch.setattr(subject, "PATIENCE", 1.5)
    mine = hybrid if plant.hybrid else bed
    began = time.monotonic()
    verdict = asked(mine, plant.name, plant.plant, **plant.launch)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert time.monotonic() - began < 60
    first = localised(mine, verdict)[0]
    told = (first["operator"], first["sharding"], first["step"])
    assert told == (plant.operator, plant.sharding, plant.step), verdict.line()
    assert plant.says in verdict.line()
    place = verdict.at[0]
    assert place.operator == plant.operator
    assert place.phase == f"{plant.sharding} over {first['axis']} {place.phase.split()[3]} step {plant.step}"
    cuts = [cut for cut in mine.evidence(verdict.evidence)["cuts"] if "localised" in cut]
    assert cuts[0].get("attribution", {}).get("cause") == plant.cause, verdict.line()


@pytest.mark.parametrize(
    "launch",
    [
        {"tp": 2},
        {"cp": 3},
        {"tp": 2, "cp": 2, "layer_split": True},
        {"tp": 2, "cp": 2, "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_the_clean_tree_is_confirmed_under_every_layout(hybrid, launch):
    verdict = asked(hybrid, "base", **launch)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.metrics["worst_error_ratio"] < 1.0
    assert any("real ranks" in gap for gap in verdict.gaps)


def test_every_cut_of_the_plan_is_checked(bed, hybrid):
    for mine, launch in ((bed, {"tp": 4, "cp": 2}), (hybrid, {"tp": 2, "cp": 2})):
        config = mine.config(**launch)
        with WorkerPool("target_engine.adapter", Limits(call_seconds=60)) as pool:
            rows = pool.open(Tree(mine.folder / "pristine", "x", config)).call("operator_plan", config)["rows"]
        wanted = {(row["operator"], row["sharding"], row["ranks"]) for row in rows if row["sharding"]}
        verdict = asked(mine, "base", **launch)
        cuts = mine.evidence(verdict.evidence)["cuts"]
        assert {(cut["operator"], cut["sharding"], cut["ranks"]) for cut in cuts} == wanted
        for cut in cuts:
            names = [condition["case"]["name"] for condition in cut["conditions"]]
            assert len(names) >= 6, cut
            assert any(name.startswith(role.replace(" ", "-")) for name in names for role in cut["roles"])


def test_inputs_of_the_running_model_are_tried_and_what_is_not_made_is_told(hybrid):
    verdict = asked(hybrid, "base", cp=2)
    cuts = {cut["operator"]: cut for cut in hybrid.evidence(verdict.evidence)["cuts"]}
    captured = [c for c in cuts["kda_chunk"]["conditions"] if c["case"]["name"].startswith("captured")]
    assert [(c["case"]["name"], c["cut"]) for c in captured] == [("captured-0", 0), ("captured-0", 1)]
    assert any("cuts that this launch does not make: columns, " in gap for gap in verdict.gaps)


def test_what_was_not_tried_is_not_confirmed(hybrid, monkeypatch):
    monkeypatch.setattr(layer, "BUDGET_SECONDS", 0.0)
    verdict = asked(hybrid, "base", cp=2)
    assert verdict.status is Status.INCONCLUSIVE, verdict.line()
    assert "not reached in 0 s" in verdict.observed


def test_a_rank_that_hangs_ends_the_check_in_time_with_its_place(bed, monkeypatch):
    monkeypatch.setattr(subject, "PATIENCE", 1.0)
    plant = next(plant for plant in FAULTS if plant.name == "a rank hangs")
    began = time.monotonic()
    verdict = asked(bed, plant.name, plant.plant, **plant.launch)
    assert time.monotonic() - began < 30
    assert "rank 1 of 2 did not come to all_reduce" in verdict.observed
    assert (verdict.at[0].file, bool(verdict.at[0].line)) == (f"{OPS}/linear/parallel.py", True)
    assert len(bed.evidence(verdict.evidence)["cuts"]) == 1


def test_rounding_in_the_merge_grows_with_shards_and_only_shows_where_decay_is_weak(hybrid):
    plant = next(plant for plant in FAULTS if plant.name == "merge rounds to tf32")
    verdict = asked(hybrid, plant.name, plant.plant, **plant.launch)
    cut = next(cut for cut in hybrid.evidence(verdict.evidence)["cuts"] if "localised" in cut)
    assert "precision, not logic" in verdict.observed
    assert "grows with" in verdict.observed
    assert {growth["noun"] for growth in cut["growth"]} == {"shards", "tokens"}
    failing = {c["case"]["distribution"] for c in cut["conditions"] if c["fault"]}
    assert "strong_decay" not in failing
    measured = dict(cut["attribution"]["measured"])
    assert measured["a float64 kda_state_merge"] < 1.0 < measured["a float64 kda_local_state"]
    assert verdict.next == "kernels"
    assert verdict.at[0].file == f"{OPS}/kda_state_merge/torch.py"
    with np.load(hybrid.folder / "evidence" / (verdict.evidence or "") / "arrays.npz") as arrays:
        assert {"rank0.got.out", "rank0.expected.out", "rank0.step.merge.states"} <= set(arrays)


def test_an_operator_that_is_wrong_without_any_cut_is_told_as_such(bed):
    wrong = replaces(f"{OPS}/silu_mul/torch.py", ("return F.silu(gate)", "return 1.01 * F.silu(gate)"))
    verdict = asked(bed, "wrong-whole", wrong, tp=2)
    assert verdict.status is Status.REFUTED
    assert "its unsharded form deviates too" in verdict.observed
    assert verdict.at[0].file == f"{OPS}/silu_mul/torch.py"


def test_what_a_move_says_it_touched_narrows_nothing_but_a_person_may_ask_for_one_operator(bed):
    plant = next(plant for plant in FAULTS if plant.name == "vocabulary offset")
    verdict = asked(bed, plant.name, plant.plant, operators=("linear",), **plant.launch)
    assert verdict.status is Status.REFUTED
    by_hand = asked(bed, "base", operators=("linear",), tp=2)
    assert by_hand.status is Status.CONFIRMED
    assert {cut["operator"] for cut in bed.evidence(by_hand.evidence)["cuts"]} == {"linear"}
    uncut = asked(bed, "base", operators=("rms_norm",), tp=2)
    assert uncut.status is Status.UNSUPPORTED
    assert "tensor-parallel ranks compute it alike" in uncut.observed


def test_one_rank_is_unsupported_and_a_plan_that_cannot_run_is_refuted(bed):
    verdict = asked(bed, "base")
    assert verdict.status is Status.UNSUPPORTED
    assert UNCUT in verdict.gaps
    for launch, parameter in (({"tp": 3}, "tp"), ({"cp": 600}, "cp")):
        refused = asked(bed, "base", **launch)
        assert refused.status is Status.REFUTED
        assert refused.at[0].parameter == parameter


@pytest.mark.parametrize("version", [1, 2])
def test_a_target_without_the_methods_is_unsupported_never_a_pass(tmp_path: Path, version: int):
    adapter = toy_target.ADAPTER.replace('"protocol_version": 1', f'"protocol_version": {version}')
    root = toy_target.write(tmp_path / "toy", {"toyengine/adapter.py": adapter})
    tree = Tree(root, "toy", {"max_batch": 2})
    workload = root / "toyengine" / "workloads" / "main.jsonl"
    question = Question("h1", tree, tree, tree, toy_target.NAME, "code", (), workload, 7)
    with WorkerPool(toy_target.NAME, Limits(call_seconds=30)) as pool:
        verdict = PROBE.run(question, Context(pool, EvidenceStore(tmp_path / "evidence")))
    assert verdict.status is Status.UNSUPPORTED, verdict.line()
    assert "operator_plan" in verdict.gaps[0]


def test_a_refutation_need_not_be_explained(hybrid):
    plant = next(plant for plant in FAULTS if plant.name == "merge rounds to tf32")
    tree = hybrid.tree("unexplained", plant.plant, cp=3)
    workload = write_workload(hybrid.folder / "small.jsonl", 3, 4)
    question = replace(hybrid.question(tree, workload, base=hybrid.tree("base", cp=3)), explain=False)
    verdict = PROBE.run(question, hybrid.context())
    assert verdict.status is Status.REFUTED, verdict.line()
    cut = next(cut for cut in hybrid.evidence(verdict.evidence)["cuts"] if "localised" in cut)
    assert cut["localised"]["step"] == "merge"
    assert "attribution" not in cut
    assert cut["growth"] == []
