"""Query, key and value projections as one product in C."""

import torch
from torch import Tensor

from target_engine.native.build import unavailable as unavailable
from target_engine.native.projection import Projection
from target_engine.ops.settings import OperatorSettings


class Implementation(Projection):
    """w_q [Q, K], w_k and w_v [P, K]; x [N, K] -> q [N, Q], k [N, P], v [N, P], views of one [N, Q + 2P] result."""

    def __init__(self, settings: OperatorSettings, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> None:
        super().__init__(torch.cat([w_q, w_k, w_v]))
        self.widths = [w_q.shape[0], w_k.shape[0], w_v.shape[0]]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.product(x).split(self.widths, dim=1)
        return q, k, v
