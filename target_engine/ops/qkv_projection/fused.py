"""Query, key and value projections as one product with a prepacked weight."""

import torch
from torch import Tensor

from target_engine.ops.onednn import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings


class Implementation:
    """w_q [Q, K], w_k and w_v [P, K]; x [N, K] -> q [N, Q], k [N, P], v [N, P], views of one [N, Q + 2P] result."""

    def __init__(self, settings: OperatorSettings, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> None:
        self.widths = [w_q.shape[0], w_k.shape[0], w_v.shape[0]]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat([w_q, w_k, w_v]), settings.rows)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        q, k, v = qkv.split(self.widths, dim=-1)
        return q, k, v
