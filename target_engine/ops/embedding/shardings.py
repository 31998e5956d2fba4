"""How the embedding is cut: by vocabulary, with a sum whose only part that is not 0 one rank has; or by tokens."""

import numpy as np

from target_engine.ops.specification import Arrays
from target_engine.parallel.cutting import even
from target_engine.parallel.sharding import EXACT, Dims, Sharding, at_most, rows, share


def extras(dims: Dims, ranks: int, rank: int) -> Arrays:
    return {"vocabulary_sizes": np.array(even(dims["V"], ranks), np.int64)}


SHARDINGS = (
    Sharding(
        operator="embedding",
        name="vocabulary",
        axis="tp",
        cuts={"weight": "rows V, the vocabulary", "token_ids": "replicated", "x": "replicated after the sum"},
        collective="all_reduce",
        steps=("partial", "output"),
        tolerance=EXACT,
        parts=share("V"),
        refusal=at_most("V", "tokens of the vocabulary"),
        extras=extras,
    ),
    rows("embedding", ("token_ids", "x"), EXACT, replicated=("weight",)),
)
