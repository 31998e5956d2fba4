"""Rotary tables over several ranks: each rank makes those of its tokens' positions in the whole sequence."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    cos, sin = build("rotary", inv_freq=inputs["inv_freq"])(inputs["positions"])
    return {"cos": cos, "sin": sin}
