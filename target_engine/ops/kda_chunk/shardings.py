"""How prefill of linear attention is cut: by heads; or by tokens, where each rank tells what its tokens do to any state
and all fold this over the ranks before them (fla-org/flash-linear-attention, context parallel).
"""

from target_engine.ops.specification import Tolerance
from target_engine.parallel.sharding import RECURRENCE, Sharding, at_most, share, words

_TOKENS = ("q", "k", "v", "g", "beta")

MERGED = {
    "float32": Tolerance(
        2e-5, 2e-5, "float32 products of states and transitions, one more chain of them for every rank; tf32 is outside"
    ),
    "bfloat16": Tolerance(5e-3, 2e-2, "outputs are rounded to 8 significant bits, states and transitions are float32"),
}

SHARDINGS = (
    Sharding(
        operator="kda_chunk",
        name="heads",
        axis="tp",
        cuts=words("heads H", (*_TOKENS, "state", "out"), replicated=("state_slots", "query_starts")),
        collective="none",
        steps=("output",),
        tolerance=RECURRENCE,
        parts=share("H"),
        refusal=at_most("H", "linear heads"),
    ),
    Sharding(
        operator="kda_chunk",
        name="context",
        axis="cp",
        cuts=words("tokens N", (*_TOKENS, "out"), replicated=("state", "state_slots", "query_starts")),
        collective="all_gather + merge",
        steps=("local_state", "chain", "gather", "merge", "output"),
        tolerance=MERGED,
        parts=share("N"),
        by_tokens=True,
    ),
)
