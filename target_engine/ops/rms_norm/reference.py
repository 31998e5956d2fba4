"""Plain reference of RMS normalisation."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, x) -> Arrays:
    return {"y": weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + settings.eps)}
