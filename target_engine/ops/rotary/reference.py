"""Plain reference of the rotary tables."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, inv_freq, positions) -> Arrays:
    angles = np.outer(positions, inv_freq)
    angles = np.concatenate([angles, angles], axis=-1)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}
