"""Matching: facts and sources in, moves and refusals out."""

import dataclasses
import math
import random

import pytest

from feedback.target import Parameter
from skeletons.library import Library
from skeletons.matching import Opportunity, opportunities
from skeletons.skeleton import Evidence
from skeletons.view import TargetView
from tests.skeletons.support import TODAY, library, operator

SPACE = (
    Parameter(name="max_batch", kind="int", values=(1, 2, 4, 8, 16, 32), default=4, doc=""),
    Parameter(
        name="dtype", kind="choice", values=("float32", "bfloat16"), default="float32", doc="", changes_numerics=True
    ),
    Parameter(name="prefix_cache", kind="bool", values=(False, True), default=False, doc=""),
    Parameter(name="threads", kind="int", values=(0, 1, 2, 4, 8), default=0, doc=""),
    Parameter(name="prefill_chunk", kind="int", values=(64, 128, 256), default=128, doc=""),
)

CROWDED = {
    "launch.max_batch": 4,
    "launch.dtype": "float32",
    "launch.prefix_cache": False,
    "launch.threads": 0,
    "launch.prefill_chunk": 128,
    "machine.cores": 2,
    "machine.bf16": True,
    "machine.compiler": True,
    "queue.waiting_mean": 6.0,
    "decode.occupancy": 1.0,
    "decode.rows_mean": 3.9,
    "prefix.repeat_share": 0.4,
    "prefill.tokens_per_step": 120.0,
    "share.phase.decode": 0.6,
    "share.phase.mixed": 0.3,
    "share.op.projections": 0.2,
    "share.op.output": 0.1,
}

PROJECTIONS = """
import torch.nn.functional as F

class Pair:
    def __init__(self, a, b):
        self.a = a
        self.b = b

    def __call__(self, x):
        return F.linear(x, self.a), F.linear(x, self.b)
"""
OUTPUT = """
import torch.nn.functional as F

class One:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return F.linear(x, self.w)
"""
TENSORS = [("x", ("N", "K"), "compute", "runtime"), ("y", ("N", "M"), "compute", "output")]
OPERATORS = (
    operator("pair", "projections", TENSORS, [{"N": 1}], "ops/pair.py"),
    operator("out", "output", TENSORS, [{"N": 1}], "ops/out.py"),
)
SOURCES = {"ops/pair.py": PROJECTIONS, "ops/out.py": OUTPUT, "idle.py": "x = 1\n", "notes.txt": "F.linear"}


def view(facts=None, **extra) -> TargetView:
    given = {"sources": SOURCES, "operators": OPERATORS, "facts": CROWDED | (facts or {}), "launch_space": SPACE}
    return TargetView(**(given | extra))


def named(found: list[Opportunity], name: str) -> list[Opportunity]:
    return [o for o in found if o.skeleton == name]


@pytest.fixture(scope="module")
def shipped() -> Library:
    return library()


@pytest.fixture(scope="module")
def found(shipped):
    return opportunities(shipped, view())


def test_every_skeleton_ends_in_an_offer_or_a_refusal_with_a_reason(shipped, found):
    offered, declined = found
    assert {s.name for s in shipped} == {o.skeleton for o in offered} | {d.skeleton for d in declined}
    assert all(d.reason for d in declined)


def test_more_slots_are_offered_up_to_what_can_be_used(found):
    moves = named(found[0], "larger_batch")
    assert [dict(m.launch) for m in moves] == [{"max_batch": 8}, {"max_batch": 16}]
    assert moves[0].gain_mean < moves[1].gain_mean  # 9.9 requests on average can use 16 slots better than 8
    assert dict(moves[0].change.launch) == {"max_batch": 8}
    assert not moves[0].change.files


def test_launch_moves_carry_what_changes_the_numbers(found):
    (narrow,) = named(found[0], "narrow_weights")
    assert narrow.changes_numerics
    assert dict(narrow.launch) == {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("facts", "skeleton", "reason"),
    [
        ({"queue.waiting_mean": 0.0}, "larger_batch", "queue.waiting_mean = 0 is not > 0.5"),
        ({"queue.waiting_mean": None}, "larger_batch", "queue.waiting_mean was not observed"),
        ({"decode.occupancy": 0.3}, "larger_batch", "the slots there are must be the limit"),
        ({"machine.bf16": False}, "narrow_weights", "emulated"),
        ({"launch.dtype": "bfloat16"}, "narrow_weights", "there must be something to narrow"),
        ({"prefix.repeat_share": 0.01}, "prefix_reuse", "enough prompt tokens must repeat"),
        ({"launch.threads": 2}, "threads_match_cores", "must differ from the number of cores"),
        ({"prefill.tokens_per_step": 20.0}, "prefill_chunk", "is not >= 102 (launch.prefill_chunk)"),
        ({"share.phase.decode": None, "share.phase.mixed": None}, "narrow_weights", "was not observed"),
        ({"share.op.projections": 0.0}, "fuse_parallel_projections", "acts on 0.0% of the time"),
    ],
)
def test_a_condition_that_fails_is_the_reason(shipped, facts, skeleton, reason):
    offered, declined = opportunities(shipped, view(facts))
    assert not named(offered, skeleton)
    assert any(reason in d.reason for d in declined if d.skeleton == skeleton)


@pytest.mark.parametrize(("threads", "value"), [(1, 2), (8, 2)])
def test_threads_go_to_the_number_of_cores(shipped, threads, value):
    offered, _ = opportunities(shipped, view({"launch.threads": threads}))
    (move,) = named(offered, "threads_match_cores")
    assert dict(move.launch) == {"threads": value}


def test_the_parameter_goes_by_the_targets_name(shipped):
    space = (Parameter(name="max_num_seqs", kind="int", values=(4, 8, 64), default=4, doc=""),)
    offered, declined = opportunities(shipped, view(launch_space=space))
    assert {k for o in offered for k in o.launch} == {"max_num_seqs"}
    assert any("the target has no start parameter dtype" in d.reason for d in declined)


def test_all_sites_are_one_move_with_its_parts_by_role(found):
    (packed,) = named(found[0], "prepack_constant_weights")
    assert packed.share == pytest.approx(0.3)
    assert packed.operators == ("out", "pair")
    assert sorted(packed.change.files) == ["ops/out.py", "ops/pair.py"]
    assert [(p.roles, pytest.approx(p.share)) for p in packed.parts] == [(("output",), 0.1), (("projections",), 0.2)]
    assert list(packed.parts[0].change.files) == ["ops/out.py"]
    assert len({packed.key, *(p.key for p in packed.parts)}) == 3


def test_gains_are_bounded_by_the_share(found):
    for move in found[0]:
        assert move.gain_mean < move.gain_bound
        assert math.isfinite(move.gain_sd)
        assert move.reasons


def test_the_same_content_has_the_same_key_and_change(shipped, found):
    again, _ = opportunities(library(), view())
    assert [o.key for o in again] == [o.key for o in found[0]]
    assert [dict(o.change.files) for o in again] == [dict(o.change.files) for o in found[0]]


def test_an_edited_source_has_another_key(shipped, found):
    edited = {**SOURCES, "ops/out.py": OUTPUT + "\n# edited\n"}
    offered, _ = opportunities(shipped, view(sources=edited))
    (before,), (after,) = (named(f, "prepack_constant_weights") for f in (found[0], offered))
    assert before.key != after.key


def test_the_order_of_the_library_does_not_matter(shipped, found):
    names = list(shipped.skeletons)
    for seed in range(3):
        random.Random(seed).shuffle(names)
        shuffled = dataclasses.replace(shipped, skeletons={name: shipped.skeletons[name] for name in names})
        offered, declined = opportunities(shuffled, view())
        assert [o.key for o in offered] == [o.key for o in found[0]]
        assert declined == found[1]


def test_implementations_that_are_not_selected_are_not_edited(shipped):
    info = OPERATORS[1].model_copy(
        update={"implementations": ("plain", "other"), "files": {"plain": "ops/out.py", "other": "ops/o.py"}}
    )
    sources = {**SOURCES, "ops/o.py": OUTPUT}
    offered, _ = opportunities(shipped, view(sources=sources, operators=(OPERATORS[0], info)))
    assert "ops/o.py" not in named(offered, "prepack_constant_weights")[0].change.files


def test_refutations_lower_the_prediction_and_end_the_offer(tmp_path):
    refuted = Evidence(
        kind="incremental",
        supports=False,
        effect=0.97,
        interval=(0.95, 0.99),
        share=0.3,
        environment={},
        workload="w",
        date=TODAY,
    )
    found = library(tmp_path)
    before = named(opportunities(found, view())[0], "prepack_constant_weights")[0]
    found = found.record_evidence("prepack_constant_weights", refuted)
    after = named(opportunities(found, view())[0], "prepack_constant_weights")[0]
    assert after.gain_mean < before.gain_mean
    assert after.key == before.key
    for effect in (0.96, 0.95):
        found = found.record_evidence("prepack_constant_weights", refuted.model_copy(update={"effect": effect}))
    offered, declined = opportunities(found, view())
    assert not named(offered, "prepack_constant_weights")
    assert any("refuted 3 times in a row" in d.reason for d in declined)


def test_an_environment_outside_the_scope_is_refused(shipped):
    elsewhere = dataclasses.replace(shipped, versions={"torch": "1.0"}, platform="win32")
    _, declined = opportunities(elsewhere, view())
    reasons = {d.skeleton: d.reason for d in declined}
    assert reasons["prepack_constant_weights"] == "torch 1.0 is older than 2.3"
    assert reasons["native_paged_decode_attention"] == "platform win32 is not one of linux"


def test_a_transformation_that_breaks_is_a_refusal(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "skeleton.toml").write_text(
        'name = "mine"\ntitle = "t"\nversion = 1\nkind = "code"\ncause = "c"\nsymptom = "s"\n'
        'speedup = { mean = 0.1, sd = 0.1, source = "assumed" }\n'
    )
    (folder / "transform.py").write_text(
        "def find(view):\n    return 1 / 0\n\ndef rewrite(view, sites):\n    return None\n"
    )
    _, declined = opportunities(library(tmp_path), view())
    assert any("ZeroDivisionError" in d.reason for d in declined if d.skeleton == "mine")
