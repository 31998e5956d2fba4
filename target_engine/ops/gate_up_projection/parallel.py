"""The gate and up projections over several ranks: each rank computes its columns for its tokens."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    project = build("gate_up_projection", w_gate=inputs["w_gate"], w_up=inputs["w_up"])
    gate, up = project(inputs["x"])
    return {"gate": gate, "up": up}
