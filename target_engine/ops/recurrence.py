"""Makes the inputs of the linear-attention operators and computes their plain recurrence. Torch-free.

Kimi Delta Attention (Kimi Team, 2025): a head keeps a state S [K, V]; a token decays it by channel, replaces what it
holds for the token's key by the token's value, and reads it with the token's query:
S <- Diag(exp g) S;  S <- S + beta k (v - S^T k)^T;  out = S^T q / sqrt(K), with q and k of unit length.
Slots that no sequence owns hold a large value: an implementation that reads another slot is far off, not slightly.
"""

from __future__ import annotations

import numpy as np

from target_engine.ops.paged import UNOWNED
from target_engine.ops.specification import Arrays, Case, ModelSizes, draw

NORM_EPS = 1e-6
"""Added to the squared length of a query or key, as in flash-linear-attention."""

CONDITIONS = ("strong_decay", "weak_decay", "beta_extremes", "repeated_keys")
"""Distributions of the recurrence; under these, and where size is divided out, values are drawn `normal`."""


def condition(name: str, sequences: int, tokens: int, distribution: str = "normal",
              tags: tuple[str, ...] = ("typical",), **axes: int) -> Case:  # fmt: skip
    """A case for `tokens` new tokens of B sequences in all, Z of which have none; two heads of 16 x 24, and two slots
    that no sequence owns, unless given.
    """
    dims = {"B": sequences, "N": tokens, "Z": 0, "H": 2, "K": 16, "V": 24, "X": sequences + 2, "E": sequences + 1}
    return Case(name, dims | axes, distribution, tags)


def model_axes(sizes: ModelSizes) -> dict[str, int]:
    """Axes H, K and V of a model with linear layers."""
    return {"H": sizes.linear_heads, "K": sizes.key_dim, "V": sizes.value_dim}


def run_starts(rng: np.random.Generator, dims: dict[str, int]) -> np.ndarray:
    """int32 [B+1]: N tokens cut at random into B runs, Z of them empty (more where there are fewer tokens than
    runs).
    """
    runs, tokens = dims["B"], dims["N"]
    filled = min(max(1, runs - dims["Z"]), tokens)
    lengths = np.zeros(runs, np.int64)
    if filled:
        cuts = np.sort(rng.choice(tokens - 1, filled - 1, replace=False)) + 1 if filled > 1 else np.zeros(0, np.int64)
        parts = np.diff(np.concatenate([[0], cuts, [tokens]]))
        lengths[rng.choice(runs, filled, replace=False)] = parts
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def state_slots(rng: np.random.Generator, dims: dict[str, int]) -> np.ndarray:
    """int32 [B]: distinct slots out of X, in no order."""
    return rng.choice(dims["X"], dims["B"], replace=False).astype(np.int32)


def states(rng: np.random.Generator, slots: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """float32 [X, ...]: what earlier tokens left in the named slots, a large value in the others."""
    state = np.full(shape, UNOWNED, np.float32)
    state[slots] = 0.5 * rng.standard_normal((len(slots), *shape[1:]))
    return state


def tokens(rng: np.random.Generator, dims: dict[str, int], distribution: str, count: int) -> Arrays:
    """`q`, `k` [count, H, K], `v` [count, H, V], `g` [count, H, K] and `beta` [count, H], float32."""
    heads, keys, values = dims["H"], dims["K"], dims["V"]
    plain = "normal" if distribution in CONDITIONS else distribution
    q, k = (draw(rng, (count, heads, keys), plain) for _ in range(2))
    if distribution == "repeated_keys":
        k = k[:1] + np.float32(0.1) * k
    return {
        "q": q,
        "k": k,
        "v": draw(rng, (count, heads, values), plain if plain in ("one_hot", "ramp", "zeros") else "normal"),
        "g": log_decay(rng, (count, heads, keys), distribution),
        "beta": write_strength(rng, (count, heads), distribution),
    }


def log_decay(rng: np.random.Generator, shape: tuple[int, ...], distribution: str) -> np.ndarray:
    """Logarithms of decay, <= 0: mostly between -0.02 and -1; `strong_decay` around -3 with some at -30, so that a
    chunk's sum is beyond the range of exp; `weak_decay`, also under repeated keys, a few ten-thousandths.
    """
    spread = np.exp(rng.standard_normal(shape))
    if distribution == "strong_decay":
        g = np.where(rng.random(shape) < 1 / 16, -30.0, -3.0) * np.sqrt(spread)
    elif distribution in ("weak_decay", "repeated_keys"):
        g = -0.135 * 0.002 * spread
    else:
        g = -0.135 * spread
    return g.astype(np.float32)


def write_strength(rng: np.random.Generator, shape: tuple[int, ...], distribution: str) -> np.ndarray:
    """Strengths in [0, 1]; `beta_extremes` has both ends and their neighbourhoods."""
    if distribution == "beta_extremes":
        return rng.choice(np.array([0.0, 1e-4, 0.5, 1.0 - 1e-4, 1.0], np.float32), shape)
    return (1.0 / (1.0 + np.exp(-1.5 * rng.standard_normal(shape)))).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    """x with rows of length 1, or 0 where they are."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + NORM_EPS)


def advance(state: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The state [H, K, V] after one token: k and g [H, K], v [H, V], beta [H]; k as it arrives."""
    k = unit(k)
    state = np.exp(g)[:, :, None] * state
    held = np.einsum("hkv,hk->hv", state, k)
    return state + k[:, :, None] * (beta[:, None] * (v - held))[:, None, :]


def read(state: np.ndarray, q: np.ndarray) -> np.ndarray:
    """What a query q [H, K], as it arrives, reads from a state [H, K, V]: [H, V]."""
    return np.einsum("hkv,hk->hv", state, unit(q)) / np.sqrt(q.shape[-1])


def local_state(k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`s_ext` [H, K, V] and `m` [H, K, K] of a run of tokens [n, H, ...]: it takes any state S to m S + s_ext."""
    heads, keys, values = k.shape[1], k.shape[2], v.shape[2]
    s_ext = np.zeros((heads, keys, values), v.dtype)
    m = np.broadcast_to(np.eye(keys, dtype=v.dtype), (heads, keys, keys)).copy()
    nothing = np.zeros((heads, keys), v.dtype)
    for t in range(len(k)):
        s_ext = advance(s_ext, k[t], v[t], g[t], beta[t])
        m = advance(m, k[t], nothing, g[t], beta[t])
    return s_ext, m
