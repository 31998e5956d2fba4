"""How a projection is cut: by output columns without a collective, by input rows and a sum over ranks, or by tokens."""

from target_engine.ops.specification import MATMUL_TOLERANCE, Tolerance
from target_engine.parallel.cutting import blocks, head_share, head_size
from target_engine.parallel.sharding import Dims, Parts, Sharding, at_most, rows, share

SUMMED = {
    "float32": Tolerance(2e-4, 2e-4, "float32 sums of the ranks' partial products, up to about 100, in another order"),
    "bfloat16": Tolerance(
        3e-1, 2e-2, "each rank's partial product, up to about 100, is rounded to 8 significant bits before the sum"
    ),
}


def head_parts(dims: Dims, ranks: int, rank: int) -> Parts:
    """Input columns of the rank's query heads."""
    size = dims.get("D") or head_size(dims["K"])
    heads = dims["K"] // size
    query, _ = head_share(heads, dims.get("G", heads), ranks, rank)
    return {"K": blocks(query, size)}


def head_refusal(dims: Dims, ranks: int) -> str | None:
    heads = dims["K"] // (dims.get("D") or head_size(dims["K"]))
    return f"{ranks} ranks are more than the {heads} query heads" if ranks > heads else None


SHARDINGS = (
    Sharding(
        operator="linear",
        name="columns",
        axis="tp",
        cuts={"weight": "rows M (output columns)", "x": "replicated", "y": "columns M"},
        collective="none",
        steps=("output",),
        tolerance=MATMUL_TOLERANCE,
        parts=share("M"),
        refusal=at_most("M", "output columns"),
    ),
    Sharding(
        operator="linear",
        name="rows",
        axis="tp",
        cuts={"weight": "columns K (input rows)", "x": "columns K", "y": "replicated after the sum"},
        collective="all_reduce",
        steps=("partial", "output"),
        tolerance=SUMMED,
        parts=share("K"),
        refusal=at_most("K", "input columns"),
    ),
    Sharding(
        operator="linear",
        name="head_rows",
        axis="tp",
        cuts={
            "weight": "columns K (input rows), whole query heads",
            "x": "columns K, whole query heads",
            "y": "replicated after the sum",
        },
        collective="all_reduce",
        steps=("partial", "output"),
        tolerance=SUMMED,
        parts=head_parts,
        refusal=head_refusal,
    ),
    rows("linear", ("x", "y"), MATMUL_TOLERANCE, replicated=("weight",)),
)
