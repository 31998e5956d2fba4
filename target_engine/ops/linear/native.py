"""A projection in C: the packed weight is streamed once past all rows."""

from torch import Tensor

from target_engine.native.build import unavailable as unavailable
from target_engine.native.projection import Projection
from target_engine.ops.settings import OperatorSettings


class Implementation(Projection):
    """weight [M, K]; x [N, K] -> y [N, M]."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        super().__init__(weight)
