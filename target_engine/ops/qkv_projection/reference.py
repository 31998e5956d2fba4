"""Plain reference of the query, key and value projections."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, w_q, w_k, w_v, x) -> Arrays:
    return {"q": x @ w_q.T, "k": x @ w_k.T, "v": x @ w_v.T}
