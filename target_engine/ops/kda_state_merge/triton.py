"""The merge as one Triton kernel: a program carries some value columns of a head's state through all ranks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.ops.accelerator import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

BLOCK_VALUES = 32
MAX_KEYS = 128
"""A whole transition lies in one block."""


@triton.jit
def kda_state_merge_kernel(
    s_ext, m, s_0, states, ranks,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """s_ext [R, H, K, V], m [R, H, K, K], s_0 [H, K, V], states [R+1, H, K, V]; grid (value blocks, H)."""
    head = tl.program_id(1).to(tl.int64)
    key = tl.arange(0, BLOCK_K)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_keys = key < K
    held = in_keys[:, None] & (value < V)[None, :]
    square = in_keys[:, None] & in_keys[None, :]
    place = (head * K + key)[:, None] * V + value[None, :]
    transition = m + (head * K + key)[:, None] * K + key[None, :]
    now = tl.load(s_0 + place, mask=held, other=0.0)
    tl.store(states + place, now, mask=held)
    for rank in range(ranks):
        step = tl.load(transition + rank.to(tl.int64) * H * K * K, mask=square, other=0.0)
        added = tl.load(s_ext + rank.to(tl.int64) * H * K * V + place, mask=held, other=0.0)
        # The state goes through as many products as there are ranks: what one of them loses is never won back.
        now = tl.dot(step, now, input_precision="tf32x3") + added
        tl.store(states + (rank.to(tl.int64) + 1) * H * K * V + place, now, mask=held)


class Implementation:
    """s_ext float32 [R, H, K, V]; m float32 [R, H, K, K]; s_0 float32 [H, K, V] -> states float32 [R+1, H, K, V].

    K is at most 128: `EngineError` otherwise.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        if settings.key_dim > MAX_KEYS:
            raise EngineError(
                f"operators.kda_state_merge: triton holds keys of up to {MAX_KEYS}, this model has {settings.key_dim}: "
                "choose another implementation"
            )

    def __call__(self, s_ext: Tensor, m: Tensor, s_0: Tensor) -> Tensor:
        s_ext, m, s_0 = s_ext.contiguous(), m.contiguous(), s_0.contiguous()
        ranks, heads, keys, values = s_ext.shape
        states = torch.empty(ranks + 1, heads, keys, values, dtype=s_0.dtype, device=s_0.device)
        block = max(16, min(BLOCK_VALUES, triton.next_power_of_2(values)))
        kda_state_merge_kernel[(triton.cdiv(values, block), heads)](
            s_ext, m, s_0, states, ranks,
            H=heads, K=keys, V=values, BLOCK_K=max(16, triton.next_power_of_2(keys)), BLOCK_V=block,
        )  # fmt: skip
        return states
