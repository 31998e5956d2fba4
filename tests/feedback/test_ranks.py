"""The ranks layer: real processes and real collectives, in a worker that is alone in its network."""

from __future__ import annotations

import pytest

from feedback.probe import discover
from feedback.ranks.probe import PROBE
from feedback.verdict import Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import PACKAGE, replaces
from tests.feedback.planted_sharding import combining
from tests.target_engine.hybrid_model import make_hybrid

__all__ = ["bed"]


@pytest.fixture(scope="module")
def hybrid(bed: Bed) -> Bed:
    return Bed(bed.folder, bed.pool, make_hybrid(bed.folder / "hybrid"))


def asked(bed: Bed, name: str, plant=None, **launch) -> Verdict:
    workload = write_workload(bed.folder / "small.jsonl", 4, 6)
    tree = bed.tree(name, plant, **launch)
    verdict = PROBE.run(bed.question(tree, workload, base=bed.tree("base", **launch)), bed.context())
    if "no network of its own" in verdict.observed:
        pytest.skip(verdict.line())
    return verdict


def test_it_is_found():
    assert discover()["ranks"] is PROBE


@pytest.mark.parametrize("launch", [{"tp": 2}, {"tp": 2, "cp": 2, "layer_split": True}], ids=str)
def test_the_clean_engine_is_confirmed(hybrid, launch):
    verdict = asked(hybrid, "base", **launch)
    assert verdict.status is Status.CONFIRMED, verdict.line()


def test_one_rank_is_unsupported(bed):
    assert asked(bed, "base").status is Status.UNSUPPORTED


def test_what_cannot_run_here_is_unsupported(hybrid):
    verdict = asked(hybrid, "base", cp=2, operators={"kda_state_merge": "triton"})
    if verdict.status is not Status.CONFIRMED:  # which it is where there is a GPU
        assert verdict.status is Status.UNSUPPORTED
        assert "kda_state_merge cannot run here" in verdict.observed


def test_a_missing_all_reduce_is_refuted(bed):
    lost = combining("linear", ("y = group.all_reduce(widened(y)).to(y.dtype)", "pass"))
    verdict = asked(bed, "no-reduce", lost, tp=2)
    assert verdict.status is Status.REFUTED, verdict.line()


def test_a_rank_that_dies_is_one_line_that_names_it(bed):
    dies = replaces(
        f"{PACKAGE}/parallel/worker.py",
        ("\nif __name__", "\nimport threading, os\nthreading.Timer(20, os._exit, (7,)).start()\n\nif __name__"),
    )
    head = "    def run(self, batch: Batch) -> Tensor:"
    waits = f"{head}\n        import time\n\n        time.sleep(1.0)\n        return self.run_now(batch)\n\n"
    slow = replaces(f"{PACKAGE}/execution/runner.py", (head, waits + head.replace("run(", "run_now(")))

    def plant(root):
        return (*dies(root), *slow(root))

    verdict = asked(bed, "dies", plant, tp=2)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "rank 1 of 2" in verdict.observed


def test_ranks_that_are_not_there_are_no_confirmation(bed):
    """An engine that computes on one rank, whatever it is told, gives the right answers."""
    alone = replaces(
        f"{PACKAGE}/engine.py",
        ("return open_ranks(config, checkpoint, spans)", "return Runner.open(config, checkpoint, spans)"),
    )
    verdict = asked(bed, "alone", alone, tp=2)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "0 other processes computed" in verdict.observed


def test_a_rank_that_hangs_is_named(bed):
    sleeps = "import time\nfrom target_engine.execution.runner import Runner\nRunner.run = lambda *_: time.sleep(600)\n"
    hangs = replaces(f"{PACKAGE}/parallel/worker.py", ("\nif __name__", f"\n{sleeps}\nif __name__"))
    verdict = asked(bed, "hangs", hangs, tp=2, rank_timeout=5)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "rank 1 of 2" in verdict.observed


def test_an_implementation_that_says_it_cannot_run_is_not_excused(bed):
    """The one it came from can."""
    says = 'def unavailable(dtype):\n    return "no"\n\n\nclass Implementation'
    excuse = replaces(f"{PACKAGE}/ops/linear/torch.py", ("class Implementation", says))
    verdict = asked(bed, "excuse", excuse, tp=2)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "before the change it could" in verdict.observed
