"""What the experiments' tests share: a small goal on the bundled target with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tiny_model import make_tiny_llama

WORDS = ("the quick brown fox ", "engines compute tokens ", "in blocks and then ")

#: Longer than any sequence of the shipped profiles.
POSITIONS = 4096


def tiny(folder: Path) -> Path:
    """The tiny model, with room for the shipped profiles' longest sequence."""
    return make_tiny_llama(folder, max_position_embeddings=POSITIONS)


def write_workload(path: Path, count: int = 6, tokens: int = 12) -> Path:
    """A few short requests."""
    rows = [{"workload": path.stem, "version": 1}]
    rows += [
        {"id": f"r{i}", "prompt": WORDS[i % 3] * (1 + i % 4), "max_tokens": tokens, "ignore_eos": True}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_goal(folder: Path, model: Path, wall_seconds: float = 400, candidates: int | None = None) -> Path:
    """A goal file on the tiny model, with its workload beside it."""
    write_workload(folder / "few.jsonl")
    lines = [
        'name = "small"', 'adapter = "target_engine.adapter"', 'start = "first_run"', f'model = "{model}"',
        "[objective]", 'metric = "output_throughput"', 'workload = "./few.jsonl"',
        "[budget]", f"wall_seconds = {wall_seconds}", *([f"candidates = {candidates}"] if candidates else []),
    ]  # fmt: skip
    file = folder / "small.toml"
    file.write_text("\n".join(lines) + "\n")
    return file
