"""Prefill attention over several ranks: each rank has its heads, or its tokens of every run, which see all tokens
before them; under Layer Split the blocks come from their owner.
"""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record
from target_engine.parallel.tokens import local_starts, read_blocks


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    attend = build("attention_prefill")
    q, k_cache, v_cache = inputs["q"], inputs["k_cache"], inputs["v_cache"]
    tables, starts, lens = inputs["block_tables"], inputs["query_starts"], inputs["context_lens"]
    if sharding == "layers":
        k_cache, v_cache, tables = read_blocks(k_cache, v_cache, tables, int(inputs["owner"]), group)
        record("broadcast", {"k_cache": k_cache, "v_cache": v_cache})
    if sharding in ("context", "layers"):
        lengths = inputs["shard_lengths"]
        mine, later = lengths[group.rank], lengths[group.rank + 1 :].sum(0)
        runs = mine > 0  # a run without tokens here has no query
        if not bool(runs.any()):
            return {"out": torch.empty_like(q)}
        starts = local_starts(mine[runs])
        tables, lens = tables[runs], (lens - later)[runs].to(lens.dtype)
    return {"out": attend(q, k_cache, v_cache, tables, starts, lens)}
