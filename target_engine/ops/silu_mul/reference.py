"""Plain reference of the gated activation."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, gate, up) -> Arrays:
    return {"y": gate / (1.0 + np.exp(-gate)) * up}
