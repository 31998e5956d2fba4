"""Plain reference of Kimi Delta Attention for one token per sequence."""

import numpy as np

from target_engine.ops.recurrence import advance, read
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, q, k, v, g, beta, state, state_slots) -> Arrays:
    state, out = state.copy(), np.zeros_like(v)
    for row, slot in enumerate(state_slots.tolist()):
        state[slot] = advance(state[slot], k[row], v[row], g[row], beta[row])
        out[row] = read(state[slot], q[row])
    return {"out": out, "state": state}
