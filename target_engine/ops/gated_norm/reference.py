"""Plain reference of the gated normalisation."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, x, gate) -> Arrays:
    normal = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + settings.eps)
    return {"out": normal * weight * np.exp(-np.logaddexp(0.0, -gate))}
