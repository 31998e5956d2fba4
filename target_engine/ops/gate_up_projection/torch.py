"""Gate and up projections, plain form: two products."""

import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """w_gate and w_up [M, K]; x [N, K] -> gate [N, M], up [N, M]."""

    def __init__(self, settings: OperatorSettings, w_gate: Tensor, w_up: Tensor) -> None:
        self.w_gate = w_gate
        self.w_up = w_up

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = F.linear(x, self.w_gate)
        up = F.linear(x, self.w_up)
        return gate, up
