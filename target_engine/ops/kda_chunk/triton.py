"""Kimi Delta Attention over runs of tokens as one Triton kernel: a program carries some value columns of a head's state
through one sequence's tokens, chunk by chunk.
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
BLOCK_VALUES = 32
BLOCK_KEYS = 32
MAX_KEYS = 128
"""All keys of a chunk lie in one block."""


@triton.jit
def kda_chunk_kernel(
    q, k, v, g, beta, state, slots, starts, out, scale,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, LEVELS: tl.constexpr,
    BLOCK_K: tl.constexpr, PART_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """q, k, g [N, H, K], v, out [N, H, V], beta [N, H], state [X, H, K, V]; grid (value blocks, B * H)."""
    C: tl.constexpr = 1 << LEVELS
    run, head = tl.program_id(1) // H, tl.program_id(1) % H
    begin, end = tl.load(starts + run), tl.load(starts + run + 1)
    key, i = tl.arange(0, BLOCK_K), tl.arange(0, C)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_keys, in_values = key < K, value < V
    slot = tl.load(slots + run).to(tl.int64)
    place = state + ((slot * H + head) * K + key)[:, None] * V + value[None, :]
    held = in_keys[:, None] & in_values[None, :]
    now = tl.load(place, mask=held, other=0.0)
    for first in range(begin, end, C):
        token = (first + i).to(tl.int64) * H + head
        valid = first + i < end
        inside = valid[:, None] & in_keys[None, :]
        there = token[:, None] * K + key[None, :]
        strength = tl.load(beta + token, mask=valid, other=0.0)[:, None]
        keys = tl.load(k + there, mask=inside, other=0.0).to(tl.float32)
        queries = tl.load(q + there, mask=inside, other=0.0).to(tl.float32)
        of_keys, of_queries = inverse_lengths(keys)[:, None], inverse_lengths(queries)[:, None] * scale
        keys *= of_keys
        queries *= of_queries
        fades = tl.load(g + there, mask=inside, other=0.0)
        follows = (first + i + 1 < end) & (i + 1 < C)
        later = tl.load(g + there + H * K, mask=follows[:, None] & in_keys[None, :], other=0.0)
        if PART_K == BLOCK_K:
            faded = decayed(keys, fades, C)
            system = tl.sum(keys[:, None, :] * faded, axis=2)
            scores = tl.sum(queries[:, None, :] * faded, axis=2)
        else:
            system = tl.zeros([C, C], tl.float32)
            scores = tl.zeros([C, C], tl.float32)
            for start in range(0, BLOCK_K, PART_K):
                part = start + tl.arange(0, PART_K)
                some = token[:, None] * K + part[None, :]
                taken = valid[:, None] & (part < K)[None, :]
                some_keys = tl.load(k + some, mask=taken, other=0.0).to(tl.float32) * of_keys
                some_queries = tl.load(q + some, mask=taken, other=0.0).to(tl.float32) * of_queries
                faded = decayed(some_keys, tl.load(g + some, mask=taken, other=0.0), C)
                system += tl.sum(some_keys[:, None, :] * faded, axis=2)
                scores += tl.sum(some_queries[:, None, :] * faded, axis=2)
        system = tl.where(i[:, None] > i[None, :], strength * system, 0.0)
        brought = valid[:, None] & in_values[None, :]
        values = tl.load(v + token[:, None] * V + value[None, :], mask=brought, other=0.0).to(tl.float32)
        since = tl.exp(tl.cumsum(fades, axis=0))
        values -= tl.dot(keys * since, now, input_precision="tf32x3")
        writes = tl.dot(unit_lower_inverse(system, LEVELS), strength * values, input_precision="ieee")
        result = tl.dot(queries * since, now, input_precision="tf32x3")
        result += tl.dot(scores, writes, input_precision="ieee")
        tl.store(out + token[:, None] * V + value[None, :], result.to(out.dtype.element_ty), mask=brought)
        kept = tl.trans(keys * tl.exp(tl.cumsum(later, axis=0, reverse=True)))
        now = tl.exp(tl.sum(fades, axis=0))[:, None] * now + tl.dot(kept, writes, input_precision="tf32x3")
    tl.store(place, now, mask=held)


class Implementation:
    """q, k [N, H, K]; v [N, H, V]; g float32 [N, H, K]; beta float32 [N, H]; state float32 [X, H, K, V], changed in
    place; state_slots int32 [B], distinct; query_starts int32 [B+1] -> out [N, H, V]. K is at most 128: `EngineError`
    otherwise.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        if settings.key_dim > MAX_KEYS:
            raise EngineError(
                f"operators.kda_chunk: triton holds keys of up to {MAX_KEYS}, this model has {settings.key_dim}: "
                "choose another implementation"
            )

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        state_slots: Tensor,
        query_starts: Tensor,
    ) -> Tensor:
        assert state.is_contiguous()
        q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
        (tokens, heads, keys), values = q.shape, v.shape[-1]
        out = torch.empty_like(v)
        if tokens:
            block_k = max(16, triton.next_power_of_2(keys))
            block_v = max(16, min(BLOCK_VALUES, triton.next_power_of_2(values)))
            kda_chunk_kernel[(triton.cdiv(values, block_v), len(state_slots) * heads)](
                q, k, v, g, beta, state, state_slots, query_starts, out, keys**-0.5,
                H=heads, K=keys, V=values, LEVELS=LEVELS,
                BLOCK_K=block_k, PART_K=min(BLOCK_KEYS, block_k), BLOCK_V=block_v,
            )  # fmt: skip
        return out
