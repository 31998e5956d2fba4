"""Rotary tables of a step's positions, plain form."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """inv_freq float32 [D/2]; positions int64 [N] -> cos, sin [N, D] in the compute type. Once per step, above the
    layers.
    """

    def __init__(self, settings: OperatorSettings, inv_freq: Tensor) -> None:
        self.inv_freq = inv_freq
        self.dtype = getattr(torch, settings.dtype)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(positions.float(), self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)
