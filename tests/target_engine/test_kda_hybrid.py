"""The hybrid model: what its folder says, how it is made from a seed, and that it computes what its operators' plain
references compute token by token.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from feedback.target import OperatorInfo, Scored, StepReport
from target_engine import seeded
from target_engine.adapter import create, model_sizes
from target_engine.checkpoint import Checkpoint, locate
from target_engine.engine import Engine
from target_engine.errors import EngineError
from target_engine.execution.reference import ReferenceRunner
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.models.shapes import expected_shapes
from target_engine.ops import registry
from target_engine.scheduling.request import SamplingParams
from target_engine.seeded import SEEDED_MODELS, made
from target_engine.spans import OPERATORS
from target_engine.tokenizer import Tokenizer
from target_engine.weights import Weights
from tests.target_engine.hybrid_model import PlainHybrid, hybrid_dims, make_hybrid


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hybrid(tmp_path_factory.mktemp("hybrid") / "model")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "infra-agent" / "seeded"


def launch(model: Path | str, **values: Any) -> LaunchConfig:
    return LaunchConfig(model=str(model), **({"max_model_len": 256, "threads": 1, "block_size": 4} | values))


# The folder


def test_config_json_says_which_layer_is_which() -> None:
    config = ModelConfig.from_dict(hybrid_dims(), "config.json")
    assert config.kda_layers == (0, 2)
    assert (config.linear_num_heads, config.linear_key_dim, config.linear_value_dim, config.conv_width) == (2, 8, 6, 4)
    shapes = expected_shapes(config)
    assert shapes["model.layers.0.linear_attn.v_proj.weight"] == (12, 32)
    assert shapes["model.layers.2.linear_attn.dt_bias"] == (2, 8)
    assert "model.layers.1.self_attn.q_proj.weight" in shapes
    assert not any(name.startswith(("model.layers.1.linear", "model.layers.0.self")) for name in shapes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["kda", "full"]}, "layer_types names 2 layers, num_hidden_layers is 3"),
        ({"layer_types": ["kda", "mamba", "full"]}, "layer_types has 'mamba'; a layer is 'kda' or 'full'"),
        ({"layer_types": ["full"] * 3}, "has no 'kda' layer"),
        ({"layer_types": ["kda"] * 3}, "has no 'full' layer"),
        ({"layer_types": 3}, "config.json: "),
        ({"linear_key_dim": 0}, "linear_key_dim must be at least 1, not 0"),
        ({"conv_width": 1}, "conv_width must be at least 2, not 1"),
        ({"linear_num_heads": "many"}, "config.json: "),
        ({"model_type": "mamba"}, "this engine runs 'llama' and 'kda_hybrid'"),
    ],
)
def test_a_bad_config_is_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        ModelConfig.from_dict(hybrid_dims() | change, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["layer_types", "linear_num_heads", "linear_key_dim", "linear_value_dim", "conv_width"]
)
def test_a_missing_field_is_named(name: str) -> None:
    values = hybrid_dims()
    del values[name]
    with pytest.raises(EngineError, match=f"the field '{name}' is missing"):
        ModelConfig.from_dict(values, "config.json")


def test_a_layout_differs_with_everything_that_a_state_depends_on() -> None:
    config = ModelConfig.from_dict(hybrid_dims(), "config.json")
    layouts = {config.state_layout("float32"), config.state_layout("bfloat16")}
    for change in ({"linear_num_heads": 1}, {"linear_key_dim": 6}, {"linear_value_dim": 8}, {"conv_width": 3}):
        layouts.add(replace(config, **change).state_layout("float32"))
    layouts.add(replace(config, layer_types=("full", "kda", "kda")).state_layout("float32"))
    layouts.add(config.state_layout("float32", ranks=2))
    assert len(layouts) == 8


def test_tensors_that_lack_or_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = make_hybrid(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.linear_attn.q_conv.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(EngineError, match=f"1 tensors are missing, the first is {name}"):
        Engine(launch(folder))
    save_file(tensors | {name: tensors[name][:, :2].copy()}, folder / "model.safetensors")
    with pytest.raises(EngineError, match=rf"{name} has the shape \[16, 2\], config.json asks for \[16, 4\]"):
        Engine(launch(folder))


def test_decays_stay_in_float32_when_the_rest_is_halved(hybrid: Path) -> None:
    with Weights(hybrid, ModelConfig.load(hybrid), torch.bfloat16) as weights:
        assert weights["model.layers.0.linear_attn.a_log"].dtype == torch.float32
        assert weights["model.layers.0.linear_attn.dt_bias"].dtype == torch.float32
        assert weights["model.layers.0.linear_attn.q_conv.weight"].dtype == torch.bfloat16


# Made from a seed


def test_a_known_id_is_made_once_and_has_its_digest(cache: Path) -> None:
    model = SEEDED_MODELS["kda-hybrid-tiny"]
    folder = locate(model.name)
    assert folder == model.path
    assert folder.parent == cache
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert Checkpoint.open(model.name).config.layer_types == ("kda", "kda", "kda", "full")
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert list(cache.iterdir()) == [folder], "scratch folders are left"


@pytest.mark.parametrize("name", ["kda-hybrid-small", pytest.param("kda-hybrid-base", marks=pytest.mark.slow)])
def test_every_size_has_its_digest(name: str, cache: Path) -> None:
    config = Checkpoint.open(name).config
    assert config.kda_layers
    assert len(config.kda_layers) < config.num_layers


def test_damage_is_repaired(cache: Path) -> None:
    model = SEEDED_MODELS["kda-hybrid-tiny"]
    folder = made(model)
    whole = (folder / "model.safetensors").read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:-4] + b"\0\0\0\0"):
        (folder / "model.safetensors").write_bytes(damage)
        assert made(model) == folder
        assert (folder / "model.safetensors").read_bytes() == whole
    (folder / "tokenizer.json").unlink()
    made(model)
    assert (folder / "tokenizer.json").is_file()
    assert list(cache.iterdir()) == [folder]


def test_what_an_interrupted_making_left_is_no_model(cache: Path) -> None:
    scratch = cache / ".making-1-left"
    scratch.mkdir(parents=True)
    (scratch / "config.json").write_text("{}")
    assert (locate("kda-hybrid-tiny") / "model.safetensors").is_file()


def test_several_may_make_one_model_at_once(cache: Path) -> None:
    model, found = SEEDED_MODELS["kda-hybrid-tiny"], []
    start = threading.Barrier(4)

    def make() -> None:
        start.wait()
        found.append(made(model))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [model.path] * 4
    assert list(cache.iterdir()) == [model.path]


def test_other_bytes_than_the_known_ones_are_refused(cache: Path) -> None:
    model = replace(SEEDED_MODELS["kda-hybrid-tiny"], seed=7)
    with pytest.raises(
        EngineError, match=r"kda-hybrid-tiny made on this machine have SHA-256 .*its arithmetic differs"
    ):
        made(model)
    assert not list(cache.iterdir())


def test_numbers_are_a_function_of_seed_and_name(tmp_path: Path) -> None:
    first, same, other = (
        load_file(make_hybrid(tmp_path / name, seed) / "model.safetensors")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)
    wider = load_file(make_hybrid(tmp_path / "d", 1, intermediate_size=64) / "model.safetensors")
    name = "model.layers.0.linear_attn.q_proj.weight"
    assert np.array_equal(first[name], wider[name])


def test_numbers_spread_as_they_should() -> None:
    numbers = seeded.uniform("x", (20000,), 0)
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.003
    rates = np.log1p(np.exp(seeded.values("dt_bias", (4000,), 0).astype(np.float64)))
    assert 0.9e-3 < rates.min() < 1.2e-3
    assert 0.08 < rates.max() < 0.11
    assert abs(np.median(rates) - 1e-2) < 2e-3
    decays = np.exp(seeded.values("a_log", (4000,), 0))
    assert 1.0 <= decays.min() < 1.1
    assert 15.8 < decays.max() <= 16.0


def test_the_tokenizer_spells_any_text(cache: Path) -> None:
    tokenizer = Tokenizer.load(locate("kda-hybrid-tiny"))
    text = "the people of the world: ünïcode 漢字 \n\t 🙂 and zebras"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < 512
    assert len(tokenizer.encode("the people")) < len("the people")
    assert tokenizer.chat([{"role": "user", "content": "hi"}])[0] == 1
    assert seeded.byte_alphabet() == sorted(__import__("tokenizers").pre_tokenizers.ByteLevel.alphabet())


def test_unknown_ids_name_the_known_ones() -> None:
    with pytest.raises(
        EngineError, match="known ids are smollm2-135m, kda-hybrid-tiny, kda-hybrid-small, kda-hybrid-base"
    ):
        locate("kda-hybrid-huge")


# What it computes


@settings(max_examples=8)
@given(tokens=st.lists(st.integers(0, 299), min_size=2, max_size=40), tied=st.booleans())
def test_the_engine_on_references_is_the_plain_model(
    tokens: list[int], tied: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Paging, batching, state slots and chunks change nothing: to a few units in the last place of float64."""
    folder = make_hybrid(tmp_path_factory.mktemp("plain"), tie_word_embeddings=tied)
    engine = Engine(launch(folder), runner=ReferenceRunner.open)
    found = engine.scorer.score(tokens[:1], tokens[1:], logits=True).logits
    np.testing.assert_allclose(found, PlainHybrid(folder).logits(tokens[:-1]), rtol=1e-9, atol=1e-9)


@settings(max_examples=8)
@given(data=st.data())
def test_the_torch_operators_compute_the_plain_model(data: st.DataObject, hybrid: Path) -> None:
    tokens = data.draw(st.lists(st.integers(0, 299), min_size=2, max_size=150))
    found = Engine(launch(hybrid)).scorer.score(tokens[:1], tokens[1:], logits=True).logits
    np.testing.assert_allclose(found, PlainHybrid(hybrid).logits(tokens[:-1]), atol=5e-4, rtol=1e-4)


def test_bfloat16_stays_close(hybrid: Path) -> None:
    ids = [(7 * index) % 297 + 3 for index in range(60)]
    exact, half = (
        Engine(launch(hybrid, dtype=dtype)).scorer.score(ids[:1], ids[1:], logits=True).logits
        for dtype in ("float32", "bfloat16")
    )
    p, q = (torch.tensor(logits).double().log_softmax(-1) for logits in (exact, half))
    assert (p.exp() * (p - q)).sum(-1).mean() < 0.02


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_every_layer_remembers(hybrid: Path, layer: int) -> None:
    """With the mixing of one layer taken out, what comes long after a changed token changes."""
    plain = PlainHybrid(hybrid)
    tokens = [(11 * index) % 297 + 3 for index in range(30)]
    whole = plain.logits(tokens)[-1]
    name = f"model.layers.{layer}." + ("linear_attn" if layer in plain.config.kda_layers else "self_attn")
    plain.weights[f"{name}.o_proj.weight"] = np.zeros_like(plain.weights[f"{name}.o_proj.weight"])
    without = plain.logits(tokens)[-1]
    assert np.abs(whole - without).max() > 0.05


# As its judge sees it


@pytest.mark.parametrize("hybrid_model", [False, True])
def test_the_operators_of_a_model_are_those_that_run(hybrid_model: bool, hybrid: Path, tiny_model: Path) -> None:
    folder = hybrid if hybrid_model else tiny_model
    engine = Engine(launch(folder, span_level=OPERATORS))
    named = set(registry.running(model_sizes(engine.config, engine.model_config)))
    assert any(registry.specification(name).linear for name in named) is hybrid_model
    assert {operator.name for operator in engine.runner.model.operators()} | {"sampling"} == named
    engine.add_request("r", [5, 6, 7], SamplingParams(3, ignore_eos=True))
    while engine.has_work:
        engine.step()
    assert {span.name for span in engine.spans.drain() if span.category == "op"} == named
    infos = [OperatorInfo.model_validate(item) for item in create().operators({"model": str(folder)})]
    assert {info.name for info in infos} == named
    assert all("microbench" in {tag for case in info.cases for tag in case.tags} for info in infos)


def test_a_context_parallel_launch_runs_the_merge_too(hybrid: Path, tiny_model: Path) -> None:
    config = {"model": str(hybrid), "cp": 2}
    names = {item["name"] for item in create().operators(config)}
    assert {"kda_local_state", "kda_state_merge"} <= names
    named = {item["name"] for item in create().operators(config | {"model": str(tiny_model)})}
    assert not any(registry.specification(name).linear for name in named)


def test_microbench_cases_of_the_hybrid_make_inputs_and_run(hybrid: Path) -> None:
    target, config = create(), {"model": str(hybrid), "max_batch": 2, "prefill_chunk": 16, "threads": 1}
    for info in map(OperatorInfo.model_validate, target.operators(config)):
        if not registry.specification(info.name).linear:
            continue
        for case in info.cases:
            if "microbench" in case.tags:
                inputs = target.operator_inputs(info.name, case.model_dump(), config, 0)
                constants = {t.name: inputs[t.name] for t in info.tensors if t.kind == "constant"}
                handle = target.operator_open(info.name, config, case.model_dump(), constants)
                outputs = target.operator_run(handle, inputs)
                assert set(outputs) == {t.name for t in info.tensors if t.kind in ("output", "inout")}


def test_a_session_serves_the_hybrid_like_any_model(hybrid: Path) -> None:
    session = create().start({"model": str(hybrid), "max_model_len": 256, "threads": 1, "prefix_cache": True})
    session.submit(
        [
            {"id": "text", "prompt": "the people of the world", "max_tokens": 6, "ignore_eos": True},
            {"id": "ids", "prompt_token_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "temperature": 1.0},
            {"id": "gone", "prompt_token_ids": [5], "max_tokens": 50, "ignore_eos": True},
        ]
    )
    StepReport.model_validate(session.step(2))
    session.abort(["gone"])
    report = StepReport.model_validate(session.step(100))
    assert {item.id: item.finish_reason for item in report.progress} == {"text": "length", "ids": "length"}
    result = session.score([{"prompt": [5, 6], "output": [7, 8, 9]}], logits=True)
    assert len(Scored.model_validate(result["scored"][0]).logprob) == 3
    metrics = session.metrics()
    assert all(isinstance(value, int | float) for value in metrics.values())
    slots, per_layer = 4 + 4 * 4, 3 * (2 * 8 + 2 * 8 + 2 * 6) + 2 * 8 * 6
    assert metrics["state_bytes"] == 2 * slots * per_layer * 4
    assert 0 < metrics["state_slots_peak"] <= slots
    session.close()
    session.close()


def test_llama_keeps_no_state(tiny_model: Path) -> None:
    engine = Engine(launch(tiny_model))
    assert engine.states is None
    assert engine.scheduler.recurrent is None
    assert engine.metrics()["state_bytes"] == engine.metrics()["state_slots_peak"] == 0


def test_no_memory_for_states_is_one_line(hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = torch.zeros

    def zeros(*shape: Any, **options: Any) -> Any:
        if len(shape) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(*shape, **options)

    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(EngineError, match="no memory for 4 state slots: lower max_batch"):
        Engine(launch(hybrid))


def test_config_json_of_the_known_models_is_read_back(cache: Path) -> None:
    for model in SEEDED_MODELS.values():
        config = ModelConfig.from_dict(json.loads(json.dumps(model.config())), model.name)
        for ranks in (1, 2, 4):
            assert config.linear_num_heads % ranks == config.num_heads % ranks == config.vocab_size % ranks == 0
