"""The gated normalisation over several ranks: each rank normalises its heads of its tokens."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    normalise = build("gated_norm", weight=inputs["weight"])
    return {"out": normalise(inputs["x"], inputs["gate"])}
