"""The operator plan: complete for every strategy, true to the shapes of the model, and wrong plans are one line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from target_engine import cli
from target_engine.adapter import model_sizes
from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.models.shapes import expected_shapes
from target_engine.ops import registry
from target_engine.parallel import strategy
from target_engine.parallel.weights import READERS, named
from tests.target_engine.hybrid_model import hybrid_dims
from tests.tiny_model import make_tiny_llama, tiny_dims

LLAMA = ModelConfig.from_dict(tiny_dims(num_attention_heads=9, num_key_value_heads=3, head_dim=8), "test")
HYBRID = ModelConfig.from_dict(hybrid_dims(linear_num_heads=4), "test")


def config(**values: Any) -> LaunchConfig:
    return LaunchConfig.parse({"max_model_len": 64, "prefill_chunk": 20} | values)


@pytest.mark.parametrize(
    ("cp", "layer_split"), [(1, False), *((cp, split) for cp in (2, 3, 4) for split in (False, True))]
)
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_every_operator_of_the_model_is_in_the_plan(model: ModelConfig, tp: int, cp: int, layer_split: bool) -> None:
    launch = config(tp=tp, cp=cp, layer_split=layer_split)
    rows = strategy.plan(launch, model)
    assert {row.operator for row in rows} == set(registry.running(model_sizes(launch, model)))
    for row in rows:
        spec = registry.specification(row.operator)
        assert set(row.shapes) == set(row.local) == set(row.cuts) == {tensor.name for tensor in spec.tensors}
        if row.sharding is None:
            assert row.note
            assert row.local == row.shapes
            continue
        (sharding,) = (each for each in spec.shardings if each.name == row.sharding)
        assert (row.axis, row.ranks) == (sharding.axis, {"tp": tp, "cp": cp}[sharding.axis])
        assert row.ranks > 1
        assert row.tolerance is not None
        assert row.tolerance.reason
        cut = {name for name in row.shapes if row.local[name] != row.shapes[name]}
        assert all(row.cuts[name] != "replicated" for name in cut), "what is smaller on a rank is told to be cut"
    tensor_cuts = {row.operator for row in rows if row.axis == "tp"}
    assert bool(tensor_cuts) == (tp > 1)
    if tp > 1:
        uncut = {"rotary", "rms_norm", "sampling"}
        assert tensor_cuts == set(registry.running(model_sizes(launch, model))) - uncut


def test_shapes_are_those_of_the_ranks() -> None:
    rows = strategy.plan(config(tp=2, cp=4), HYBRID)
    heads, context = (row for row in rows if row.operator == "kda_chunk")
    assert (heads.shapes["q"], heads.local["q"]) == ((20, 4, 8), (20, 2, 8))
    assert (context.shapes["q"], context.local["q"]) == ((20, 2, 8), (5, 2, 8))
    assert context.collective == "all_gather + merge"
    assert context.steps == ("local_state", "chain", "gather", "merge", "output")
    down = next(row for row in rows if row.role == "mlp output" and row.axis == "tp")
    assert (down.sharding, down.collective, down.local["weight"]) == ("rows", "all_reduce", (32, 24))
    output = next(row for row in strategy.plan(config(tp=2), LLAMA) if row.role == "attention output")
    assert (output.sharding, output.shapes["x"], output.local["x"]) == ("head_rows", (20, 72), (20, 48))


def test_decodes_under_layer_split_go_to_the_owner() -> None:
    rows = strategy.plan(config(cp=2, layer_split=True), LLAMA)
    read = next(row for row in rows if row.operator == "attention_decode")
    assert (read.sharding, read.collective) == ("layers", "broadcast")
    written = next(row for row in rows if row.operator == "kv_write" and row.phase == "decode")
    assert (written.collective, written.cuts["k"]) == ("none", "replicated")
    assert "owner" in written.cuts["k_cache"]


@pytest.mark.parametrize(
    ("values", "tokens", "line"),
    [
        ({"tp": 16}, None, "tp 16 is more than the model's 4 query heads: give at most 4"),
        ({"tp": 3}, None, "tp 3 does not divide the 4 linear heads: give one of 1, 2, 4"),
        ({"cp": 4}, 3, "cp 4 is more than the 3 tokens of the longest prefill step: give at most 3"),
    ],
)
def test_a_wrong_plan_is_one_line(values: dict[str, int], tokens: int | None, line: str) -> None:
    with pytest.raises(EngineError, match=line) as caught:
        strategy.plan(config(**values), HYBRID, tokens)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_smaller_than_the_ranks_tells_how_many_there_may_be() -> None:
    found = strategy.problems(config(tp=4), replace(LLAMA, vocab_size=3))
    assert found == ["tp 4 is more than the vocabulary of 3: give at most 3"]


@pytest.mark.parametrize(("cached", "slots"), [(False, 3), (True, 15)])
def test_state_slots_are_the_same_number_everywhere(cached: bool, slots: int) -> None:
    launch = config(max_batch=3, prefix_cache=cached, tp=2, cp=2)
    assert launch.state_slots == slots
    rows = [row for row in strategy.plan(launch, HYBRID) if "state" in row.shapes]
    assert {row.operator for row in rows} == {"short_convolution", "kda_chunk", "kda_recurrent"}
    assert {row.shapes["state"][0] for row in rows} == {slots}
    assert model_sizes(launch, HYBRID).state_slots == slots
    assert model_sizes(launch, LLAMA).state_slots == 0
    cases = registry.specification("kda_recurrent").microbench(model_sizes(launch, HYBRID))
    assert {case.dims["X"] for case in cases} == {slots}


WHOLE = (
    "model.norm.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "linear_attn.norm.weight",
    "linear_attn.decay_down_proj.weight",
    "linear_attn.gate_down_proj.weight",
)
"""Ends of the names of tensors that every rank has whole: none of them has heads, columns or vocabulary."""


def test_every_tensor_is_cut_for_its_reader_or_whole_on_purpose() -> None:
    ends: set[str] = set()
    for model in (LLAMA, HYBRID, replace(LLAMA, tie_word_embeddings=False)):
        for name in expected_shapes(model):
            known = [end for end in (*READERS, *WHOLE) if name.endswith(end)]
            assert len(known) == 1, (name, known)
            ends.update(known)
    assert ends == {*READERS, *WHOLE}, "no end is left over"
    for operator, sharding, argument in READERS.values():
        assert argument in {tensor.name for tensor in registry.specification(operator).named("constant")}
        assert named(operator, sharding).axis == "tp"


def test_launch_parameters_that_no_model_can_have() -> None:
    for values, line in (
        ({"layer_split": True}, "layer_split: there is one context-parallel rank"),
        ({"cp": 21}, "cp: 21 context-parallel ranks cannot share out a prefill of at most 20 tokens"),
        ({"tp": 0}, "tp: "),
        ({"rank_timeout": 0}, "rank_timeout: "),
    ):
        with pytest.raises(EngineError, match=line):
            config(**values)


def test_the_command_prints_the_plan(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["target-engine", "plan", "--profile", "first_run", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    model = ("--model", str(tiny_model))
    code, out, err = run(*model, "--tp", "2", "--cp", "4", "--layer-split")
    assert (code, err) == (0, "")
    assert "tp 2 x cp 4, Layer Split" in out
    assert "linear (mlp output x 2), prefill: rows over tp 2, combined by all_reduce" in out
    assert "weight [64, 128] -> [64, 64]: columns K (input rows)" in out
    assert "equals target_engine/ops/linear/reference.py on the whole inputs of one rank" in out
    code, out, err = run(*model, "--tp", "2", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["operator"] for row in rows} == set(registry.running(model_sizes(config(tp=2), LLAMA)))
    assert rows[0]["tolerance"]["reason"]
    for wrong in (("--tp", "3"), ("--cp", "3", "--tokens", "2"), ("--cp", "600"), ("--layer-split",), ("--tp", "0")):
        code, out, err = run(*model, *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1), wrong
        assert err.startswith("error: ")


def test_the_plan_needs_no_torch(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path / "model")
    arguments = ["plan", "--profile", "first_run", "--model", str(tmp_path / "model"), "--tp", "2"]
    program = (
        "import sys\nfrom target_engine.cli import app\n"
        f"app({arguments!r}, standalone_mode=False)\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all_reduce" in done.stdout
