"""Reads the JSON files that come with a model. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from target_engine.errors import EngineError


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises `EngineError` when it cannot be read or holds something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(values, dict):
        raise EngineError(f"{path}: not a JSON object")
    return values
