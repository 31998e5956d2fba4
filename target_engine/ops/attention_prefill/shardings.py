"""How prefill attention is cut: by heads; by tokens, every rank with the whole cache; or, under Layer Split, by tokens
with the keys and values of a layer on one rank, which sends what the step reads to the others.
"""

from target_engine.parallel.cutting import head_share
from target_engine.parallel.sharding import ATTENTION, Dims, Parts, Sharding, at_most, share

_TABLES = {"block_tables": "replicated", "query_starts": "replicated", "context_lens": "replicated"}


def parts(dims: Dims, ranks: int, rank: int) -> Parts:
    query, kv = head_share(dims["H"], dims["G"], ranks, rank)
    return {"H": query, "G": kv}


SHARDINGS = (
    Sharding(
        operator="attention_prefill",
        name="heads",
        axis="tp",
        cuts={
            "q": "heads H",
            "k_cache": "key-value heads G, copied where ranks share one",
            "v_cache": "key-value heads G, copied where ranks share one",
            **_TABLES,
            "out": "heads H",
        },
        collective="none",
        steps=("output",),
        tolerance=ATTENTION,
        parts=parts,
        refusal=at_most("H", "query heads"),
    ),
    Sharding(
        operator="attention_prefill",
        name="context",
        axis="cp",
        cuts={"q": "tokens N", "k_cache": "replicated", "v_cache": "replicated", **_TABLES, "out": "tokens N"},
        collective="none",
        steps=("output",),
        tolerance=ATTENTION,
        parts=share("N"),
        by_tokens=True,
    ),
    Sharding(
        operator="attention_prefill",
        name="layers",
        axis="cp",
        cuts={
            "q": "tokens N",
            "k_cache": "whole on the layer's owner, nothing elsewhere",
            "v_cache": "whole on the layer's owner, nothing elsewhere",
            **_TABLES,
            "out": "tokens N",
        },
        collective="broadcast",
        steps=("broadcast", "output"),
        tolerance=ATTENTION,
        parts=share("N"),
        by_tokens=True,
        owned=frozenset({"k_cache", "v_cache"}),
    ),
)
