"""Gate and up projections as one product in C."""

import torch
from torch import Tensor

from target_engine.native.build import unavailable as unavailable
from target_engine.native.projection import Projection
from target_engine.ops.settings import OperatorSettings


class Implementation(Projection):
    """w_gate and w_up [M, K]; x [N, K] -> gate [N, M], up [N, M], views of one [N, 2M] result."""

    def __init__(self, settings: OperatorSettings, w_gate: Tensor, w_up: Tensor) -> None:
        super().__init__(torch.cat([w_gate, w_up]))
        self.width = w_gate.shape[0]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = self.product(x).split(self.width, dim=1)
        return gate, up
