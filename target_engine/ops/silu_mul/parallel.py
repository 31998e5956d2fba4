"""The gated activation over several ranks: elements are independent, a rank computes its own."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    return {"y": build("silu_mul")(inputs["gate"], inputs["up"])}
