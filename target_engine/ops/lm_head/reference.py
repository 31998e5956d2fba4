"""Plain reference of the logits."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, x) -> Arrays:
    return {"logits": x @ weight.T}
