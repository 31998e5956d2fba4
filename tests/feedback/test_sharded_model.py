"""The sharded-model layer: logits, the first layer that deviates, and a minimal reproducer of a changed request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.load.workload import Workload
from feedback.probe import discover
from feedback.sharded_model.comparison import as_workload
from feedback.sharded_model.layers import first_diverging
from feedback.sharded_model.probe import PROBE
from feedback.sharded_model.shrink import Change, minimal, shrink
from feedback.target import Request
from feedback.verdict import Confidence, Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import OPS, replaces
from tests.feedback.planted_sharding import combining
from tests.target_engine.hybrid_model import make_hybrid

__all__ = ["bed"]


@pytest.fixture(scope="module")
def hybrid(bed: Bed) -> Bed:
    return Bed(bed.folder, bed.pool, make_hybrid(bed.folder / "hybrid"))


def asked(bed: Bed, name: str, plant=None, workload: Path | None = None, **launch) -> Verdict:
    workload = workload or write_workload(bed.folder / "small.jsonl", 4, 6)
    tree = bed.tree(name.replace(" ", "-"), plant, **launch)
    return PROBE.run(bed.question(tree, workload, base=bed.tree("base", **launch)), bed.context())


def test_it_is_found():
    assert discover()["sharded_model"] is PROBE


@pytest.mark.parametrize(
    "launch", [{"tp": 2}, {"cp": 3}, {"tp": 2, "cp": 2, "layer_split": True}, {"cp": 2, "dtype": "bfloat16"}], ids=str
)
def test_the_clean_model_is_confirmed(hybrid, launch):
    verdict = asked(hybrid, "base", **launch)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert any("real ranks" in gap for gap in verdict.gaps)


def test_one_rank_is_unsupported(bed):
    assert asked(bed, "base").status is Status.UNSUPPORTED


def test_a_fault_in_one_layer_is_bisected_and_shrunk_to_a_minimal_reproducer(bed):
    """Only the second layer's attention is wrong, and only from the 9th position on."""
    from tests.feedback.planted import PACKAGE, replaces

    late = replaces(
        f"{PACKAGE}/models/llama.py",
        (
            "return layer.attention_output(self._attend(q, k_cache, v_cache, step).flatten(1))",
            "out = layer.attention_output(self._attend(q, k_cache, v_cache, step).flatten(1))\n"
            "        spoilt = (step.positions >= 8).unsqueeze(1) & (layer is self.layers[1])\n"
            "        return out + 9.0 * spoilt",
        ),
    )
    verdict = asked(bed, "late-layer", late, tp=2)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "layer 1 of 2 is the first to deviate" in verdict.observed
    found = bed.evidence(verdict.evidence)
    assert found["layer"]["first"] == 1
    rows = found["reproducer"]
    assert len(rows) == 1
    assert len(rows[0]["prompt_token_ids"]) + rows[0]["max_tokens"] >= 9
    assert len(rows[0]["prompt_token_ids"]) <= 12
    file = bed.folder / "evidence" / (verdict.evidence or "") / "reproducer.jsonl"
    assert len(Workload.read(file).rows) == 1
    again = asked(bed, "late-layer", late, workload=file, tp=2)
    assert again.status is Status.REFUTED
    assert again.at[0].request == rows[0]["id"]


def test_a_combining_fault_is_refuted_with_its_first_layer(hybrid):
    plant = combining("kda_chunk", ("= states[:, group.size]", "= states[:, group.size - 1]"))
    verdict = asked(hybrid, "last shard dropped", plant, cp=2)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert verdict.next == "sharding"


def test_a_rank_that_raises_is_one_line(bed):
    plant = combining("linear", ("y = build(", 'assert group.rank != 1, "rank one"\n    y = build('))
    verdict = asked(bed, "a rank raises", plant, tp=2)
    assert verdict.status is Status.REFUTED
    assert "rank 1 of 2" in verdict.observed
    assert "rank one" in verdict.observed


@given(st.integers(1, 40), st.data())
def test_bisection_finds_the_layer_with_few_measurements(layers: int, data):
    broken = data.draw(st.integers(-1, layers))
    asked: list[int] = []

    def deviation(place: int) -> float:
        asked.append(place)
        return 1.0 if place > broken else 1e-7

    found = first_diverging(layers, deviation, 1e-3)
    assert found.layer == broken
    assert len(asked) == len(set(asked)) <= 3 + int(np.log2(layers) + 1)


def test_a_deviation_that_is_no_number_counts_as_one():
    assert first_diverging(4, lambda place: float("nan") if place > 2 else 0.0, 1e-3).layer == 2


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4), st.integers(31, 40))
def test_what_is_left_is_what_was_needed(needed: set[int], count: int):
    left = minimal(list(range(count)), lambda items: needed <= set(items))
    assert set(left) == needed


class Engine:
    """Changes the output of the request that holds token 7, at position 3, when another request holds token 5."""

    def __init__(self) -> None:
        self.runs = 0

    def differs(self, requests: Sequence[Request]) -> Change | None:
        self.runs += 1
        prompts = {request.id: request.prompt_token_ids or () for request in requests}
        for request in requests:
            others = [tokens for name, tokens in prompts.items() if name != request.id]
            if 7 in prompts[request.id] and request.max_tokens > 3 and any(5 in tokens for tokens in others):
                return Change(request.id, 3, (1, 2))
        return None


def test_a_reproducer_has_the_fewest_requests_the_shortest_prompts_and_the_fewest_tokens():
    engine = Engine()
    prompts = {"a": (1, 2, 3, 4, 6), "b": (9, 9, 5, 9, 9, 9), "c": tuple(range(10, 40)), "d": (8, 8, 7, 8, 8, 8, 8)}
    requests = [Request(id=name, prompt_token_ids=ids, max_tokens=16) for name, ids in prompts.items()]
    change = engine.differs(requests)
    assert change is not None
    found = shrink(requests, change, engine.differs)
    assert [(request.id, request.prompt_token_ids, request.max_tokens) for request in found.requests] == [
        ("b", (5,), 1),
        ("d", (7,), 4),
    ]
    assert found.complete
    assert found.runs == engine.runs - 1
    assert found.words() == "2 requests of 2 prompt tokens and 5 output tokens reproduce it"
    assert [row.id for row in Workload.parse(as_workload("minimal", found.requests)).rows] == ["b", "d"]


def test_the_budget_is_kept_and_said():
    engine = Engine()
    requests = [Request(id="x", prompt_token_ids=(5,) * 50, max_tokens=4)]
    requests += [Request(id="y", prompt_token_ids=(1,) * 50 + (7,) + (1,) * 50, max_tokens=4)]
    found = shrink(requests, Change("y", 3, (1, 2)), engine.differs, budget=5)
    assert engine.runs == found.runs == 5
    assert not found.complete
    assert found.words().endswith("(not yet minimal)")


TRITON = {"operators": {"kda_state_merge": "triton", "kda_local_state": "triton"}}


def test_kernels_that_cannot_run_here_are_interpreted(hybrid):
    """Right as shipped; with a state that is not handed on, wrong from the second rank on."""
    pytest.importorskip("triton")
    verdict = asked(hybrid, "base", cp=2, **TRITON)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.confidence is Confidence.HEURISTIC
    assert any("interpreted, not run on a GPU" in gap for gap in verdict.gaps)
    lost = replaces(f"{OPS}/kda_state_merge/triton.py", ("now = tl.dot(step, now,", "now = 0 * tl.dot(step, now,"))
    verdict = asked(hybrid, "lost-state", lost, cp=2, **TRITON)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "changes at token" in verdict.observed
    assert "not shrunk" in verdict.observed


def test_a_kernel_that_is_never_launched_is_not_confirmed(hybrid):
    pytest.importorskip("triton")
    torch_form = "target_engine.ops.kda_state_merge.torch"
    aside = replaces(
        f"{OPS}/kda_state_merge/triton.py",
        (
            "    def __call__(self,",
            "    def __call__(self, *given: Tensor) -> Tensor:\n"
            f"        from {torch_form} import Implementation as Other\n\n"
            "        return Other(None)(*given)\n\n"
            "    def unused(self,",
        ),
    )
    verdict = asked(hybrid, "aside", aside, cp=2, operators={"kda_state_merge": "triton"})
    assert verdict.status is Status.UNSUPPORTED, verdict.line()
    assert "no kernel" in verdict.observed
