"""What the operators' combining code shares under context parallelism: order of gathered tokens, blocks of other ranks.

`lengths` int64 [R, B] says how many tokens of run b lie on rank r; the pieces of a run lie on the ranks in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from target_engine.parallel.collectives import Group


def local_starts(lengths: Tensor) -> Tensor:
    """int32 [B + 1]: where each run of these lengths [B] starts, one after another."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)


def order(lengths: Tensor) -> Tensor:
    """int64 [N]: for each token, in order of runs, its place in the ranks' tokens laid one after another."""
    ranks, runs = lengths.shape
    flat = lengths.flatten()
    starts = (flat.cumsum(0) - flat).view(ranks, runs).t().flatten()  # of each piece, run after run
    counts = lengths.t().flatten()
    before = counts.cumsum(0) - counts
    return torch.repeat_interleave(starts - before, counts) + torch.arange(int(counts.sum()))


def gathered(local: Tensor, lengths: Tensor, group: Group) -> Tensor:
    """Tokens of all ranks [N, ...] in order, from each rank's own."""
    sizes = lengths.sum(1).tolist()
    if not any(sizes):
        return local
    return torch.cat(group.all_gather(local.contiguous(), sizes))[order(lengths)]


def read_blocks(
    k_cache: Tensor, v_cache: Tensor, tables: Tensor, owner: int, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks that `tables` int32 [B, T] name, sent by their owner: keys, values [blocks, S, G, D], and tables into
    them. Where this rank is not the owner its caches have no blocks, and tell the shape and type of one alone.
    """
    used, places = torch.unique(tables, return_inverse=True)
    if group.rank == owner:
        both = torch.cat([k_cache[used], v_cache[used]])
    else:
        both = k_cache.new_empty((2 * len(used), *k_cache.shape[1:]))
    k, v = group.broadcast(both, owner).chunk(2)
    return k, v, places.to(tables.dtype)
