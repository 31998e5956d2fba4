"""Triton kernels under a cut, interpreted with the rounding of the hardware: products that lose digits are found."""

from __future__ import annotations

import pytest

from feedback.sharding.probe import PROBE
from feedback.verdict import Confidence, Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import OPS, replaces
from tests.target_engine.hybrid_model import make_hybrid

__all__ = ["bed"]

pytest.importorskip("triton")
MERGE = {"kda_state_merge": "triton"}


@pytest.fixture(scope="module")
def hybrid(bed: Bed) -> Bed:
    return Bed(bed.folder, bed.pool, make_hybrid(bed.folder / "hybrid"))


def asked(bed: Bed, name: str, plant=None, **launch) -> Verdict:
    workload = write_workload(bed.folder / "small.jsonl", 3, 4)
    tree = bed.tree(name, plant, **launch)
    question = bed.question(tree, workload, base=bed.tree("base", **launch), operators=("kda_chunk",))
    return PROBE.run(question, bed.context())


def test_tf32x3_is_confirmed_as_far_as_interpretation_goes(hybrid):
    verdict = asked(hybrid, "base", cp=2, operators=MERGE)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.confidence is Confidence.HEURISTIC
    assert any("interpreted, not run on a GPU" in gap for gap in verdict.gaps)


def test_a_merge_at_the_default_precision_is_refuted_and_told_as_precision(hybrid):
    default = replaces(f"{OPS}/kda_state_merge/triton.py", (', input_precision="tf32x3")', ")"))
    verdict = asked(hybrid, "default-precision", default, cp=2, operators=MERGE)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "first at step merge" in verdict.observed
    assert "vanishes with a float64 kda_state_merge: precision, not logic" in verdict.observed
    assert "grows with shards" in verdict.observed
    assert verdict.at[0].operator == "kda_chunk"
    assert verdict.next == "kernels"
