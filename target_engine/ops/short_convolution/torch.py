"""The short convolution of all sequences at once: each run behind its W - 1 kept inputs, one product per tap."""

import torch
import torch.nn.functional as F
from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """weight [C, W]; x [N, C]; state [X, C, W-1], older inputs first, changed in place; state_slots int32 [B],
    distinct; query_starts int32 [B+1] -> out [N, C]. Sums in float32 or wider.
    """

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.taps = weight.to(wide).T.contiguous()

    def __call__(self, x: Tensor, state: Tensor, state_slots: Tensor, query_starts: Tensor) -> Tensor:
        slots, starts = state_slots.long(), query_starts.long()
        past, runs = state.shape[-1], len(slots)
        lengths = starts.diff()
        run = torch.repeat_interleave(torch.arange(runs, device=x.device), lengths)
        # In the buffer, run b begins with its kept inputs at starts[b] + b * past; its tokens follow them.
        first = torch.arange(len(x), device=x.device) + run * past
        kept = torch.arange(past, device=x.device)
        begins = (starts[:-1] + torch.arange(runs, device=x.device) * past).unsqueeze(1) + kept
        buffer = x.new_empty(len(x) + runs * past, x.shape[1])
        buffer[begins] = state[slots].transpose(1, 2)
        buffer[first + past] = x
        state[slots] = buffer[begins + lengths.unsqueeze(1)].transpose(1, 2)
        wide = buffer.to(self.taps.dtype)
        mixed = wide.index_select(0, first) * self.taps[0]
        for tap in range(1, past + 1):
            mixed = torch.addcmul(mixed, wide.index_select(0, first + tap), self.taps[tap])
        return F.silu(mixed).to(x.dtype)
