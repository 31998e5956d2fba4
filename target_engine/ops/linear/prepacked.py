"""A projection whose constant weight is laid out once the way oneDNN's kernels read it."""

import torch
from torch import Tensor

from target_engine.ops.onednn import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [M, K]; x [N, K] -> y [N, M]. Only the packed weight stays in memory."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, settings.rows)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
