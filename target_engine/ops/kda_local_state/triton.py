"""The local state as one Triton kernel: a program carries some columns of a head's state and transition, side by side,
through the tokens, chunk by chunk.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.ops.accelerator import unavailable as unavailable
from target_engine.ops.delta_kernels import decayed, inverse_lengths, unit_lower_inverse
from target_engine.ops.settings import OperatorSettings

LEVELS = 4
"""A chunk has 2^LEVELS tokens."""
BLOCK_COLUMNS = 64
BLOCK_KEYS = 32
MAX_KEYS = 128
"""A whole transition lies in one block."""


@triton.jit
def kda_local_state_kernel(
    k, v, g, beta, s_ext, m, tokens,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, LEVELS: tl.constexpr,
    BLOCK_K: tl.constexpr, PART_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """k, g [N, H, K], v [N, H, V], beta [N, H]; s_ext [H, K, V], m [H, K, K]; grid (column blocks of [s_ext m], H)."""
    C: tl.constexpr = 1 << LEVELS
    head = tl.program_id(1)
    key, i = tl.arange(0, BLOCK_K), tl.arange(0, C)
    in_keys = key < K
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    now = tl.where(key[:, None] == column[None, :] - V, 1.0, 0.0)
    for first in range(0, tokens, C):
        token = (first + i).to(tl.int64) * H + head
        valid = first + i < tokens
        inside = valid[:, None] & in_keys[None, :]
        there = token[:, None] * K + key[None, :]
        strength = tl.load(beta + token, mask=valid, other=0.0)[:, None]
        keys = tl.load(k + there, mask=inside, other=0.0).to(tl.float32)
        lengths = inverse_lengths(keys)[:, None]
        keys *= lengths
        fades = tl.load(g + there, mask=inside, other=0.0)
        follows = (first + i + 1 < tokens) & (i + 1 < C)
        later = tl.load(g + there + H * K, mask=follows[:, None] & in_keys[None, :], other=0.0)
        if PART_K == BLOCK_K:
            system = tl.sum(keys[:, None, :] * decayed(keys, fades, C), axis=2)
        else:
            system = tl.zeros([C, C], tl.float32)
            for start in range(0, BLOCK_K, PART_K):
                part = start + tl.arange(0, PART_K)
                taken = valid[:, None] & (part < K)[None, :]
                some = token[:, None] * K + part[None, :]
                some_keys = tl.load(k + some, mask=taken, other=0.0).to(tl.float32) * lengths
                some_fades = tl.load(g + some, mask=taken, other=0.0)
                system += tl.sum(some_keys[:, None, :] * decayed(some_keys, some_fades, C), axis=2)
        system = tl.where(i[:, None] > i[None, :], strength * system, 0.0)
        solve = unit_lower_inverse(system, LEVELS)
        kept = tl.trans(keys * tl.exp(tl.cumsum(later, axis=0, reverse=True)))
        reads = tl.dot(solve, strength * keys * tl.exp(tl.cumsum(fades, axis=0)), input_precision="ieee")
        decay = tl.where(key[:, None] == key[None, :], tl.exp(tl.sum(fades, axis=0))[:, None], 0.0)
        step = decay - tl.dot(kept, reads, input_precision="ieee")
        brought = valid[:, None] & (column < V)[None, :]
        values = tl.load(v + token[:, None] * V + column[None, :], mask=brought, other=0.0).to(tl.float32)
        writes = tl.dot(solve, strength * values, input_precision="ieee")
        added = tl.dot(kept, writes, input_precision="ieee")
        # One more product for every chunk that came before: what one of them loses is never won back.
        now = tl.dot(step, now, input_precision="tf32x3") + added
    row = (head * K + key)[:, None]
    of_values, of_keys = column < V, (column >= V) & (column < V + K)
    tl.store(s_ext + row * V + column[None, :], now, mask=in_keys[:, None] & of_values[None, :])
    tl.store(m + row * K + column[None, :] - V, now, mask=in_keys[:, None] & of_keys[None, :])


class Implementation:
    """k [N, H, K]; v [N, H, V]; g float32 [N, H, K]; beta float32 [N, H] -> s_ext float32 [H, K, V], m float32
    [H, K, K]. K is at most 128: `EngineError` otherwise.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        if settings.key_dim > MAX_KEYS:
            raise EngineError(
                f"operators.kda_local_state: triton holds keys of up to {MAX_KEYS}, this model has {settings.key_dim}: "
                "choose another implementation"
            )

    def __call__(self, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        k, v, g, beta = (x.contiguous() for x in (k, v, g, beta))
        (tokens, heads, keys), values = k.shape, v.shape[-1]
        s_ext = torch.empty(heads, keys, values, dtype=g.dtype, device=k.device)
        m = torch.empty(heads, keys, keys, dtype=g.dtype, device=k.device)
        block_k = max(16, triton.next_power_of_2(keys))
        block = max(16, min(BLOCK_COLUMNS, triton.next_power_of_2(values + keys)))
        kda_local_state_kernel[(triton.cdiv(values + keys, block), heads)](
            k, v, g, beta, s_ext, m, tokens, H=heads, K=keys, V=values, LEVELS=LEVELS,
            BLOCK_K=block_k, PART_K=min(BLOCK_KEYS, block_k), BLOCK=block,
        )  # fmt: skip
        return s_ext, m
