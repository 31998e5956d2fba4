"""The gated normalisation as one Triton kernel: a program normalises, scales and gates a block of rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from target_engine.ops.accelerator import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

ELEMENTS = 4096
"""About as many of a block: rows are added until it is that large."""


@triton.jit
def gated_norm_kernel(
    x, gate, weight, out, rows, eps, V: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """x, gate, out [rows, V] contiguous; weight [V]."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_V)
    inside = (row < rows)[:, None] & (column < V)[None, :]
    place = row.to(tl.int64)[:, None] * V + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gating = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=column < V, other=0.0).to(tl.float32)
    value *= (1.0 / tl.sqrt(tl.sum(value * value, axis=1) / V + eps))[:, None]
    result = value * scale[None, :] / (1.0 + tl.exp(-gating))
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


class Implementation:
    """weight [V]; x and gate [N, H, V] -> out [N, H, V]. Everything in float32, rounded once at the end."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight.contiguous()
        self.eps = settings.eps

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        x, gate = x.contiguous(), gate.contiguous()
        out = torch.empty_like(x)
        width = x.shape[-1]
        rows = x.numel() // width
        if rows:
            block = triton.next_power_of_2(width)
            block_rows = max(1, min(triton.next_power_of_2(rows), ELEMENTS // block))
            gated_norm_kernel[(triton.cdiv(rows, block_rows),)](
                x, gate, self.weight, out, rows, self.eps, V=width, BLOCK_ROWS=block_rows, BLOCK_V=block
            )
        return out
