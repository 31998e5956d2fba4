"""Paged decode attention with the query heads of one KV head as rows of one product, so that no key or value is
repeated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """q [B, H, D]; caches [X, S, G, D]; block_tables int32 [B, T]; context_lens int32 [B] -> out [B, H, D]."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.kv_heads = settings.num_kv_heads

    def __call__(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
    ) -> Tensor:
        batch, heads, size = q.shape
        table = block_tables.flatten()
        shape = (batch, -1, self.kv_heads, size)
        keys = k_cache.index_select(0, table).view(shape).transpose(1, 2)
        values = v_cache.index_select(0, table).view(shape).transpose(1, 2)
        visible = torch.arange(keys.shape[2]) < context_lens.unsqueeze(1)
        grouped = q.reshape(batch, self.kv_heads, heads // self.kv_heads, size)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible[:, None, None])
        return out.reshape(batch, heads, size)
