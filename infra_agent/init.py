"""The text of a new goal file, from a handful of answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra_agent import tomltext
from infra_agent.goal import Goal


@dataclass(frozen=True)
class Answers:
    """What `infra-agent init` asks. Empty strings and None leave a line out."""

    name: str
    adapter: str
    start: str
    metric: str
    workload: str
    held_out: str
    model: str
    nll_increase: float | None
    peak_memory: str
    wall_seconds: float


def goal_text(answers: Answers, path: Path) -> str:
    """The file's text, valid at `path`; `UserError` with its line when an answer does not fit."""
    value = tomltext.value
    lines = [
        f"name = {value(answers.name)}",
        f"adapter = {value(answers.adapter)}  # the module that speaks for the engine",
        f"start = {value(answers.start)}  # the name of a shipped start, or a folder",
    ]
    if answers.model:
        lines.append(f"model = {value(answers.model)}")
    lines += ["seed = 0", "", "[objective]", f"metric = {value(answers.metric)}"]
    lines.append(f"workload = {value(answers.workload)}  # a workload of the engine, or a .jsonl file")
    if answers.held_out:
        lines.append(f"held_out = {value(answers.held_out)}  # no proposal is made from it")
    lines += ["", "[constraints]", '# A number, or a multiple of the value at the start such as "1.2x".']
    if answers.nll_increase is not None:
        lines.append(f"nll_increase_relative = {value(answers.nll_increase)}")
    if answers.peak_memory:
        lines.append(f"peak_memory_bytes = {value(answers.peak_memory)}")
    lines += [
        '# p95_ttft_ms = "1.5x"',
        "",
        "[scope]",
        '# editable = ["target_engine/ops/**"]   # patterns; without it, all that the engine allows',
        '# launch = ["max_batch", "dtype"]       # start parameters that may be changed; without it, all',
        "",
        "[budget]",
        f"wall_seconds = {value(answers.wall_seconds)}",
        "# candidates = 40",
        "",
        "[approval]",
        '# kinds = ["numerics"]   # moves of these kinds need a person: launch, code, numerics, concurrency',
    ]
    text = "\n".join(lines) + "\n"
    Goal.parse(text, path)
    return text
