"""Paged decode attention, textbook form: gather the blocks, repeat the KV heads, mask, softmax in float32."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """q [B, H, D]; caches [X, S, G, D]; block_tables int32 [B, T]; context_lens int32 [B] -> out [B, H, D]."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.groups = settings.num_heads // settings.num_kv_heads
        self.scale = settings.head_dim**-0.5

    def __call__(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
    ) -> Tensor:
        keys = k_cache[block_tables].flatten(1, 2).transpose(1, 2).float()
        values = v_cache[block_tables].flatten(1, 2).transpose(1, 2).float()
        keys = keys.repeat_interleave(self.groups, dim=1)
        values = values.repeat_interleave(self.groups, dim=1)
        scores = torch.matmul(q.float().unsqueeze(2), keys.transpose(2, 3)) * self.scale
        hidden = torch.arange(keys.shape[2]) >= context_lens.unsqueeze(1)
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        weights = scores.softmax(dim=-1)
        return torch.matmul(weights, values).squeeze(2).to(q.dtype)
