"""A projection without bias, plain form."""

import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [M, K]; x [N, K] -> y [N, M]."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)
