"""How decode attention is cut: by heads; or, under Layer Split, with the keys and values of a layer on one rank, which
sends what the step reads to the others. Context-parallel ranks decode alike, each with the whole cache.
"""

from target_engine.parallel.cutting import head_share
from target_engine.parallel.sharding import ATTENTION, Dims, Parts, Sharding, at_most


def parts(dims: Dims, ranks: int, rank: int) -> Parts:
    query, kv = head_share(dims["H"], dims["G"], ranks, rank)
    return {"H": query, "G": kv}


SHARDINGS = (
    Sharding(
        operator="attention_decode",
        name="heads",
        axis="tp",
        cuts={
            "q": "heads H",
            "k_cache": "key-value heads G, copied where ranks share one",
            "v_cache": "key-value heads G, copied where ranks share one",
            "block_tables": "replicated",
            "context_lens": "replicated",
            "out": "heads H",
        },
        collective="none",
        steps=("output",),
        tolerance=ATTENTION,
        parts=parts,
        refusal=at_most("H", "query heads"),
    ),
    Sharding(
        operator="attention_decode",
        name="layers",
        axis="cp",
        cuts={
            "q": "replicated",
            "k_cache": "whole on the layer's owner, nothing elsewhere",
            "v_cache": "whole on the layer's owner, nothing elsewhere",
            "block_tables": "replicated",
            "context_lens": "replicated",
            "out": "replicated: every rank computes all",
        },
        collective="broadcast",
        steps=("broadcast", "output"),
        tolerance=ATTENTION,
        parts=lambda dims, ranks, rank: {},
        owned=frozenset({"k_cache", "v_cache"}),
    ),
)
