"""Plain reference of the merge, one rank after another."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, s_ext, m, s_0) -> Arrays:
    states = [s_0]
    for rank in range(len(s_ext)):
        states.append(np.einsum("hij,hjv->hiv", m[rank], states[rank]) + s_ext[rank])
    return {"states": np.stack(states)}
