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
from target_engine.execution.runner import Runner, step_inputs
from target_engine.models.inputs import StepInputs

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


@dataclass(frozen=True)
class _Chunk:
    """Tokens [start, start + count) of a sequence that has its blocks in order."""

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    samples: bool = True
    is_decode: bool = False

    @property
    def count(self) -> int:
        return len(self.token_ids)


class Scorer:
    """Scores sequences on a runner's model."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._blocks = 0
        self._caches: list[tuple[Tensor, Tensor]] = []

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], output: Sequence[int], logits: bool = False) -> Score:
        """Score `output` after `prompt`; raises `EngineError` when either is empty or a token is unknown."""
        tokens = [*prompt, *output]
        vocabulary = self.runner.model_config.vocab_size
        if not prompt or not output:
            raise EngineError("a sequence to score needs at least one prompt token and one output token")
        if not all(0 <= token < vocabulary for token in tokens):
            raise EngineError(f"a token to score is not in the vocabulary of {vocabulary}")
        size = self.runner.config.block_size
        self._reserve(-(-len(tokens) // size))
        parts: list[Tensor] = []
        kept: list[Tensor] = []
        targets = torch.tensor(output)
        first = len(prompt) - 1  # this position's logits predict the first output token
        for start in range(0, len(tokens) - 1, CHUNK):
            end = min(start + CHUNK, len(tokens) - 1)
            chunk = _Chunk(start, tokens[start:end], range(-(-end // size)))
            wanted = torch.arange(min(max(start, first), end) - start, end - start)
            step = step_inputs([chunk], size)
            step = StepInputs(
                step.token_ids, step.positions, step.slot_mapping, wanted, step.num_decodes, step.decode, step.prefill
            )
            values = self.runner.model.forward(step, self._caches)
            if not len(wanted):
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

    def _reserve(self, blocks: int) -> None:
        """Have caches of at least this many blocks."""
        if blocks > self._blocks:
            self._caches = self.runner.new_caches(blocks)
            self._blocks = blocks


def _logprobs(logits: Tensor, given: Tensor) -> Tensor:
    """float64 [3, n]: log-probability of the given tokens, the most likely tokens, their log-probability."""
    wide = logits.double()
    total = wide.logsumexp(dim=-1)
    best = wide.max(dim=-1)
    return torch.stack(
        [wide.gather(1, given.unsqueeze(1)).squeeze(1) - total, best.indices.double(), best.values - total]
    )
