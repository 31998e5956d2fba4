"""Prefill of linear attention over several ranks. With tokens cut, a rank's piece of a run takes any state S to
m S + s_ext; gathered and folded from the first rank on, these give the state before every piece and after the run.
"""

from itertools import pairwise

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record
from target_engine.parallel.tokens import local_starts


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    attend = build("kda_chunk")
    q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))
    state, slots = inputs["state"], inputs["state_slots"]
    if sharding != "context":
        return {"out": attend(q, k, v, g, beta, state, slots, inputs["query_starts"]), "state": state}
    lengths = inputs["shard_lengths"]
    mine = lengths[group.rank]
    s_ext, m = local_states(build("kda_local_state"), k, v, g, beta, local_starts(mine))
    record("local_state", {"s_ext": s_ext})
    record("chain", {"m": m})
    both = group.all_gather(torch.cat([s_ext, m], dim=-1), [len(mine)] * group.size)
    s_ext, m = torch.stack(both, dim=1).split([v.shape[-1], k.shape[-1]], dim=-1)
    record("gather", {"s_ext": s_ext, "m": m})
    merge = build("kda_state_merge")
    first = state[slots.long()]
    runs = [merge(s_ext[run].contiguous(), m[run].contiguous(), first[run]) for run in range(len(mine))]
    states = torch.stack(runs)  # [B, ranks + 1, H, K, V]
    record("merge", {"states": states})
    state[slots.long()] = states[:, group.size]
    filled = mine > 0
    if not bool(filled.any()):
        return {"out": torch.empty_like(v), "state": state}
    before = states[filled, group.rank].contiguous()
    places = torch.arange(len(before), dtype=torch.int32)
    out = attend(q, k, v, g, beta, before, places, local_starts(mine[filled]))
    return {"out": out, "state": state}


def local_states(
    local_state: Build, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """`s_ext` [B, H, K, V] and `m` [B, H, K, K] of this rank's piece of every run, empty ones too."""
    pieces = [slice(start, end) for start, end in pairwise(starts.tolist())]
    both = [local_state(k[piece], v[piece], g[piece], beta[piece]) for piece in pieces]
    return torch.stack([s_ext for s_ext, _ in both]), torch.stack([m for _, m in both])
