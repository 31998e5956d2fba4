"""The kernel layer on the engine's own Triton implementations."""

from __future__ import annotations

import pytest

from feedback.kernels.probe import PROBE, triton_of
from feedback.probe import discover
from feedback.target import Case, OperatorInfo
from feedback.verdict import Confidence, Status, Verdict
from target_engine import seeded
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import OPS, replaces, unchanged

__all__ = ["bed"]

pytest.importorskip("triton")

ROUGH = replaces(f"{OPS}/kda_state_merge/triton.py", (', input_precision="tf32x3"', ""))
OFF_BY_ONE = replaces(f"{OPS}/gated_norm/triton.py", ("axis=1) / V", "axis=1) / BLOCK_V"))
CRASH = replaces(
    f"{OPS}/gated_norm/triton.py", ("x, gate = x.contiguous()", "import ctypes; ctypes.string_at(0); x, gate = x")
)


@pytest.fixture(scope="module")
def hybrid(bed: Bed) -> Bed:
    """The test bed on a small hybrid model."""
    folder = bed.folder / "hybrid"
    folder.mkdir()
    seeded.write(folder, seeded.SEEDED_MODELS["kda-hybrid-tiny"].config(), 1)
    return Bed(bed.folder, bed.pool, folder)


def asked(bed: Bed, name: str, plant, *operators: str) -> Verdict:
    launch = {"cp": 2}  # context parallelism runs the merge
    candidate = bed.tree(name, plant, **launch)
    workload = write_workload(bed.folder / "small.jsonl", 3, 4)
    question = bed.question(candidate, workload, base=bed.tree("base", **launch), operators=operators)
    return PROBE.run(question, bed.context())


def test_the_layer_is_found_by_its_folder():
    assert discover()["kernels"] is PROBE


def test_the_merge_holds_and_where_it_does_not_compile_is_a_fact(hybrid):
    verdict = asked(hybrid, "clean", unchanged, "kda_state_merge")
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.confidence is Confidence.HEURISTIC
    assert verdict.metrics["worst_error_ratio"] < 1.0
    assert verdict.metrics["cuda:90_registers"] > 0
    facts = hybrid.evidence(verdict.evidence)["applicability"]
    assert [(fact["kernel"], fact["device"]) for fact in facts] == [("kda_state_merge_kernel", "hip:gfx942")]
    assert "tf32x3" in facts[0]["fact"]


def test_the_default_precision_of_the_merge_is_refuted_at_its_line(hybrid):
    verdict = asked(hybrid, "rough", ROUGH, "kda_state_merge")
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "precision, not logic; tf32 in one product" in verdict.observed
    place = verdict.at[0]
    assert (place.operator, place.implementation) == ("kda_state_merge", "triton")
    assert place.file == f"{OPS}/kda_state_merge/triton.py"
    lines = (hybrid.folder / "rough" / place.file).read_text().splitlines()
    assert "now = tl.dot(step, now)" in lines[(place.line or 0) - 1]


def test_a_mistake_of_logic_is_refuted_as_one(hybrid):
    verdict = asked(hybrid, "off", OFF_BY_ONE, "gated_norm")
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "logic, not precision" in verdict.observed
    assert verdict.at[0].file == f"{OPS}/gated_norm/triton.py"


def test_a_crash_is_a_refutation(hybrid):
    verdict = asked(hybrid, "crash", CRASH, "gated_norm")
    assert verdict.status is Status.REFUTED
    assert "SIGSEGV" in verdict.observed


def test_operators_without_triton_are_not_its_business(hybrid):
    verdict = asked(hybrid, "clean", unchanged, "rms_norm")
    assert verdict.status is Status.UNSUPPORTED
    assert "no touched operator has a Triton implementation" in verdict.observed


def test_an_interpreter_that_cannot_be_believed_is_unsupported(hybrid, monkeypatch):
    monkeypatch.setattr(
        "feedback.kernels.trees._ENGINE_ADAPTER",
        "import triton\n\ntriton.__version__ = '3.10.0'\n\nfrom {adapter} import create as create_engine\n\n"
        "from .bench import Bench\n\n\ndef create():\n    return Bench(create_engine())\n",
    )
    verdict = asked(hybrid, "clean", unchanged, "gated_norm")
    assert verdict.status is Status.UNSUPPORTED
    assert "Triton 3.10.0 is not a version" in verdict.observed


def test_the_selected_implementation_is_taken_if_it_is_triton(tmp_path):
    files = {"torch": "torch.py", "fast": "fast.py", "triton": "triton.py"}
    for name in files.values():
        (tmp_path / name).write_text("" if name == "torch.py" else "@triton.jit\n")

    def info(selected: str, **more) -> OperatorInfo:
        given = {"name": "x", "role": "x", "doc": "", "tensors": (), "tolerance": {}, "files": files} | more
        cases = (Case(name="c", dims={}),)
        return OperatorInfo(cases=cases, implementations=tuple(files), selected=selected, **given)

    assert triton_of(info("triton"), tmp_path) == "triton"
    assert triton_of(info("torch"), tmp_path) == "fast"
    assert triton_of(info("torch", files={"torch": "torch.py"}), tmp_path) is None
