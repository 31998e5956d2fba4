"""Paged prefill attention, plain form: one sequence after another through torch's attention."""

import torch
import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """q [N, H, D]; caches [X, S, G, D]; block_tables int32 [B, T]; query_starts int32 [B+1]; context_lens int32 [B] ->
    out [N, H, D].
    """

    def __init__(self, settings: OperatorSettings) -> None:
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
            table = block_tables[row, : -(-context // self.block_size)]
            keys = k_cache[table].flatten(0, 1)[:context].transpose(0, 1)
            values = v_cache[table].flatten(0, 1)[:context].transpose(0, 1)
            keys = keys.repeat_interleave(self.groups, dim=0)
            values = values.repeat_interleave(self.groups, dim=0)
            positions = torch.arange(context - (end - start), context)
            visible = torch.arange(context) <= positions.unsqueeze(1)
            query = q[start:end].transpose(0, 1)
            attended = F.scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=visible)
            out[start:end] = attended[0].transpose(0, 1)
        return out
