"""How the logits are cut: by vocabulary, gathered afterwards; or rows of several ranks, gathered before."""

import numpy as np

from target_engine.ops.specification import MATMUL_TOLERANCE, Arrays
from target_engine.parallel.cutting import even
from target_engine.parallel.sharding import Dims, Sharding, at_most, share


def extras(dims: Dims, ranks: int, rank: int) -> Arrays:
    return {"vocabulary_sizes": np.array(even(dims["V"], ranks), np.int64)}


SHARDINGS = (
    Sharding(
        operator="lm_head",
        name="vocabulary",
        axis="tp",
        cuts={"weight": "rows V, the vocabulary", "x": "replicated", "logits": "replicated after the gather"},
        collective="all_gather",
        steps=("partial", "output"),
        tolerance=MATMUL_TOLERANCE,
        parts=share("V"),
        refusal=at_most("V", "tokens of the vocabulary"),
        whole=frozenset({"logits"}),
        extras=extras,
    ),
    Sharding(
        operator="lm_head",
        name="context",
        axis="cp",
        cuts={"weight": "replicated", "x": "tokens N", "logits": "replicated: every rank computes all"},
        collective="all_gather",
        steps=("gather", "output"),
        tolerance=MATMUL_TOLERANCE,
        parts=share("N"),
        by_tokens=True,
        whole=frozenset({"logits"}),
    ),
)
