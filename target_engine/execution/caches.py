"""What a model remembers between steps: paged keys and values, and recurrent states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.models.config import ModelConfig
from target_engine.models.kda_hybrid import KdaState
from target_engine.models.llama import Cache


class Caches:
    """Zeroed caches of every layer, as the model takes them: `layers`.

    A full layer has keys and values, each [blocks, block_size, num_kv_heads, head_dim]; a KDA layer has its part of
    `states`, four tensors [KDA layers, slots, ...], so that a slot of all layers is zeroed or copied at once.
    """

    def __init__(
        self, keys_and_values: Sequence[Cache], states: Sequence[Tensor] = (), kda_layers: Sequence[int] = ()
    ) -> None:
        self.keys_and_values = list(keys_and_values)
        self.states = tuple(states)
        full = iter(self.keys_and_values)
        self.layers: list[Any] = []
        for index in range(len(self.keys_and_values) + len(kda_layers)):
            if index in kda_layers:
                place = kda_layers.index(index)
                self.layers.append(KdaState(*(tensor[place] for tensor in self.states)))
            else:
                self.layers.append(next(full))

    def zero(self, slots: Sequence[int]) -> None:
        """Set state slots to the state of no tokens: what the last owner left must not leak into the next."""
        if slots:
            index = torch.tensor(slots)
            for tensor in self.states:
                tensor.index_fill_(1, index, 0.0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy state slots: (source, target) pairs, no target twice and none a source."""
        if pairs:
            sources, targets = (torch.tensor(slots) for slots in zip(*pairs, strict=True))
            for tensor in self.states:
                tensor.index_copy_(1, targets, tensor.index_select(1, sources))

    def kv_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(tensor.numel() * tensor.element_size() for cache in self.keys_and_values for tensor in cache)

    def state_bytes(self) -> int:
        """Bytes of recurrent states."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.states)


def empty_states(model: ModelConfig, slots: int, dtype: torch.dtype, wide: torch.dtype) -> tuple[Tensor, ...]:
    """Zeroed states of `slots` sequences: the convolutions' last inputs in `dtype`, the recurrent part in `wide`."""
    layers, heads, tail = len(model.kda_layers), model.linear_num_heads, model.conv_width - 1
    key, value = model.linear_key_dim, model.linear_value_dim
    try:
        return (
            torch.zeros(layers, slots, heads * key, tail, dtype=dtype),
            torch.zeros(layers, slots, heads * key, tail, dtype=dtype),
            torch.zeros(layers, slots, heads * value, tail, dtype=dtype),
            torch.zeros(layers, slots, heads, key, value, dtype=wide),
        )
    except RuntimeError as error:
        raise EngineError(f"no memory for {slots} state slots: lower max_batch, or turn prefix_cache off") from error
