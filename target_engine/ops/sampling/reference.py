"""Plain reference of sampling, one row after another."""

import numpy as np

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def distribution(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """(token ids, probabilities) of what may be drawn, most likely first."""
    order = np.argsort(-logits, kind="stable")
    if top_k:
        order = order[:top_k]
    scaled = logits[order] / temperature
    weights = np.exp(scaled - scaled[0])
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    kept = before < top_p
    return order[kept], weights[kept] / weights[kept].sum()


def reference(settings: OperatorSettings, logits, temperature, top_k, top_p, uniforms) -> Arrays:
    tokens = []
    for row, heat, k, p, uniform in zip(logits, temperature, top_k, top_p, uniforms, strict=True):
        if heat == 0.0:
            tokens.append(int(np.argmax(row)))
            continue
        ids, weights = distribution(row, heat, int(k), p)
        index = int(np.searchsorted(np.cumsum(weights), uniform, side="right"))
        tokens.append(int(ids[min(index, len(ids) - 1)]))
    return {"token_ids": np.array(tokens, np.int64)}
