"""The gates, plain form."""

import torch
import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """a_log float32 [H], dt_bias float32 [H, K]; raw [N, H, K], raw_beta [N, H] -> g float32 [N, H, K], beta float32
    [N, H], in float32 whatever the compute type.
    """

    def __init__(self, settings: OperatorSettings, a_log: Tensor, dt_bias: Tensor) -> None:
        self.rate = -a_log.exp().unsqueeze(-1)
        self.dt_bias = dt_bias

    def __call__(self, raw: Tensor, raw_beta: Tensor) -> tuple[Tensor, Tensor]:
        g = self.rate * F.softplus(raw.to(self.rate.dtype) + self.dt_bias)
        return g, torch.sigmoid(raw_beta.to(self.rate.dtype))
