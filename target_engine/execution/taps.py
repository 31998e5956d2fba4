"""What flows between the layers of a running model, on one rank or on ranks that are simulated in this process.

Not for an agent to edit: a judge compares it with another run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.execution.batch import Batch, WorkRow
from target_engine.execution.runner import Runner
from target_engine.execution.scoring import CHUNK
from target_engine.parallel.cutting import shard_lengths, token_index


class _Tap:
    """An operator that keeps the first argument of its calls."""

    def __init__(self, operator: Callable[..., Any]) -> None:
        self.operator = operator
        self.seen: list[Tensor] = []

    def __call__(self, *arguments: Tensor) -> Any:
        self.seen.append(arguments[0].detach().clone())
        return self.operator(*arguments)


@torch.inference_mode()
def hidden_states(runner: Runner, tokens: Sequence[int], layer: int) -> np.ndarray:
    """float32 [tokens, hidden size] that enter layer number `layer`, as prefill computes them in chunks; the number of
    layers gives what the last one leaves. `EngineError` for a layer that there is not, or ranks in other processes.
    """
    layers = len(runner.model.layers)
    if not 0 <= layer <= layers:
        raise EngineError(f"layer {layer}: there are {layers}")
    if not tokens:
        raise EngineError("no tokens to compute")
    ranks = _ranks(runner)
    taps = [_place(rank, layer) for rank in ranks]
    try:
        for batch in _batches(runner, tokens):
            _run(runner, ranks, batch)
    finally:
        for owner, name, tap in taps:
            setattr(owner, name, tap.operator)
    return _joined(runner, [tap.seen for _, _, tap in taps])


def _ranks(runner: Any) -> list[Runner]:
    """Every rank's runner; those of ranks that are threads stand beside rank 0's."""
    if runner.parallel is None or hasattr(runner, "others"):
        return [runner, *getattr(runner, "others", [])]
    raise EngineError("the ranks are other processes: simulate them to look between layers")


def _place(runner: Any, layer: int) -> tuple[Any, str, _Tap]:
    """Put a tap before the norm that a layer begins with, or before the last one."""
    last = layer == len(runner.model.layers)
    owner, name = (runner.model, "final_norm") if last else (runner.model.layers[layer], "attention_norm")
    tap = _Tap(getattr(owner, name))
    setattr(owner, name, tap)
    return owner, name, tap


def _batches(runner: Runner, tokens: Sequence[int]) -> list[Batch]:
    """The sequence in chunks, as the scorer computes it; with all logits wanted the last norm has all tokens."""
    size = runner.config.block_size
    slot = 0 if runner.model_config.kda_layers else -1
    blocks = -(-len(tokens) // size)
    batches = []
    for start in range(0, len(tokens), CHUNK):
        end = min(start + CHUNK, len(tokens))
        row = WorkRow(start, tokens[start:end], range(-(-end // size)), end - start, False, slot)
        batches.append(Batch((row,), (slot,) if slot >= 0 and start == 0 else (), scoring_blocks=blocks))
    return batches


def _run(runner: Any, ranks: list[Runner], batch: Batch) -> None:
    """On all ranks, whatever their logits."""
    if len(ranks) == 1:
        Runner.run(runner, batch)
    else:
        runner.crew.run(lambda rank: Runner.run(ranks[rank], batch))


def _joined(runner: Any, seen: list[list[Tensor]]) -> np.ndarray:
    """Chunks of tokens from the ranks that have them; tensor-parallel ranks have the same ones."""
    config = runner.config
    chunks = []
    for number in range(len(seen[0])):
        parts = [seen[cp * config.tp][number] for cp in range(config.cp)]
        lengths = shard_lengths([sum(len(part) for part in parts)], config.cp)
        whole = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=torch.float32)
        for rank, part in enumerate(parts):
            whole[torch.from_numpy(token_index(lengths, rank))] = part.float()
        chunks.append(whole)
    return torch.cat(chunks).numpy()
