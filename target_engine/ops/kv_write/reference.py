"""Plain reference of the cache write."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, k, v, slot_mapping, k_cache, v_cache) -> Arrays:
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    size = k_cache.shape[1]
    k_cache[slot_mapping // size, slot_mapping % size] = k
    v_cache[slot_mapping // size, slot_mapping % size] = v
    return {"k_cache": k_cache, "v_cache": v_cache}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """What each rank has after the gather."""
    if sharding == "heads":
        return [{} for _ in pieces]
    return [{"gather": {"k": whole["k"], "v": whole["v"]}} for _ in pieces]
