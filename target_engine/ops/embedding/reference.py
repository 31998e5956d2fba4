"""Plain reference of embedding."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, token_ids) -> Arrays:
    return {"x": weight[token_ids]}
