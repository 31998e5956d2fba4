"""Logits over the vocabulary in C, written as float32 straight from the sums."""

import torch
from torch import Tensor

from target_engine.native.build import unavailable as unavailable
from target_engine.native.projection import Projection
from target_engine.ops.settings import OperatorSettings


class Implementation(Projection):
    """weight [V, K]; x [N, K] -> logits float32 [N, V]. A tied embedding keeps its own plain table."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        super().__init__(weight, torch.float32)
