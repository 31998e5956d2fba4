"""How the cache write is cut: by key-value heads; by tokens, gathered so that every rank's cache is whole; or, under
Layer Split, so that the one rank that keeps the layer has a cache at all.
"""

from target_engine.parallel.cutting import head_share
from target_engine.parallel.sharding import EXACT, Dims, Parts, Sharding, share


def parts(dims: Dims, ranks: int, rank: int) -> Parts:
    heads = dims.get("H") or dims["G"] * -(-ranks // dims["G"])
    return {"G": head_share(heads, dims["G"], ranks, rank)[1]}


def refusal(dims: Dims, ranks: int) -> str | None:
    heads = dims.get("H", ranks)
    return f"{ranks} ranks are more than the {heads} query heads" if ranks > heads else None


SHARDINGS = (
    Sharding(
        operator="kv_write",
        name="heads",
        axis="tp",
        cuts={
            "k": "key-value heads G, copied where ranks share one",
            "v": "key-value heads G, copied where ranks share one",
            "slot_mapping": "replicated",
            "k_cache": "key-value heads G",
            "v_cache": "key-value heads G",
        },
        collective="none",
        steps=("output",),
        tolerance=EXACT,
        parts=parts,
        refusal=refusal,
    ),
    Sharding(
        operator="kv_write",
        name="context",
        axis="cp",
        cuts={
            "k": "tokens N",
            "v": "tokens N",
            "slot_mapping": "replicated",
            "k_cache": "replicated",
            "v_cache": "replicated",
        },
        collective="all_gather",
        steps=("gather", "output"),
        tolerance=EXACT,
        parts=share("N"),
        by_tokens=True,
        whole=frozenset({"slot_mapping"}),
    ),
    Sharding(
        operator="kv_write",
        name="layers",
        axis="cp",
        cuts={
            "k": "tokens N",
            "v": "tokens N",
            "slot_mapping": "replicated",
            "k_cache": "whole on the layer's owner, nothing elsewhere",
            "v_cache": "whole on the layer's owner, nothing elsewhere",
        },
        collective="all_gather",
        steps=("gather", "output"),
        tolerance=EXACT,
        parts=share("N"),
        by_tokens=True,
        whole=frozenset({"slot_mapping"}),
        owned=frozenset({"k_cache", "v_cache"}),
    ),
)
