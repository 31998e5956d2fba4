"""How the query, key and value projections are cut: by whole heads, key-value heads copied where ranks share one; or by
tokens.
"""

from target_engine.ops.specification import MATMUL_TOLERANCE
from target_engine.parallel.cutting import blocks, head_share, head_size
from target_engine.parallel.sharding import Dims, Parts, Sharding, rows


def parts(dims: Dims, ranks: int, rank: int) -> Parts:
    size = dims.get("D") or head_size(dims["Q"], dims["P"])
    query, kv = head_share(dims["Q"] // size, dims["P"] // size, ranks, rank)
    return {"Q": blocks(query, size), "P": blocks(kv, size)}


def refusal(dims: Dims, ranks: int) -> str | None:
    heads = dims["Q"] // (dims.get("D") or head_size(dims["Q"], dims["P"]))
    return f"{ranks} ranks are more than the {heads} query heads" if ranks > heads else None


SHARDINGS = (
    Sharding(
        operator="qkv_projection",
        name="heads",
        axis="tp",
        cuts={
            "w_q": "rows Q, whole heads",
            "w_k": "rows P, whole key-value heads, copied where ranks share one",
            "w_v": "rows P, whole key-value heads, copied where ranks share one",
            "x": "replicated",
            "q": "columns Q, whole heads",
            "k": "columns P, whole key-value heads",
            "v": "columns P, whole key-value heads",
        },
        collective="none",
        steps=("output",),
        tolerance=MATMUL_TOLERANCE,
        parts=parts,
        refusal=refusal,
    ),
    rows("qkv_projection", ("x", "q", "k", "v"), MATMUL_TOLERANCE, replicated=("w_q", "w_k", "w_v")),
)
