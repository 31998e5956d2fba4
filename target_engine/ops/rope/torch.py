"""Rotary embedding, textbook form."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


def rotate_half(x: Tensor) -> Tensor:
    """[a, b] -> [-b, a] along the last axis."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class Implementation:
    """q [N, H, D], k [N, G, D], cos and sin [N, D] -> rotated q and k."""

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
