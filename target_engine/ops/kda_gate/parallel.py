"""Decay and write strength over several ranks: each rank computes its heads of its tokens."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    gate = build("kda_gate", a_log=inputs["a_log"], dt_bias=inputs["dt_bias"])
    g, beta = gate(inputs["raw"], inputs["raw_beta"])
    return {"g": g, "beta": beta}
