"""Logits over several ranks: each rank has a part of the vocabulary, or the last hidden states of some sequences."""

import torch
from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record
from target_engine.parallel.tokens import gathered

ROWS = "logits"
"""Its rows are those of a whole step whose logits are wanted: decodes, which every context-parallel rank has, first."""


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    project = build("lm_head", weight=inputs["weight"])
    x = inputs["x"]
    if sharding == "context":
        x = gathered(x, inputs["shard_lengths"], group)
        record("gather", {"x": x})
        return {"logits": project(x)}
    part = project(x)
    record("partial", {"logits": part})
    sizes = inputs["vocabulary_sizes"].tolist()
    parts = group.all_gather(part.t().contiguous(), sizes)
    return {"logits": torch.cat(parts).t().contiguous()}
