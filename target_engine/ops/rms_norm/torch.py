"""RMS normalisation, textbook form."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [K]; x [N, K] -> y [N, K]. The mean is taken in float32 whatever the compute type."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight
        self.eps = settings.eps

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + self.eps)).to(x.dtype)
