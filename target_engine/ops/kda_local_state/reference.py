"""Plain reference of the local state, one token after another."""

from target_engine.ops.recurrence import local_state
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, k, v, g, beta) -> Arrays:
    s_ext, m = local_state(k, v, g, beta)
    return {"s_ext": s_ext, "m": m}
