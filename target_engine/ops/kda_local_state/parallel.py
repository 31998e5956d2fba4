"""The local state over several ranks: each rank has its heads."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    s_ext, m = build("kda_local_state")(*(inputs[name] for name in ("k", "v", "g", "beta")))
    return {"s_ext": s_ext, "m": m}
