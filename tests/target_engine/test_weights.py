"""Weights out of GGUF and safetensors: the same numbers, whatever the file, and one clear line for a bad one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from target_engine.checkpoint import Checkpoint, locate
from target_engine.errors import EngineError
from target_engine.gguf_import import convert
from target_engine.models.config import ModelConfig, scale_frequency
from target_engine.tokenizer import Tokenizer
from target_engine.weights import Weights, expected_shapes
from tests.tiny_model import make_tiny_gguf, make_tiny_llama, tiny_dims, tiny_weights

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_0", "Q5_1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read_all(model: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoint.open(str(model))
    with Weights(checkpoint.folder, checkpoint.config, dtype) as weights:
        return {name: weights[name] for name in expected_shapes(checkpoint.config)}


@pytest.mark.parametrize("kind", TYPES)
def test_a_gguf_file_gives_its_dequantised_tensors_in_hugging_face_order(tmp_path: Path, kind: str) -> None:
    config = tiny_dims()
    found = read_all(make_tiny_gguf(tmp_path / f"{kind}.gguf", kind))
    quantisation = gguf.GGMLQuantizationType[kind]
    for name, original in tiny_weights(config).items():
        expected = original
        if original.ndim == 2:  # rows are quantised one by one, so their order does not change their values
            expected = gguf.quants.dequantize(gguf.quants.quantize(original, quantisation), quantisation)
        np.testing.assert_array_equal(found[name].numpy(), expected.reshape(original.shape), err_msg=name)


def test_gguf_and_safetensors_agree(tmp_path: Path) -> None:
    from_gguf = read_all(make_tiny_gguf(tmp_path / "m.gguf", "F32", tie_word_embeddings=False))
    from_folder = read_all(make_tiny_llama(tmp_path / "m", tie_word_embeddings=False))
    assert from_gguf.keys() == from_folder.keys()
    assert "lm_head.weight" in from_gguf
    assert all(torch.equal(from_gguf[name], from_folder[name]) for name in from_gguf)


def test_a_conversion_is_done_once_and_keyed_by_content(tmp_path: Path, cache: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf")
    first = Checkpoint.open(str(path)).folder
    written = (first / "model.safetensors").stat().st_mtime_ns
    shutil.copy(path, tmp_path / "same.gguf")
    assert Checkpoint.open(str(tmp_path / "same.gguf")).folder == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert Checkpoint.open(str(make_tiny_gguf(tmp_path / "other.gguf", seed=1))).folder != first
    assert not list((cache / "infra-agent" / "converted").glob(".*")), "scratch folders are left"


def test_an_interrupted_conversion_is_done_again(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf")
    folder = Checkpoint.open(str(path)).folder
    shutil.rmtree(folder)
    scratch = folder.parent / ".converting-left-over"
    scratch.mkdir()
    (scratch / "config.json").write_text("{}")
    assert Checkpoint.open(str(path)).config.num_layers == 2


def test_float32_weights_are_views_of_the_file(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m")
    config = ModelConfig.load(folder)
    with Weights(folder, config, torch.float32) as weights:
        first, second = weights["model.norm.weight"], weights["model.norm.weight"]
        assert first.data_ptr() == second.data_ptr()
    assert torch.isfinite(first).all(), "a tensor outlives the open file"


@given(share=st.floats(0.0, 0.999))
def test_a_cut_off_gguf_file_is_one_line(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = make_tiny_gguf(folder / "whole.gguf").read_bytes()
    path = folder / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(EngineError) as caught:
        Checkpoint.open(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unusable_files_are_one_line_each(tmp_path: Path) -> None:
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(bytes(range(256)) * 50)
    with pytest.raises(EngineError, match="not a readable GGUF"):
        Checkpoint.open(str(noise))
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(EngineError, match=r"neither a \.gguf file nor a model folder"):
        Checkpoint.open(str(text))
    with pytest.raises(EngineError, match=r"no config\.json"):
        Checkpoint.open(str(tmp_path))
    with pytest.raises(EngineError, match="fetch-model"):
        locate("smollm2-135m")
    with pytest.raises(EngineError, match="no such file"):
        locate("/no/such/model")


SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")


@pytest.mark.parametrize("name", SMALL_FILES)
@pytest.mark.parametrize("content", ["{", "[]", "{}", "\xff"])
def test_a_damaged_small_file_is_one_line(tmp_path: Path, name: str, content: str) -> None:
    folder = make_tiny_llama(tmp_path / "m")
    if "index" in name:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(content, encoding="latin-1")

    def load() -> None:
        read_all(folder)
        Tokenizer.load(folder)

    if (name, content) == ("tokenizer_config.json", "{}"):
        load()
        return
    with pytest.raises(EngineError) as caught:
        load()
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=40)
@example(where=300, byte=0)  # the number of heads becomes zero
@given(where=st.integers(0, 13_000), byte=st.integers(0, 255))
def test_damaged_metadata_is_one_line_or_harmless(
    where: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(make_tiny_gguf(folder / "m.gguf").read_bytes())
    content[where] = byte
    (folder / "m.gguf").write_bytes(content)
    said = ""
    try:
        convert(folder / "m.gguf", folder / "converted")
    except EngineError as error:
        said = str(error)
    assert "\n" not in said


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    lost = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(EngineError, match=r"1 tensors are missing.*layers\.1\.mlp\.up_proj"):
        read_all(folder)
    save_file(tensors | {"model.layers.1.mlp.up_proj.weight": lost[:7].clone()}, folder / "model.safetensors")
    with pytest.raises(EngineError, match=r"up_proj.*\[7, 64\].*\[128, 64\]"):
        read_all(folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineError, match="truncated or damaged"):
        read_all(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="weights are missing"):
        read_all(folder)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_width_and_sharded_checkpoints(tmp_path: Path, stored: torch.dtype) -> None:
    folder = make_tiny_llama(tmp_path / "m")
    tensors = {name: tensor.to(stored) for name, tensor in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_all(folder, torch.bfloat16)
    assert all(torch.equal(found[name], tensors[name].to(torch.bfloat16)) for name in names)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_size": None}, "config.json"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, change: dict, words: str) -> None:
    folder = make_tiny_llama(tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EngineError, match=words.replace(".", r"\.")):
        ModelConfig.load(folder)
    values = json.loads(path.read_text())
    del values["intermediate_size"]
    values |= {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "hidden_size": 64}
    path.write_text(json.dumps(values))
    with pytest.raises(EngineError, match="'intermediate_size' is missing"):
        ModelConfig.load(folder)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    with pytest.raises(EngineError, match=r"cannot create the folder.*XDG_CACHE_HOME"):
        Checkpoint.open(str(make_tiny_gguf(tmp_path / "m.gguf")))


@given(frequency=st.floats(1e-5, 1.0))
def test_scaled_frequencies_lie_between_plain_and_stretched(frequency: float) -> None:
    config = tiny_dims()
    rope = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}
    scaling = ModelConfig.from_dict(config | {"rope_scaling": rope}, "test").rope_scaling
    assert frequency / 8.0 * (1 - 1e-9) <= scale_frequency(frequency, scaling) <= frequency
    assert scale_frequency(frequency, None) == frequency
