"""Loads a checkpoint's tensors, memory-mapped, in the compute type, and checks that each has the right shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.jsonfile import json_object
from target_engine.models.config import ModelConfig, scale_frequency


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that the model needs, by Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (wide, hidden),
            prefix + "self_attn.k_proj.weight": (narrow, hidden),
            prefix + "self_attn.v_proj.weight": (narrow, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, wide),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class Weights:
    """A checkpoint's tensors by Hugging Face name, read when asked for.

    float32 tensors of a float32 checkpoint are views of the mapped file: they cost no copy, and processes share their
    pages.
    """

    def __init__(self, folder: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._shapes = expected_shapes(config)
        self._where: dict[str, Any] = {}
        self._stack = ExitStack()
        try:
            for path in _files(folder):
                file = self._stack.enter_context(safe_open(str(path), framework="pt"))
                self._where |= dict.fromkeys(file.keys(), file)
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{folder}: the weights cannot be read, truncated or damaged ({error})") from error
        missing = [name for name in self._shapes if name not in self._where]
        if missing:
            raise EngineError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
        for name, shape in self._shapes.items():
            found = tuple(self._where[name].get_slice(name).get_shape())
            if found != shape:
                raise EngineError(f"{folder}: {name} has the shape {list(found)}, config.json asks for {list(shape)}")
        self.config = config

    def __getitem__(self, name: str) -> Tensor:
        """A tensor in the compute type."""
        return self._where[name].get_tensor(name).to(self.dtype).contiguous()

    def inverse_frequencies(self) -> Tensor:
        """Rotary frequencies, float32 [head_dim / 2], after scaling."""
        size = self.config.head_dim
        plain = 1.0 / (self.config.rope_theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))
        if self.config.rope_scaling is not None:
            plain = torch.tensor([scale_frequency(value, self.config.rope_scaling) for value in plain.tolist()])
        if "rope_freqs.weight" in self._where:
            plain = plain / self._where["rope_freqs.weight"].get_tensor("rope_freqs.weight").float()
        return plain

    def close(self) -> None:
        """Close the files; tensors already read stay valid."""
        self._where.clear()
        self._stack.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _files(folder: Path) -> Iterator[Path]:
    """The safetensors files of a model folder: one, or those that an index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        yield single
    elif index.is_file():
        try:
            names = set(json_object(index)["weight_map"].values())
        except (KeyError, AttributeError) as error:
            raise EngineError(f"{index}: no weight_map from tensors to files") from error
        yield from (folder / name for name in sorted(names))
    else:
        raise EngineError(f"{folder}: no model.safetensors (or its index): the weights are missing")
