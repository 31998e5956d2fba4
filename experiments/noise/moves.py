"""The moves: launch configurations of the shipped engine that differ in one thing, from nothing to a factor."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class KnownMove:
    """A base and a candidate launch configuration; `about` is how large the effect is held to be."""

    name: str
    about: str
    base: Mapping[str, Any]
    candidate: Mapping[str, Any]


def profile(root: Path, name: str, model: str) -> dict[str, Any]:
    """A shipped launch profile, with another model where one is given."""
    values = tomllib.loads((root / "target_engine" / "profiles" / f"{name}.toml").read_text(encoding="utf-8"))
    return {**values, "model": model} if model else values


def known_moves(production: Mapping[str, Any]) -> tuple[KnownMove, ...]:
    """A/A and three moves whose sign and rough size are known, all towards the production profile."""

    def without(operator: str) -> dict[str, Any]:
        operators = {name: chosen for name, chosen in production["operators"].items() if name != operator}
        return {**production, "operators": operators}

    return (
        KnownMove("A/A", "1", production, production),
        KnownMove("native norm", "1.03 to 1.15", without("rms_norm"), production),
        KnownMove("16 slots, not 8", "1.2 to 1.5", {**production, "max_batch": 8}, production),
        KnownMove("bfloat16, not float32", "1.5 to 2", {**production, "dtype": "float32"}, production),
    )
