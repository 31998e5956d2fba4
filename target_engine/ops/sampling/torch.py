"""Sampling, plain form: sort, filter, invert the cumulative distribution at the given uniforms."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """logits float32 [N, V]; temperature, top_p, uniforms float32 [N]; top_k int64 [N] -> token ids int64 [N]."""

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniforms: Tensor) -> Tensor:
        greedy = logits.argmax(dim=-1)
        drawn_rows = temperature > 0
        if not bool(drawn_rows.any()):
            return greedy
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(logits.shape[-1])
        beyond_k = (top_k.unsqueeze(1) > 0) & (rank >= top_k.unsqueeze(1))
        heat = torch.where(drawn_rows, temperature, 1.0).unsqueeze(1)
        weights = (ordered / heat).masked_fill(beyond_k, float("-inf")).softmax(dim=-1)
        before = weights.cumsum(dim=-1) - weights
        weights = weights.masked_fill(before >= top_p.unsqueeze(1), 0.0)
        cumulative = weights.cumsum(dim=-1)
        target = uniforms.unsqueeze(1) * cumulative[:, -1:]
        chosen = (cumulative <= target).sum(dim=-1, keepdim=True)
        chosen = torch.minimum(chosen, (weights > 0).sum(dim=-1, keepdim=True) - 1)
        return torch.where(drawn_rows, order.gather(1, chosen).squeeze(1), greedy)
