"""Plain reference of the rotary embedding."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, q, k, cos, sin) -> Arrays:
    def rotate(x):
        half = x.shape[-1] // 2
        turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return x * cos[:, None] + turned * sin[:, None]

    return {"q_out": rotate(q), "k_out": rotate(k)}
