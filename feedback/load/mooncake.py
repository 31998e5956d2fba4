"""Mooncake traces as workloads: JSON lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (one for
each 512 tokens).

A trace has lengths and no text. Prompts are made of token ids: each `hash_id` stands for one fixed, pseudo-random
block, so that requests that shared a prefix in the trace share it here. `scale` shrinks lengths for small machines,
block size included, which keeps the shared share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedback.errors import UserError
from feedback.load.workload import Row, Workload

BLOCK = 512


def read_mooncake(path: Path, vocabulary: tuple[int, int], scale: float = 1.0, limit: int | None = None) -> Workload:
    """A workload from a trace; `vocabulary` is the half-open range of token ids to draw from.

    `scale` multiplies all lengths (0 < scale <= 1), `limit` keeps the first so many requests. Raises `UserError` naming
    the line.
    """
    low, high = vocabulary
    if not 0 <= low < high or not 0 < scale <= 1:
        raise UserError(f"mooncake trace: need 0 <= low < high token ids and 0 < scale <= 1, not {vocabulary}, {scale}")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the trace: {getattr(error, 'strerror', None) or error}") from error
    rows: list[Row] = []
    start: float | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if limit is not None and len(rows) >= limit:
            break
        entry = _entry(line, f"{path}:{number}")
        start = entry["timestamp"] if start is None else start
        rows.append(_row(entry, len(rows), start, vocabulary, scale))
    if not rows:
        raise UserError(f"{path}: the trace has no requests")
    return Workload(name=path.stem, rows=tuple(rows), about={"source": "mooncake", "scale": scale})


def _entry(line: str, where: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    numbers = ("timestamp", "input_length", "output_length")
    if not isinstance(entry, dict) or any(not isinstance(entry.get(name), int | float) for name in numbers):
        raise UserError(f"{where}: a trace line needs the numbers {', '.join(numbers)}")
    if entry["input_length"] < 1 or entry["output_length"] < 1:
        raise UserError(f"{where}: lengths must be at least 1")
    return entry


def _row(entry: Mapping[str, Any], number: int, start: float, vocabulary: tuple[int, int], scale: float) -> Row:
    length = max(1, round(entry["input_length"] * scale))
    size = max(1, round(BLOCK * scale))
    ids = list(entry.get("hash_ids") or [])
    blocks = [_block(identity, size, vocabulary) for identity in ids]
    # A trace may name fewer blocks than the length needs; what is left is the request's own.
    missing = length - sum(map(len, blocks))
    if missing > 0:
        blocks.append(_block(f"request {number}", missing, vocabulary))
    tokens = np.concatenate(blocks)[:length]
    return Row(
        id=f"r{number}",
        prompt_token_ids=tuple(tokens.tolist()),
        max_tokens=max(1, round(entry["output_length"] * scale)),
        ignore_eos=True,
        arrival_s=max(0.0, (entry["timestamp"] - start) / 1e3),
    )


def _block(identity: object, size: int, vocabulary: tuple[int, int]) -> np.ndarray:
    seed = np.frombuffer(repr(identity).encode(), dtype=np.uint8)
    return np.random.default_rng(seed.astype(np.uint32)).integers(*vocabulary, size=size)
