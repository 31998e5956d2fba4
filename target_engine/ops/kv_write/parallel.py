"""The cache write over several ranks: under context parallelism the ranks' new keys and values are gathered first."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record
from target_engine.parallel.tokens import gathered

ROWS = "tokens"
"""Its rows are those of a whole step: decodes, which every context-parallel rank has, then prefills."""


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    write = build("kv_write")
    k, v = inputs["k"], inputs["v"]
    caches = {"k_cache": inputs["k_cache"], "v_cache": inputs["v_cache"]}
    if sharding in ("context", "layers"):
        both = gathered(torch.cat([k, v], dim=-1), inputs["shard_lengths"], group)
        k, v = (part.contiguous() for part in both.chunk(2, dim=-1))
        record("gather", {"k": k, "v": v})
    if sharding != "layers" or group.rank == int(inputs["owner"]):
        write(k, v, inputs["slot_mapping"], *caches.values())
    return caches
