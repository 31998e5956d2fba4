"""The golden micro-kernels as Triton programs, and how to run one, here or on a GPU (worker side)."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from .golden_cases import OPERANDS, Golden

COUNT = len(OPERANDS)


@triton.jit
def products(x, identity, left, right, COUNT: tl.constexpr, PRECISION: tl.constexpr):
    """left = x @ identity, right = identity @ x, all [COUNT, COUNT]."""
    places = tl.arange(0, COUNT)[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    a, b = tl.load(x + places), tl.load(identity + places)
    tl.store(left + places, tl.dot(a, b, input_precision=PRECISION))
    tl.store(right + places, tl.dot(b, a, input_precision=PRECISION))


@triton.jit
def converted(x, out, COUNT: tl.constexpr):
    """x [COUNT] in the type of `out`, one number a turn, so that loops and their variables are used too."""
    for index in range(COUNT):
        at = index.to(tl.int64)
        tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def combined(x, out, COUNT: tl.constexpr, TIMES: tl.constexpr):
    """Each number with the next one, the last with the first."""
    places = tl.arange(0, COUNT)
    a, b = tl.load(x + places), tl.load(x + (places + 1) % COUNT)
    if TIMES:
        tl.store(out + places, a * b)
    else:
        tl.store(out + places, a - b)


def run(case: Golden, device: str = "cpu") -> np.ndarray:
    """The bit patterns [16] of a micro-kernel's results. Raises `ValueError` when a product depends on the place."""
    x = torch.from_numpy(np.array(OPERANDS, np.uint32).view(np.float32)).to(device)
    if case.kind == "dot":
        return _dot(x, case.precision)
    if case.kind in ("bfloat16", "float16"):
        out = torch.empty(COUNT, dtype=getattr(torch, case.kind), device=device)
        converted[(1,)](x, out, COUNT=COUNT)
    else:
        out = torch.empty(COUNT, dtype=torch.bfloat16, device=device)
        combined[(1,)](x.bfloat16(), out, COUNT=COUNT, TIMES=case.kind == "product")
    return out.float().cpu().numpy().view(np.uint32)


def _dot(x: torch.Tensor, precision: str) -> np.ndarray:
    rows = torch.stack([x.roll(turn) for turn in range(COUNT)])
    left, right = torch.empty_like(rows), torch.empty_like(rows)
    products[(1,)](rows, torch.eye(COUNT, device=x.device), left, right, COUNT=COUNT, PRECISION=precision)
    turned = [row.roll(-turn) for matrix in (left, right) for turn, row in enumerate(matrix)]
    bits = torch.stack(turned).cpu().numpy().view(np.uint32)
    if (bits != bits[0]).any():
        raise ValueError(f"{precision}: the same number gave different results in different places of a product")
    return bits[0]
