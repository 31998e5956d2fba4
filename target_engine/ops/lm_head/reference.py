"""Plain reference of the logits."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, x) -> Arrays:
    return {"logits": x @ weight.T}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """What each rank has before or after the gather."""
    if sharding == "context":
        return [{"gather": {"x": whole["x"]}} for _ in pieces]
    return [{"partial": {"logits": piece["x"] @ piece["weight"].T}} for piece in pieces]
