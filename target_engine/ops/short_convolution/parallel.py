"""The short convolution over several ranks: channels are independent; with tokens cut, a rank's first outputs need the
last W - 1 inputs before its piece. These lie on earlier ranks, on several where pieces are short, or in the state.
"""

from itertools import pairwise

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record
from target_engine.parallel.tokens import local_starts

ROWS = "tokens"
"""Its rows are those of a whole step: decodes, which every context-parallel rank has, then prefills."""


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    convolve = build("short_convolution", weight=inputs["weight"])
    x, state, slots, starts = (inputs[name] for name in ("x", "state", "state_slots", "query_starts"))
    if sharding != "context":
        return {"out": convolve(x, state, slots, starts), "state": state}
    lengths = inputs["shard_lengths"]
    mine = lengths[group.rank]
    tail = last_inputs(x, local_starts(mine), state.shape[2])
    record("tail", {"tail": tail})
    tails = group.all_gather(tail.to(state.dtype), [len(mine)] * group.size)
    before = state[slots.long()]
    window = before
    for rank, (count, later) in enumerate(zip(lengths, tails, strict=True)):
        if rank == group.rank:
            before = window.clone()
        window = advance(window, later, count)
    record("halo", {"before": before})
    state[slots.long()] = window
    record("state", {"state": window})
    runs = mine > 0
    if not bool(runs.any()):
        return {"out": torch.empty_like(x), "state": state}
    halo = before[runs].contiguous()
    out = convolve(x, halo, torch.arange(len(halo), dtype=torch.int32), local_starts(mine[runs]))
    return {"out": out, "state": state}


def last_inputs(x: Tensor, starts: Tensor, width: int) -> Tensor:
    """[B, C, width]: the last inputs of each run of x [N, C], older first; 0 before the start of a short run."""
    tail = x.new_zeros((len(starts) - 1, x.shape[1], width))
    for run, (start, end) in enumerate(pairwise(starts.tolist())):
        kept = min(end - start, width)
        if kept:
            tail[run, :, width - kept :] = x[end - kept : end].t()
    return tail


def advance(window: Tensor, tail: Tensor, counts: Tensor) -> Tensor:
    """The last inputs [B, C, W - 1] after `counts` [B] more, the last of which are in `tail` [B, C, W - 1]."""
    width = window.shape[2]
    place = torch.arange(width) + counts.clamp(max=width).unsqueeze(1)  # [B, W - 1], in window and tail together
    place = place.unsqueeze(1).expand_as(window)
    return torch.where(place < width, window.gather(2, place.clamp(max=width - 1)), tail)
