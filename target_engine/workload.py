"""Reads a workload file: JSON lines, a header `{"workload", "version": 1, ...}`, then a request a line. Torch-free."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from target_engine.errors import EngineError
from target_engine.scheduling.request import SamplingParams

WORKLOADS = Path(__file__).parent / "workloads"
VERSION = 1


@dataclass(frozen=True)
class WorkloadRequest:
    """One request: exactly one of `prompt` and `prompt_token_ids`. `seed` None leaves it to the engine."""

    id: str
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    arrival_s: float = 0.0
    sampling: dict[str, Any] = field(default_factory=dict)


def read_workload(path: str | Path) -> tuple[bool, list[WorkloadRequest]]:
    """(whether prompts are user turns of a chat, requests) of a file or a shipped workload's name.

    Raises `EngineError` with file and line.
    """
    shipped = WORKLOADS / f"{path}.jsonl"
    path = shipped if shipped.is_file() and not Path(path).is_file() else Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    rows = [(number, _row(line, f"{path}:{number}")) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows or "workload" not in rows[0][1] or rows[0][1].get("version") != VERSION:
        raise EngineError(f"{path}: the first line must be a header with workload and version {VERSION}")
    chat = bool(rows[0][1].get("chat", False))
    return chat, [_request(row, f"{path}:{number}") for number, row in rows[1:]]


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise EngineError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise EngineError(f"{where}: not a JSON object")
    return row


def _request(row: dict[str, Any], where: str) -> WorkloadRequest:
    values = dict(row)
    try:
        own = {name: values.pop(name) for name in ("id", "prompt", "seed", "arrival_s") if name in values}
        if "prompt_token_ids" in values:
            own["prompt_token_ids"] = tuple(values.pop("prompt_token_ids"))
        if (own.get("prompt") is None) == (own.get("prompt_token_ids") is None):
            raise EngineError("give either prompt or prompt_token_ids")
        SamplingParams.of(values, own.get("seed") or 0)
        return WorkloadRequest(**own, sampling=values)
    except (TypeError, ValueError) as error:
        raise EngineError(f"{where}: {error}") from error
