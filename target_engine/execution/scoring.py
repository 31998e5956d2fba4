"""Teacher-forced scores: what the started model, with its own weights and operators, thinks of given tokens.

The sequence is computed in chunks through the prefill path into caches of its own, so that serving is not disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.execution.batch import Batch, WorkRow
from target_engine.execution.runner import Runner
from target_engine.models.config import ModelConfig

CHUNK = 128
"""Tokens computed at once; bounds the logits in memory to 128 x vocabulary."""


@dataclass(frozen=True)
class Score:
    """Natural logarithms, one entry per output token; `logits` float32 [output tokens, vocabulary] when they were asked
    for.
    """

    logprob: list[float]
    best: list[int]
    best_logprob: list[float]
    logits: np.ndarray | None = None


class Scorer:
    """Scores sequences on a runner's model."""

    def __init__(self, runner: Runner, model: ModelConfig) -> None:
        self.runner = runner
        self.model = model

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], output: Sequence[int], logits: bool = False) -> Score:
        """Score `output` after `prompt`; raises `EngineError` when either is empty or a token is unknown."""
        tokens = [*prompt, *output]
        vocabulary = self.model.vocab_size
        if not prompt or not output:
            raise EngineError("a sequence to score needs at least one prompt token and one output token")
        if not all(0 <= token < vocabulary for token in tokens):
            raise EngineError(f"a token to score is not in the vocabulary of {vocabulary}")
        size = self.runner.config.block_size
        blocks = -(-len(tokens) // size)
        slot = 0 if self.model.kda_layers else -1
        parts: list[Tensor] = []
        kept: list[Tensor] = []
        targets = torch.tensor(output)
        first = len(prompt) - 1  # this position's logits predict the first output token
        for start in range(0, len(tokens) - 1, CHUNK):
            end = min(start + CHUNK, len(tokens) - 1)
            wanted = end - max(start, min(first, end))
            row = WorkRow(start, tokens[start:end], range(-(-end // size)), wanted, False, slot)
            # A recurrent state must not begin with what the last sequence left; later chunks go on from their own.
            zeroed = (slot,) if slot >= 0 and start == 0 else ()
            values = self.runner.run(Batch((row,), zeroed, scoring_blocks=blocks))
            if not wanted:
                continue
            given = targets[max(start, first) - first : end - first]
            parts.append(_logprobs(values, given))
            if logits:
                kept.append(values)
        logprob, best, best_logprob = torch.cat(parts, dim=1)
        return Score(
            logprob.tolist(),
            [int(token) for token in best.tolist()],
            best_logprob.tolist(),
            torch.cat(kept).numpy() if logits else None,
        )


def _logprobs(logits: Tensor, given: Tensor) -> Tensor:
    """float64 [3, n]: log-probability of the given tokens, the most likely tokens, their log-probability."""
    wide = logits.double()
    total = wide.logsumexp(dim=-1)
    best = wide.max(dim=-1)
    return torch.stack(
        [wide.gather(1, given.unsqueeze(1)).squeeze(1) - total, best.indices.double(), best.values - total]
    )
