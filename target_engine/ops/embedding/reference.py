"""Plain reference of embedding."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, token_ids) -> Arrays:
    return {"x": weight[token_ids]}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """What each rank has before the sum: 0 for tokens that are not in its part of the vocabulary."""
    if sharding != "vocabulary":
        return [{} for _ in pieces]
    ends = np.cumsum(pieces[0]["vocabulary_sizes"])
    owner = np.searchsorted(ends, whole["token_ids"], side="right")
    x = whole["weight"][whole["token_ids"]]
    return [{"partial": {"x": np.where((owner == rank)[:, None], x, 0.0)}} for rank in range(len(pieces))]
