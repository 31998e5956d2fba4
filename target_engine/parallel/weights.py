"""The weights of one rank: each tensor cut the way the operator is that reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from target_engine.models.config import ModelConfig
from target_engine.ops.registry import specification
from target_engine.parallel.cutting import even, head_share
from target_engine.parallel.sharding import Sharding
from target_engine.parallel.topology import Topology
from target_engine.weights import Weights

READERS = {
    "embed_tokens.weight": ("embedding", "vocabulary", "weight"),
    "lm_head.weight": ("lm_head", "vocabulary", "weight"),
    "self_attn.q_proj.weight": ("qkv_projection", "heads", "w_q"),
    "self_attn.k_proj.weight": ("qkv_projection", "heads", "w_k"),
    "self_attn.v_proj.weight": ("qkv_projection", "heads", "w_v"),
    "self_attn.o_proj.weight": ("linear", "head_rows", "weight"),
    "mlp.gate_proj.weight": ("gate_up_projection", "columns", "w_gate"),
    "mlp.up_proj.weight": ("gate_up_projection", "columns", "w_up"),
    "mlp.down_proj.weight": ("linear", "rows", "weight"),
    "linear_attn.q_conv.weight": ("short_convolution", "heads", "weight"),
    "linear_attn.k_conv.weight": ("short_convolution", "heads", "weight"),
    "linear_attn.v_conv.weight": ("short_convolution", "heads", "weight"),
    "linear_attn.a_log": ("kda_gate", "heads", "a_log"),
    "linear_attn.dt_bias": ("kda_gate", "heads", "dt_bias"),
    "linear_attn.o_proj.weight": ("linear", "rows", "weight"),
    **{
        f"linear_attn.{name}_proj.weight": ("linear", "columns", "weight")
        for name in ("q", "k", "v", "beta", "gate_up", "decay_up")
    },
}
"""End of a tensor's name -> operator, sharding and argument that it goes to; every rank has all others whole."""


def named(operator: str, name: str) -> Sharding:
    """A sharding that is known to exist."""
    return next(sharding for sharding in specification(operator).shardings if sharding.name == name)


def local_config(model: ModelConfig, topology: Topology) -> ModelConfig:
    """The model's sizes with one rank's share of heads and columns."""
    query, kv = head_share(model.num_heads, model.num_kv_heads, topology.tp, topology.tp_rank)
    return replace(
        model,
        num_heads=len(query),
        num_kv_heads=len(kv),
        intermediate_size=even(model.intermediate_size, topology.tp)[topology.tp_rank],
        linear_num_heads=even(model.linear_num_heads, topology.tp)[topology.tp_rank],
    )


def axis_sizes(model: ModelConfig, operator: str) -> dict[str, int]:
    """Sizes of the whole model that cuts of an operator's axes go by."""
    if specification(operator).linear:
        return {"H": model.linear_num_heads}
    sizes = {"H": model.num_heads, "G": model.num_kv_heads, "D": model.head_dim, "V": model.vocab_size}
    return sizes | {"Q": model.num_heads * model.head_dim, "P": model.num_kv_heads * model.head_dim}


class LocalWeights(Weights):
    """One rank's part of a checkpoint; `config` has the rank's sizes."""

    def __init__(self, whole: Weights, topology: Topology) -> None:
        self.whole, self.topology = whole, topology
        self.dtype = whole.dtype
        self.config = local_config(whole.config, topology)

    def __getitem__(self, name: str) -> Tensor:
        """The rank's part of a tensor, in the compute type."""
        tensor = self.whole[name]
        reader = next((reader for end, reader in READERS.items() if name.endswith(end)), None)
        if reader is None or self.topology.tp == 1:
            return tensor
        operator, sharding, argument = reader
        shape = next(each.shape for each in specification(operator).tensors if each.name == argument)
        sizes = {str(letter): size for letter, size in zip(shape, tensor.shape, strict=True)}
        dims = axis_sizes(self.whole.config, operator) | sizes
        parts = named(operator, sharding).parts(dims, self.topology.tp, self.topology.tp_rank)
        for axis, letter in enumerate(shape):
            if isinstance(letter, str) and letter in parts:
                tensor = taken(tensor, axis, parts[letter])
        return tensor.contiguous()

    def inverse_frequencies(self) -> Tensor:
        """Rotary frequencies; every rank has all of them."""
        return self.whole.inverse_frequencies()

    def close(self) -> None:
        """The whole checkpoint is closed by whoever opened it."""


def taken(tensor: Tensor, axis: int, indices: np.ndarray) -> Tensor:
    """Elements along an axis; a view where they are neighbours."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return tensor.narrow(axis, int(indices[0]), len(indices))
    return tensor.index_select(axis, torch.from_numpy(indices))
