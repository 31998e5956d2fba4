"""Converts a Llama-architecture GGUF file to a Hugging Face folder: config, float32 tensors, tokenizer.

Weights are dequantised through `gguf`; the rows of query and key projections, which llama.cpp interleaves for its own
rotary form, are put back. The result is written beside its final place and renamed, so a conversion that is cut off
leaves nothing that looks finished.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from target_engine.cache import make_folder
from target_engine.errors import EngineError
from target_engine.jsonfile import json_object

WHOLE_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(path: Path, folder: Path) -> None:
    """Convert the GGUF file at `path` into `folder`. Raises `EngineError` for a damaged or unsupported file."""
    reader = _open(path)
    config = model_config(reader, path)
    make_folder(folder.parent)
    scratch = folder.parent / f".converting-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        scratch.mkdir()
        (scratch / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        for name, content in tokenizer_files(reader, path).items():
            (scratch / name).write_text(json.dumps(content), encoding="utf-8")
        write_safetensors(scratch / "model.safetensors", _tensors(reader, config, path))
        os.replace(scratch, folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # another process may have finished the same conversion first
            raise EngineError(f"cannot convert {path.name} into {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # the reader has no error type of its own: a cut-off file fails wherever the data ends
        raise EngineError(
            f"{path}: not a readable GGUF file, truncated or damaged ({error}): fetch it again"
        ) from error


def field(reader: Any, name: str, path: Path, default: Any = ...) -> Any:
    """A metadata value; raises `EngineError` when it is missing and no default is given."""
    found = reader.get_field(name)
    if found is not None:
        try:
            return found.contents()
        except (ValueError, IndexError, TypeError) as error:
            raise EngineError(f"{path}: the metadata field {name} is damaged: {error}") from error
    if default is ...:
        raise EngineError(f"{path}: the metadata field {name} is missing")
    return default


def model_config(reader: Any, path: Path) -> dict[str, Any]:
    """The file's architecture as the values of a `config.json`."""
    architecture = field(reader, "general.architecture", path)
    if architecture != "llama":
        raise EngineError(f"{path}: architecture {architecture!r} is not supported; this engine runs 'llama'")
    heads = field(reader, "llama.attention.head_count", path)
    hidden = field(reader, "llama.embedding_length", path)
    names = {tensor.name for tensor in reader.tensors}
    scaling = field(reader, "llama.rope.scaling.type", path, "none")
    if scaling not in ("none", "linear"):
        raise EngineError(f"{path}: rope scaling {scaling!r} is not supported")
    factor = float(field(reader, "llama.rope.scaling.factor", path, 1.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": field(reader, "llama.feed_forward_length", path),
        "num_hidden_layers": field(reader, "llama.block_count", path),
        "num_attention_heads": heads,
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv", path, heads),
        "head_dim": field(reader, "llama.rope.dimension_count", path, hidden // heads),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens", path)),
        "rms_norm_eps": field(reader, "llama.attention.layer_norm_rms_epsilon", path),
        "rope_theta": field(reader, "llama.rope.freq_base", path, 10000.0),
        "rope_scaling": {"rope_type": "linear", "factor": factor} if scaling == "linear" and factor != 1.0 else None,
        "max_position_embeddings": field(reader, "llama.context_length", path),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": any(name.endswith("attn_q.bias") for name in names),
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id", path, None),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id", path, None),
        "torch_dtype": "float32",
    }


def tokenizer_files(reader: Any, path: Path) -> dict[str, Any]:
    """`tokenizer.json` and `tokenizer_config.json`; one that lies beside the GGUF file goes before the metadata's."""
    beside = path.parent / "tokenizer.json"
    if beside.is_file():
        tokenizer = json_object(beside)
    else:
        from target_engine.tokenizer import tokenizer_from_metadata

        tokenizer = tokenizer_from_metadata(lambda name, default=...: field(reader, name, path, default), str(path))
    tokens = field(reader, "tokenizer.ggml.tokens", path)
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role in ("bos", "eos"):
        number = field(reader, f"tokenizer.ggml.{role}_token_id", path, None)
        if number is not None:
            if not 0 <= number < len(tokens):
                raise EngineError(f"{path}: the {role} token {number} is not one of the {len(tokens)} tokens")
            config[f"{role}_token"] = tokens[number]
    template = field(reader, "tokenizer.chat_template", path, None)
    if template:
        config["chat_template"] = template
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}


Named = tuple[str, tuple[int, ...], Callable[[], np.ndarray]]


def _tensors(reader: Any, config: dict[str, Any], path: Path) -> Iterator[Named]:
    """(Hugging Face name, shape, function that makes the float32 values) for every tensor that the model uses."""
    for tensor in reader.tensors:
        name = _name(tensor.name)
        if name is not None:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            yield name, shape, lambda tensor=tensor, shape=shape: _values(tensor, shape, config, path)


def _name(name: str) -> str | None:
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return None


def _values(tensor: Any, shape: tuple[int, ...], config: dict[str, Any], path: Path) -> np.ndarray:
    """A tensor dequantised to float32, its rows in Hugging Face's order."""
    from gguf.quants import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False).reshape(shape)
    except NotImplementedError as error:
        raise EngineError(
            f"{path}: tensor {tensor.name} has the type {tensor.tensor_type.name}, which is not supported"
        ) from error
    except ValueError as error:
        raise EngineError(
            f"{path}: tensor {tensor.name} does not hold {list(shape)} values: damaged ({error})"
        ) from error
    kind = tensor.name.split(".")[-2]
    if kind in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
        if heads < 1 or shape[0] % (2 * heads):
            raise EngineError(f"{path}: the {shape[0]} rows of {tensor.name} are not {heads} heads: damaged metadata")
        values = values.reshape(heads, -1, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    return np.ascontiguousarray(values)


def write_safetensors(path: Path, tensors: Iterator[Named]) -> None:
    """Write float32 tensors one after another, so that only one of them is in memory at a time."""
    named = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, _ in named:
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 + 56)  # the data start at a multiple of 64 bytes, after 8 of length
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, make in named:
            file.write(make().tobytes())
