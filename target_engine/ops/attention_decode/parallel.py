"""Decode attention over several ranks: each rank has its heads; under Layer Split the blocks come from their owner."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record
from target_engine.parallel.tokens import read_blocks


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    attend = build("attention_decode")
    k_cache, v_cache, tables = inputs["k_cache"], inputs["v_cache"], inputs["block_tables"]
    if sharding == "layers":
        k_cache, v_cache, tables = read_blocks(k_cache, v_cache, tables, int(inputs["owner"]), group)
        record("broadcast", {"k_cache": k_cache, "v_cache": v_cache})
    return {"out": attend(inputs["q"], k_cache, v_cache, tables, inputs["context_lens"])}
