"""Kimi Delta Attention for one token per sequence as one Triton kernel: a program steps a head's state, some of its
value columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from target_engine.ops.accelerator import unavailable as unavailable
from target_engine.ops.delta_kernels import NORM_EPS
from target_engine.ops.settings import OperatorSettings

BLOCK_VALUES = 64


@triton.jit
def kda_recurrent_kernel(
    q, k, v, g, beta, state, slots, out, scale,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """q, k, g [B, H, K], v, out [B, H, V], beta [B, H], state [X, H, K, V]; grid (value blocks, B * H)."""
    row = tl.program_id(1)
    key = tl.arange(0, BLOCK_K)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_keys, in_values = key < K, value < V
    query = tl.load(q + row * K + key, mask=in_keys, other=0.0).to(tl.float32)
    here = tl.load(k + row * K + key, mask=in_keys, other=0.0).to(tl.float32)
    query *= scale / tl.sqrt(tl.sum(query * query) + NORM_EPS)
    here *= 1.0 / tl.sqrt(tl.sum(here * here) + NORM_EPS)
    kept = tl.exp(tl.load(g + row * K + key, mask=in_keys, other=0.0))
    slot = tl.load(slots + row // H).to(tl.int64)
    place = state + ((slot * H + row % H) * K + key)[:, None] * V + value[None, :]
    held = in_keys[:, None] & in_values[None, :]
    now = tl.load(place, mask=held, other=0.0) * kept[:, None]
    write = tl.load(v + row * V + value, mask=in_values, other=0.0).to(tl.float32)
    write = (write - tl.sum(now * here[:, None], axis=0)) * tl.load(beta + row)
    now += here[:, None] * write[None, :]
    result = tl.sum(now * query[:, None], axis=0)
    tl.store(out + row * V + value, result.to(out.dtype.element_ty), mask=in_values)
    tl.store(place, now, mask=held)


class Implementation:
    """q, k [B, H, K]; v [B, H, V]; g float32 [B, H, K]; beta float32 [B, H]; state float32 [X, H, K, V], changed in
    place; state_slots int32 [B], distinct -> out [B, H, V]. Computes in float32.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_slots: Tensor
    ) -> Tensor:
        assert state.is_contiguous()
        q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
        (batch, heads, keys), values = q.shape, v.shape[-1]
        out = torch.empty_like(v)
        block = min(BLOCK_VALUES, triton.next_power_of_2(values))
        kda_recurrent_kernel[(triton.cdiv(values, block), batch * heads)](
            q, k, v, g, beta, state, state_slots, out, keys**-0.5,
            H=heads, K=keys, V=values, BLOCK_K=triton.next_power_of_2(keys), BLOCK_V=block,
        )  # fmt: skip
        return out
