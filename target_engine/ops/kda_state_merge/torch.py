"""The merge, plain form: one rank after another."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """s_ext float32 [R, H, K, V]; m float32 [R, H, K, K]; s_0 float32 [H, K, V] -> states float32 [R+1, H, K, V]."""

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(self, s_ext: Tensor, m: Tensor, s_0: Tensor) -> Tensor:
        states = torch.empty(len(s_ext) + 1, *s_0.shape, dtype=s_0.dtype, device=s_0.device)
        states[0] = s_0
        for rank in range(len(s_ext)):
            states[rank + 1] = m[rank] @ states[rank] + s_ext[rank]
        return states
