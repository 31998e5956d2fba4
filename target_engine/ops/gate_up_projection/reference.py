"""Plain reference of the gate and up projections."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, w_gate, w_up, x) -> Arrays:
    return {"gate": x @ w_gate.T, "up": x @ w_up.T}
