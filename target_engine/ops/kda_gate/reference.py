"""Plain reference of the gates."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, a_log, dt_bias, raw, raw_beta) -> Arrays:
    softplus = np.logaddexp(0.0, raw + dt_bias)
    return {"g": -np.exp(a_log)[:, None] * softplus, "beta": np.exp(-np.logaddexp(0.0, -raw_beta))}
