"""Kimi Delta Attention for one token per sequence, plain form: gather the states, one step, put them back."""

import torch
from torch import Tensor

from target_engine.ops.delta_chunks import unit
from target_engine.ops.settings import OperatorSettings


class Implementation:
    """q, k [B, H, K]; v [B, H, V]; g float32 [B, H, K]; beta float32 [B, H]; state float32 [X, H, K, V], changed in
    place; state_slots int32 [B], distinct -> out [B, H, V]. Computes in float32 or wider.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_slots: Tensor
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, state.dtype)
        slots = state_slots.long()
        query = unit(q.to(wide)).unsqueeze(-2) * q.shape[-1] ** -0.5
        key = unit(k.to(wide)).unsqueeze(-2)
        now = state.index_select(0, slots).to(wide).mul_(g.exp().unsqueeze(-1))
        write = beta[..., None, None] * (v.to(wide).unsqueeze(-2) - key @ now)
        now.addcmul_(key.transpose(-1, -2), write)
        state.index_copy_(0, slots, now.to(state.dtype))
        return (query @ now).squeeze(-2).to(v.dtype)
