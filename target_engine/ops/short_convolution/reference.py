"""Plain reference of the short convolution, one token after another."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, x, state, state_slots, query_starts) -> Arrays:
    state, out = state.copy(), np.zeros_like(x)
    for row, slot in enumerate(state_slots.tolist()):
        for t in range(int(query_starts[row]), int(query_starts[row + 1])):
            window = np.concatenate([state[slot], x[t][:, None]], axis=1)
            mixed = np.sum(weight * window, axis=1)
            out[t] = mixed * np.exp(-np.logaddexp(0.0, -mixed))
            state[slot] = window[:, 1:]
    return {"out": out, "state": state}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """With tokens cut: each rank's last inputs, those before its piece, and those at the end of every run."""
    if sharding != "context":
        return [{} for _ in pieces]
    lengths, starts, state = pieces[0]["shard_lengths"], whole["query_starts"], whole["state"]
    runs, width = len(starts) - 1, state.shape[2]
    tail, before = (np.zeros((len(pieces), runs, *state.shape[1:])) for _ in range(2))
    after = np.zeros((runs, *state.shape[1:]))
    for run, slot in enumerate(whole["state_slots"].tolist()):
        inputs = np.concatenate([state[slot].T, whole["x"][starts[run] : starts[run + 1]]])
        end = width
        for rank in range(len(pieces)):
            before[rank, run] = inputs[end - width : end].T
            end += int(lengths[rank, run])
            own = min(int(lengths[rank, run]), width)
            tail[rank, run, :, width - own :] = inputs[end - own : end].T
        after[run] = inputs[len(inputs) - width :].T
    return [
        {"tail": {"tail": tail[rank]}, "halo": {"before": before[rank]}, "state": {"state": after}}
        for rank in range(len(pieces))
    ]
