"""Paged prefill attention that repeats no key or value: query heads share them through a broadcast axis."""

import torch
import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """q [N, H, D]; caches [X, S, G, D]; block_tables int32 [B, T]; query_starts int32 [B+1]; context_lens int32 [B].

    Returns out [N, H, D]. A prompt without history takes the causal kernel, which skips what is masked.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self.kv_heads = settings.num_kv_heads
        self.groups = settings.num_heads // settings.num_kv_heads
        self.block_size = settings.block_size

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
    ) -> Tensor:
        out = torch.empty_like(q)
        starts = query_starts.tolist()
        for row, context in enumerate(context_lens.tolist()):
            start, end = starts[row], starts[row + 1]
            new = end - start
            table = block_tables[row, : -(-context // self.block_size)]
            shape = (self.kv_heads, self.groups, -1, q.shape[-1])
            keys = k_cache.index_select(0, table).flatten(0, 1)[:context].transpose(0, 1).unsqueeze(1).expand(shape)
            values = v_cache.index_select(0, table).flatten(0, 1)[:context].transpose(0, 1).unsqueeze(1).expand(shape)
            query = q[start:end].unflatten(1, shape[:2]).permute(1, 2, 0, 3)
            if context == new:
                attended = F.scaled_dot_product_attention(query, keys, values, is_causal=True)
            else:
                visible = torch.arange(context) <= torch.arange(context - new, context).unsqueeze(1)
                attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
            out[start:end] = attended.permute(2, 0, 1, 3).flatten(1, 2)
        return out
