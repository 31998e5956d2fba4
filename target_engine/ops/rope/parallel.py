"""The rotary embedding over several ranks: each rank turns its heads of its tokens."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    q, k = build("rope")(inputs["q"], inputs["k"], inputs["cos"], inputs["sin"])
    return {"q_out": q, "k_out": k}
