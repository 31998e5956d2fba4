"""The gated normalisation, plain form."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [V]; x and gate [N, H, V] -> out [N, H, V]. Everything in float32 or wider, rounded once at the end."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        self.weight = weight.to(self.wide)
        self.eps = settings.eps

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = x.to(self.wide)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return (normed * torch.sigmoid(gate.to(self.wide))).to(x.dtype)
