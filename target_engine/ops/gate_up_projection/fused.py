"""Gate and up projections as one product with a prepacked weight."""

import torch
from torch import Tensor

from target_engine.ops.onednn import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings


class Implementation:
    """w_gate and w_up [M, K]; x [N, K] -> gate [N, M], up [N, M], views of one [N, 2M] result."""

    def __init__(self, settings: OperatorSettings, w_gate: Tensor, w_up: Tensor) -> None:
        self.width = w_gate.shape[0]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat([w_gate, w_up]), settings.rows)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        gate, up = both.split(self.width, dim=-1)
        return gate, up
