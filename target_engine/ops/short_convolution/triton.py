"""The short convolution as one Triton kernel: a program carries a block of channels through one sequence's tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from target_engine.ops.accelerator import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

BLOCK_TOKENS, BLOCK_CHANNELS = 16, 64


@triton.jit
def short_convolution_kernel(
    x, weight, state, slots, starts, out,
    C: tl.constexpr, W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """x, out [N, C], weight [C, W], state [X, C, W-1], all contiguous; grid (channel blocks, sequences)."""
    run = tl.program_id(1)
    begin, end = tl.load(starts + run), tl.load(starts + run + 1)
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = channel < C
    kept = state + (tl.load(slots + run).to(tl.int64) * C + channel) * (W - 1)
    for first in range(begin, end, BLOCK_T):
        token = first + tl.arange(0, BLOCK_T)
        inside = (token < end)[:, None] & present[None, :]
        mixed = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
        for tap in tl.static_range(W):
            source = token + (tap - W + 1)
            new = (source >= begin)[:, None]
            fresh = tl.load(x + source.to(tl.int64)[:, None] * C + channel[None, :], mask=inside & new, other=0.0)
            old = tl.load(kept[None, :] + (source - begin + W - 1)[:, None], mask=inside & (new == 0), other=0.0)
            taps = tl.load(weight + channel * W + tap, mask=present, other=0.0).to(tl.float32)
            # One of the two is there, the other 0.
            mixed += taps[None, :] * (fresh.to(tl.float32) + old.to(tl.float32))
        mixed = mixed / (1.0 + tl.exp(-mixed))
        place = token.to(tl.int64)[:, None] * C + channel[None, :]
        tl.store(out + place, mixed.to(out.dtype.element_ty), mask=inside)
    # What is kept now: the last W - 1 of the kept inputs and the new ones.
    index = tl.arange(0, BLOCK_P)
    source = end + index - (W - 1)
    new = (source >= begin)[None, :]
    inside = present[:, None] & (index < W - 1)[None, :]
    fresh = tl.load(x + source.to(tl.int64)[None, :] * C + channel[:, None], mask=inside & new, other=0.0)
    old = tl.load(kept[:, None] + (source - begin + W - 1)[None, :], mask=inside & (new == 0), other=0.0)
    # Another thread may still have to read what this one is about to write.
    tl.debug_barrier()
    tl.store(kept[:, None] + index[None, :], tl.where(new, fresh, old), mask=inside)


class Implementation:
    """weight [C, W]; x [N, C]; state [X, C, W-1], older inputs first, changed in place; state_slots int32 [B],
    distinct; query_starts int32 [B+1] -> out [N, C]. Sums in float32.
    """

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight.contiguous()

    def __call__(self, x: Tensor, state: Tensor, state_slots: Tensor, query_starts: Tensor) -> Tensor:
        assert state.is_contiguous()
        x = x.contiguous()
        channels, width = self.weight.shape
        out = torch.empty_like(x)
        if len(x):
            block = min(BLOCK_CHANNELS, triton.next_power_of_2(channels))
            short_convolution_kernel[(triton.cdiv(channels, block), len(state_slots))](
                x, self.weight, state, state_slots, query_starts, out, C=channels, W=width,
                BLOCK_T=min(BLOCK_TOKENS, triton.next_power_of_2(len(x))), BLOCK_C=block,
                BLOCK_P=triton.next_power_of_2(max(1, width - 1)),
            )  # fmt: skip
        return out
