"""The operator layer covers the linear-attention operators through their specifications alone."""

from __future__ import annotations

import pytest

from feedback.operators.probe import PROBE
from feedback.verdict import Status, Verdict
from target_engine import seeded
from target_engine.ops import registry
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import OPS, Plant, replaces, unchanged

__all__ = ["bed"]

LINEAR = tuple(name for name in registry.operator_names() if registry.specification(name).linear)


@pytest.fixture(scope="module")
def hybrid(bed: Bed) -> Bed:
    """The test bed on a small hybrid model."""
    folder = bed.folder / "hybrid"
    folder.mkdir()
    seeded.write(folder, seeded.SEEDED_MODELS["kda-hybrid-tiny"].config(), 1)
    return Bed(bed.folder, bed.pool, folder)


def asked(bed: Bed, plant: Plant, operators: tuple[str, ...], dtype: str = "float32") -> Verdict:
    launch = {"dtype": dtype, "cp": 2}  # context parallelism runs two of them
    candidate = bed.tree(f"{plant.name.replace(' ', '-')}-{dtype}", plant.plant, **launch)
    workload = write_workload(bed.folder / "small.jsonl", 3, 4)
    base = bed.tree(f"base-{dtype}", **launch)
    return PROBE.run(bed.question(candidate, workload, base=base, operators=operators), bed.context())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_are_right(hybrid: Bed, dtype: str) -> None:
    verdict = asked(hybrid, Plant("clean", "", "", unchanged), LINEAR, dtype)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.metrics["operators"] == len(LINEAR)
    assert not any(name in gap for gap in verdict.gaps for name in LINEAR), verdict.gaps


def fault(name: str, operator: str, path: str, old: str, new: str) -> Plant:
    return Plant(name, "operators", operator, replaces(f"{OPS}/{path}", (old, new)), operators=(operator,))


FAULTS = [
    fault("decay a token late", "kda_chunk", "kda_chunk/torch.py", "chunked(g, wide)", "chunked(g.roll(1, 0), wide)"),
    fault("values left", "kda_local_state", "kda_local_state/torch.py", "values, keys], -1)", "keys, values], -1)"),
    fault("short runs cut", "short_convolution", "short_convolution/torch.py", "begins + l", "begins + past + 0 * l"),
    fault("queries as they come", "kda_recurrent", "kda_recurrent/torch.py", "unit(q.to(wide))", "q.to(wide)"),
    fault("rank before", "kda_state_merge", "kda_state_merge/torch.py", "m[rank] @", "m[rank - 1] @"),
    fault("rates without exp", "kda_gate", "kda_gate/torch.py", "-a_log.exp()", "-a_log"),
    fault("another gate", "gated_norm", "gated_norm/torch.py", "torch.sigmoid", "torch.tanh"),
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.name)
def test_a_planted_fault_is_refuted_with_its_operator(hybrid: Bed, plant: Plant) -> None:
    verdict = asked(hybrid, plant, plant.operators)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert verdict.at[0].operator == plant.operators[0]
    assert plant.says in verdict.line()


def test_a_fault_in_what_two_of_them_share_is_found_in_both(hybrid: Bed) -> None:
    verdict = asked(
        hybrid, fault("shared", "kda_local_state", "delta_chunks.py", "self.decay[part] * state", "state"), ()
    )
    assert verdict.status is Status.REFUTED, verdict.line()
    assert [place.operator for place in verdict.at] == ["kda_chunk", "kda_local_state"]
