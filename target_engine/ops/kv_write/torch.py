"""Cache write, plain form."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings


class Implementation:
    """k, v [N, G, D]; slot_mapping int64 [N]; changes k_cache and v_cache [X, S, G, D] in place."""

    def __init__(self, settings: OperatorSettings) -> None:
        pass

    def __call__(self, k: Tensor, v: Tensor, slot_mapping: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        k_cache.flatten(0, 1).index_copy_(0, slot_mapping, k)
        v_cache.flatten(0, 1).index_copy_(0, slot_mapping, v)
