"""A projection over several ranks: with its input cut, every rank has a part of each sum and the ranks add them up."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record, widened


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    y = build("linear", weight=inputs["weight"])(inputs["x"])
    if sharding in ("rows", "head_rows"):
        record("partial", {"y": y})
        y = group.all_reduce(widened(y)).to(y.dtype)
    return {"y": y}
