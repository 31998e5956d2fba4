"""RMS normalisation over several ranks: rows are independent, a rank normalises its own."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    normalise = build("rms_norm", weight=inputs["weight"])
    return {"y": normalise(inputs["x"])}
