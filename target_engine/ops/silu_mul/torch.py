"""The gated activation, plain form."""

import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """gate and up [N, M] -> y [N, M]."""

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up
