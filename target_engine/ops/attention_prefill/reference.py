"""Plain reference of paged prefill attention, one sequence after another."""

import numpy as np

from target_engine.ops.paged import attend, gather
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, q, k_cache, v_cache, block_tables, query_starts, context_lens) -> Arrays:
    rows = []
    for row, (table, length) in enumerate(zip(block_tables, context_lens.tolist(), strict=True)):
        start, end = int(query_starts[row]), int(query_starts[row + 1])
        k, v = gather(k_cache, table, length), gather(v_cache, table, length)
        rows.append(attend(q[start:end], k, v, length - (end - start)))
    return {"out": np.concatenate(rows)}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """The blocks that the owner sends: those which any table names, in order."""
    if sharding != "layers":
        return [{} for _ in pieces]
    used = np.unique(whole["block_tables"])
    return [{"broadcast": {name: whole[name][used] for name in ("k_cache", "v_cache")}} for _ in pieces]
