"""The delta rule over chunks of tokens, in WY form (Yang et al., 2024; Kimi Team, 2025), for all heads at once.

With decay(i, j) = exp(g_{j+1} + ... + g_i) by channel, a chunk that starts from state S writes f_i for its keys k_i:
f_i = beta_i (v_i - (decay(i, start) k_i) . S - sum over j < i of (k_i . decay(i, j) k_j) f_j), which is one triangular
system, and leaves Diag(decay(end, start)) S + sum of (decay(end, i) k_i) f_i. Every exponent below is a sum of log
decays, never a difference of two sums: none is positive, whatever the decay, and none loses digits to cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from target_engine.ops.recurrence import NORM_EPS

CHUNK = 64
"""Most tokens of a chunk; a power of two."""


def unit(x: Tensor) -> Tensor:
    """x with rows of length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)


@dataclass(frozen=True)
class Layout:
    """Runs of tokens cut into chunks, so that a round of chunks can follow the round before it.

    `order`: the runs that have tokens, longest first; `active[r]`: how many of them have a chunk in round r. Chunks lie
    round after round in that order. `rows` int64 [M, L]: the token of each place, N where a run ends before its
    chunk.
    """

    order: list[int]
    active: list[int]
    rows: Tensor

    @classmethod
    def of(cls, starts: list[int], device: torch.device) -> Layout:
        """Of the runs starts[b] .. starts[b+1]-1 of N = starts[-1] tokens, at least one."""
        lengths = [end - start for start, end in pairwise(starts)]
        order = sorted((run for run, length in enumerate(lengths) if length), key=lambda run: -lengths[run])
        size = min(CHUNK, 1 << (lengths[order[0]] - 1).bit_length())
        rounds = -(-lengths[order[0]] // size)
        active = [sum(lengths[run] > index * size for run in order) for index in range(rounds)]
        firsts = [starts[run] + index * size for index in range(rounds) for run in order[: active[index]]]
        ends = [starts[run + 1] for count in active for run in order[:count]]
        rows = torch.tensor(firsts, device=device).unsqueeze(1) + torch.arange(size, device=device)
        inside = rows < torch.tensor(ends, device=device).unsqueeze(1)
        return cls(order, active, rows.where(inside, starts[-1]))

    def rounds(self) -> list[slice]:
        """The chunks of each round."""
        ends = [sum(self.active[: index + 1]) for index in range(len(self.active))]
        return [slice(end - count, end) for end, count in zip(ends, self.active, strict=True)]

    def chunked(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x [N, H, ...] as [M, H, L, ...], 0 in places without token, in `dtype`."""
        padded = torch.cat([x, x.new_zeros(1, *x.shape[1:])]).to(dtype)
        return padded[self.rows].transpose(1, 2).contiguous()

    def packed(self, chunked: Tensor, like: Tensor) -> Tensor:
        """[M, H, L, ...] back as [N, H, ...], in the type of `like` [N, H, ...]."""
        out = like.new_empty(len(like) + 1, *like.shape[1:])
        out[self.rows] = chunked.transpose(1, 2).to(like.dtype)
        return out[:-1]


@dataclass(frozen=True)
class Chunks:
    """M chunks of L tokens as maps of the state [M, H, K, V] that each starts from."""

    values: Tensor  # [M, H, L, V]: what the tokens write, from state 0
    reads: Tensor  # [M, H, L, K]: what they write less per unit of state
    kept: Tensor  # [M, H, L, K]: keys, decayed to the end of the chunk
    decay: Tensor  # [M, H, K, 1]: of the whole chunk

    def writes(self, part: slice, state: Tensor) -> Tensor:
        """f [m, H, L, V] of these chunks from these states."""
        return self.values[part] - self.reads[part] @ state

    def after(self, part: slice, state: Tensor, writes: Tensor) -> Tensor:
        """The states after these chunks."""
        return self.decay[part] * state + self.kept[part].transpose(-1, -2) @ writes


def chunks(k: Tensor, v: Tensor, beta: Tensor, decays: Decays) -> Chunks:
    """The maps of chunks with keys of unit length [M, H, L, K], v [M, H, L, V] and beta [M, H, L]."""
    strength = beta.unsqueeze(-1)
    system = strength * decays.products(k, k)
    right = strength * torch.cat([v, k * decays.since.exp()], -1)
    # The diagonal is taken as ones: below it lie the products with earlier keys.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, reads = solved.split([v.shape[-1], k.shape[-1]], -1)
    return Chunks(values, reads, k * decays.until.exp(), decays.since[..., -1, :].exp().unsqueeze(-1))


class Decays:
    """Sums of the log decays g [M, H, L, K] of chunks over the spans of tokens that the chunk form needs.

    `since` [M, H, L, K]: from the chunk's first token to each, both included. `until`: from the token after each to the
    last. `levels`: both within the halves of 2, 4, ... L tokens, for `products`.
    """

    def __init__(self, g: Tensor) -> None:
        since, until = g.clone(), torch.zeros_like(g)
        self.levels: list[tuple[int, Tensor, Tensor]] = []
        half = 1
        while half < g.shape[-2]:
            split = (-1, 2, half)
            halves, rests = since.unflatten(-2, split), until.unflatten(-2, split)
            early, late = halves.select(-3, 0), halves.select(-3, 1)
            self.levels.append((half, late.exp(), rests.select(-3, 0).exp()))
            rests.select(-3, 0).add_(late[..., -1:, :])
            late.add_(early[..., -1:, :])
            half *= 2
        self.since, self.until = since, until

    def products(self, rows: Tensor, keys: Tensor) -> Tensor:
        """rows_i . decay(i, j) keys_j [M, H, L, L] for j <= i, 0 elsewhere; both [M, H, L, K].

        Pairs of tokens in the two halves of a block meet at the border between them: the later one is decayed back to
        it, the earlier one forward to it.
        """
        products = torch.diag_embed((rows * keys).sum(-1))
        for half, since, until in self.levels:
            split = (-1, 2, half)
            later = rows.unflatten(-2, split).select(-3, 1) * since
            earlier = keys.unflatten(-2, split).select(-3, 0) * until
            blocks = products.unflatten(-1, split).unflatten(-4, split)  # [M, H, n, 2, half, n, 2, half]
            lower = blocks.select(-5, 1).select(-2, 0).diagonal(dim1=-4, dim2=-2)  # [M, H, half, half, n]
            lower.copy_((later @ earlier.transpose(-1, -2)).movedim(-3, -1))
        return products
