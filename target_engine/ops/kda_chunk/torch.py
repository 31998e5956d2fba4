"""Kimi Delta Attention over runs of tokens in chunks: all chunks prepared at once, then one round of them after
another, the runs of a round side by side.
"""

import torch
from torch import Tensor

from target_engine.ops.delta_chunks import Decays, Layout, chunks, unit
from target_engine.ops.settings import OperatorSettings


class Implementation:
    """q, k [N, H, K]; v [N, H, V]; g float32 [N, H, K]; beta float32 [N, H]; state float32 [X, H, K, V], changed in
    place; state_slots int32 [B], distinct; query_starts int32 [B+1] -> out [N, H, V]. Computes in float32 or wider.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        state_slots: Tensor,
        query_starts: Tensor,
    ) -> Tensor:
        if not len(q):
            return torch.empty_like(v)
        wide = torch.promote_types(q.dtype, state.dtype)
        layout = Layout.of(query_starts.tolist(), q.device)
        slots = state_slots[layout.order].long()
        queries = unit(layout.chunked(q, wide)) * q.shape[-1] ** -0.5
        keys = unit(layout.chunked(k, wide))
        decays = Decays(layout.chunked(g, wide))
        parts = chunks(keys, layout.chunked(v, wide), layout.chunked(beta, wide), decays)
        scores = decays.products(queries, keys)
        queries = queries * decays.since.exp()
        out = torch.empty_like(parts.values)
        now = state[slots].to(wide)
        for part in layout.rounds():
            held = now[: part.stop - part.start]
            writes = parts.writes(part, held)
            out[part] = queries[part] @ held + scores[part] @ writes
            now[: len(held)] = parts.after(part, held, writes)
        state[slots] = now.to(state.dtype)
        return layout.packed(out, v)
