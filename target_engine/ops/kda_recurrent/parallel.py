"""A decode step of linear attention over several ranks: each rank has its heads and their states."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    names = ("q", "k", "v", "g", "beta", "state", "state_slots")
    out = build("kda_recurrent")(*(inputs[name] for name in names))
    return {"out": out, "state": inputs["state"]}
