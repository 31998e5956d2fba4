"""Plain reference of Kimi Delta Attention over runs of tokens, one token after another."""

import numpy as np

from target_engine.ops.recurrence import advance, local_state, read
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, q, k, v, g, beta, state, state_slots, query_starts) -> Arrays:
    state, out = state.copy(), np.zeros_like(v)
    for row, slot in enumerate(state_slots.tolist()):
        for t in range(int(query_starts[row]), int(query_starts[row + 1])):
            state[slot] = advance(state[slot], k[t], v[t], g[t], beta[t])
            out[t] = read(state[slot], q[t])
    return {"out": out, "state": state}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """With tokens cut: what each rank's pieces do to any state, and the states before every piece and after the last
    (by the recurrence over all tokens).
    """
    if sharding != "context":
        return [{} for _ in pieces]
    lengths, slots = pieces[0]["shard_lengths"], whole["state_slots"].tolist()
    local = [_local_states(piece, lengths[rank]) for rank, piece in enumerate(pieces)]
    s_ext, m = (np.stack([both[part] for both in local], axis=1) for part in (0, 1))  # [B, ranks, H, K, ...]
    names = ("k", "v", "g", "beta")
    states = []
    for run, slot in enumerate(slots):
        now, first = whole["state"][slot], int(whole["query_starts"][run])
        states.append([now])
        for count in lengths[:, run].tolist():
            for t in range(first, first + count):
                now = advance(now, *(whole[name][t] for name in names))
            first += count
            states[-1].append(now)
    merged = np.array(states)
    return [
        {
            "local_state": {"s_ext": s_ext[:, rank]},
            "chain": {"m": m[:, rank]},
            "gather": {"s_ext": s_ext, "m": m},
            "merge": {"states": merged},
        }
        for rank in range(len(pieces))
    ]


def _local_states(piece: Arrays, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`s_ext` [B, H, K, V] and `m` [B, H, K, K] of a rank's pieces of the runs."""
    ends = np.cumsum(lengths)
    both = [
        local_state(*(piece[name][end - length : end] for name in ("k", "v", "g", "beta")))
        for length, end in zip(lengths, ends, strict=True)
    ]
    return np.stack([s_ext for s_ext, _ in both]), np.stack([m for _, m in both])
