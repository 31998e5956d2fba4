"""Turns logits into tokens by each request's sampling parameters. Random numbers depend on (seed, position) alone:
the same request draws the same tokens in any batch and after any preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from target_engine.scheduling.request import Request


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of a request's token at `position`, by a counter-based generator (Philox)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


class Sampler:
    """Samples one token for each request through the sampling operator."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> dict[str, int]:
        """Token id by request id; row i of `logits` float32 [S, vocabulary] belongs to `requests[i]`."""
        params = [request.sampling for request in requests]
        uniforms = [
            uniform(request.sampling.seed, len(request.tokens)) if request.sampling.temperature > 0 else 0.0
            for request in requests
        ]
        tokens = self.operator(
            logits,
            torch.tensor([item.temperature for item in params], dtype=torch.float32),
            torch.tensor([item.top_k for item in params]),
            torch.tensor([item.top_p for item in params], dtype=torch.float32),
            torch.tensor(uniforms, dtype=torch.float32),
        )
        return dict(zip((request.id for request in requests), tokens.tolist(), strict=True))
