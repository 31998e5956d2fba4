"""The merge of states over several ranks: each rank has its heads."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    states = build("kda_state_merge")(inputs["s_ext"], inputs["m"], inputs["s_0"])
    return {"states": states}
