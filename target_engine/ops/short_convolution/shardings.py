"""How the short convolution is cut: by channels, whole heads; or by tokens, with the last inputs of earlier ranks."""

from target_engine.ops.specification import Tolerance
from target_engine.parallel.cutting import blocks, span
from target_engine.parallel.sharding import Dims, Parts, Sharding, share

TOLERANCE = {
    "float32": Tolerance(3e-5, 1e-5, "sums of up to eight float32 products of size up to about 100, in another order"),
    "bfloat16": Tolerance(2e-3, 1e-2, "float32 sums rounded once to 8 significant bits; state is a copy"),
}


def parts(dims: Dims, ranks: int, rank: int) -> Parts:
    """Channels of the rank's heads; single channels where no number of heads is known."""
    heads = dims.get("H") or dims["C"]
    return {"C": blocks(span(heads, ranks, rank), dims["C"] // heads)}


def refusal(dims: Dims, ranks: int) -> str | None:
    heads = dims.get("H") or dims["C"]
    return f"{ranks} ranks are more than the {heads} linear heads or channels" if ranks > heads else None


SHARDINGS = (
    Sharding(
        operator="short_convolution",
        name="heads",
        axis="tp",
        cuts={
            "weight": "channels C, whole heads",
            "x": "channels C",
            "state": "channels C",
            "state_slots": "replicated",
            "query_starts": "replicated",
            "out": "channels C",
        },
        collective="none",
        steps=("output",),
        tolerance=TOLERANCE,
        parts=parts,
        refusal=refusal,
    ),
    Sharding(
        operator="short_convolution",
        name="context",
        axis="cp",
        cuts={
            "weight": "replicated",
            "x": "tokens N",
            "state": "replicated",
            "state_slots": "replicated",
            "query_starts": "replicated",
            "out": "tokens N",
        },
        collective="all_gather",
        steps=("tail", "halo", "state", "output"),
        tolerance=TOLERANCE,
        parts=share("N"),
        by_tokens=True,
    ),
)
