"""The local state in chunks: the state from 0 and the transition, side by side as columns of one state."""

import torch
from torch import Tensor

from target_engine.ops.delta_chunks import Decays, Layout, chunks, unit
from target_engine.ops.settings import OperatorSettings


class Implementation:
    """k [N, H, K]; v [N, H, V]; g float32 [N, H, K]; beta float32 [N, H] -> s_ext float32 [H, K, V], m float32
    [H, K, K]. Computes in float32 or wider.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(self, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        heads, keys, values = k.shape[1], k.shape[2], v.shape[2]
        wide = torch.promote_types(k.dtype, g.dtype)
        identity = torch.eye(keys, dtype=wide, device=k.device).expand(1, heads, keys, keys)
        now = torch.cat([identity.new_zeros(1, heads, keys, values), identity], -1)
        if len(k):
            layout = Layout.of([0, len(k)], k.device)
            decays = Decays(layout.chunked(g, wide))
            # A transition is what the tokens make of a state when they bring no values of their own.
            padded = torch.nn.functional.pad(layout.chunked(v, wide), (0, keys))
            parts = chunks(unit(layout.chunked(k, wide)), padded, layout.chunked(beta, wide), decays)
            for part in layout.rounds():
                now = parts.after(part, now, parts.writes(part, now))
        s_ext, m = now[0].split([values, keys], -1)
        return s_ext.contiguous(), m.contiguous()
