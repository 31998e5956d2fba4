"""Makes paged caches for the input conditions of the attention operators. Torch-free.

Slots that no sequence owns hold a large value: an implementation that reads past a sequence's context is far off, not
slightly.
"""

from __future__ import annotations

import numpy as np

from target_engine.ops.specification import Arrays, draw

UNOWNED = 1e3


def values(rng: np.random.Generator, shape: tuple[int, ...], distribution: str) -> np.ndarray:
    """Queries, keys or values; `peaked` makes scores large enough that few positions take all the weight."""
    if distribution == "peaked":
        return 4.0 * draw(rng, shape, "normal")
    return draw(rng, shape, distribution)


def paged_cache(
    rng: np.random.Generator, context_lens: np.ndarray, dims: dict[str, int], distribution: str, shared: int = 0
) -> Arrays:
    """`k_cache`, `v_cache` [X, S, G, D], `block_tables` int32 [B, T] (padded with 0) and `context_lens` int32 [B].

    Blocks are assigned in random order; the first `shared` blocks of every sequence that is long enough are the same
    ones.
    """
    size, kv_heads, head_dim, width = dims["S"], dims["G"], dims["D"], dims["T"]
    counts = [-(-int(length) // size) for length in context_lens]
    order = rng.permutation(dims["X"])
    tables = np.zeros((len(counts), width), np.int32)
    used = 0
    for row, count in enumerate(counts):
        common = min(shared, count - 1) if row else 0
        tables[row, :common] = tables[0, :common]
        tables[row, common:count] = order[used : used + count - common]
        used += count - common
    if used > dims["X"] or max(counts) > width:
        raise ValueError(f"{used} blocks do not fit in {dims}")
    k_cache = np.full((dims["X"], size, kv_heads, head_dim), UNOWNED, np.float32)
    v_cache = k_cache.copy()
    for row, length in enumerate(context_lens):
        positions = np.arange(int(length))
        where = tables[row, positions // size], positions % size
        shape = (int(length), kv_heads, head_dim)
        k_cache[where], v_cache[where] = values(rng, shape, distribution), values(rng, shape, distribution)
    return {
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": tables,
        "context_lens": context_lens.astype(np.int32),
    }


def gather(cache: np.ndarray, table: np.ndarray, length: int) -> np.ndarray:
    """A sequence's keys or values [length, G, D], in order."""
    positions = np.arange(length)
    size = cache.shape[1]
    return cache[table[positions // size], positions % size]


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int) -> np.ndarray:
    """Causal grouped attention of q [n, H, D] at positions first, first + 1, ... over k, v [c, G, D]; softmax in q's
    type.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("nhd,chd->hnc", q, k) / np.sqrt(q.shape[-1])
    visible = np.arange(k.shape[0])[None] <= first + np.arange(q.shape[0])[:, None]
    scores = np.where(visible[None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnc,chd->nhd", weights, v)
