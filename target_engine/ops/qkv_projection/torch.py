"""Query, key and value projections, plain form: three products."""

import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """w_q [Q, K], w_k and w_v [P, K]; x [N, K] -> q [N, Q], k [N, P], v [N, P]."""

    def __init__(self, settings: OperatorSettings, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> None:
        self.w_q = w_q
        self.w_k = w_k
        self.w_v = w_v

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = F.linear(x, self.w_q)
        k = F.linear(x, self.w_k)
        v = F.linear(x, self.w_v)
        return q, k, v
