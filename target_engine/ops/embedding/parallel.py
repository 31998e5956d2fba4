"""The embedding over several ranks: a rank looks up tokens of its part of the vocabulary and has 0 for the others."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    look_up = build("embedding", weight=inputs["weight"])
    ids = inputs["token_ids"]
    if sharding != "vocabulary":
        return {"x": look_up(ids)}
    sizes = inputs["vocabulary_sizes"].tolist()
    first = sum(sizes[: group.rank])
    here = (ids >= first) & (ids < first + sizes[group.rank])
    x = look_up((ids - first).where(here, 0)).masked_fill(~here.unsqueeze(1), 0.0)
    record("partial", {"x": x})
    return {"x": group.all_reduce(x)}
