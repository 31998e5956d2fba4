"""Logits over the vocabulary, plain form."""

import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [V, K]; x [N, K] -> logits float32 [N, V]."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight).float()
