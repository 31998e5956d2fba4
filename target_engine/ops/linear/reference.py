"""Plain reference of a projection."""

from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays


def reference(settings: OperatorSettings, weight, x) -> Arrays:
    return {"y": x @ weight.T}


def steps(settings: OperatorSettings, sharding: str, pieces: list[Arrays], whole: Arrays) -> list[dict[str, Arrays]]:
    """What each rank has before the sum."""
    if sharding not in ("rows", "head_rows"):
        return [{} for _ in pieces]
    return [{"partial": {"y": piece["x"] @ piece["weight"].T}} for piece in pieces]
