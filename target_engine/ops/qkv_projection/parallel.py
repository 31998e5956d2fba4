"""The query, key and value projections over several ranks: each rank computes its heads for its tokens."""

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


def run(
    sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group, record: Record
) -> dict[str, Tensor]:
    project = build("qkv_projection", w_q=inputs["w_q"], w_k=inputs["w_k"], w_v=inputs["w_v"])
    q, k, v = project(inputs["x"])
    return {"q": q, "k": k, "v": v}
