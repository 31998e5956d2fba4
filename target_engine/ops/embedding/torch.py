"""Embedding lookup, plain form."""

import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [V, K]; token_ids int64 [N] -> x [N, K]."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.weight)
