"""How the rotary embedding is cut: by heads, or by tokens. A pair of channels never leaves its head."""

from target_engine.parallel.cutting import head_share
from target_engine.parallel.sharding import ALONE, Dims, Parts, Sharding, at_most, rows


def parts(dims: Dims, ranks: int, rank: int) -> Parts:
    query, kv = head_share(dims["H"], dims["G"], ranks, rank)
    return {"H": query, "G": kv}


SHARDINGS = (
    Sharding(
        operator="rope",
        name="heads",
        axis="tp",
        cuts={
            "q": "heads H",
            "k": "key-value heads G, copied where ranks share one",
            "cos": "replicated",
            "sin": "replicated",
            "q_out": "heads H",
            "k_out": "key-value heads G",
        },
        collective="none",
        steps=("output",),
        tolerance=ALONE,
        parts=parts,
        refusal=at_most("H", "query heads"),
    ),
    rows("rope", ("q", "k", "cos", "sin", "q_out", "k_out"), ALONE),
)
