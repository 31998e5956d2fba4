"""Schedules that a model's output must not depend on, each with one more thing that an engine may get wrong. Pure.

The first schedule that gives other tokens names what is wrong: a request alone, the next one in its slot, several at
once, small chunks, lost blocks, reused prefixes, evicted ones, ended requests. After each the engine must still take as
many requests at once as it was started for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedback.target import Request

#: Output tokens of a request.
TOKENS = 8

BLOCK = 4


@dataclass(frozen=True)
class Scenario:
    """Requests on an engine of its own.

    `launch` are changes of the launch configuration; request i arrives after `every` * i engine steps; `aborted` are
    submitted before them, run for a few steps, and ended, `rounds` times. `ordered`: the requests are alike, so that
    none may fall behind many that came later.
    """

    feature: str
    launch: dict[str, Any]
    requests: tuple[Request, ...]
    every: int = 0
    aborted: tuple[Request, ...] = ()
    rounds: int = 0
    ordered: bool = False

    def after(self) -> tuple[Request, ...]:
        """Short requests, as many as run at once: they need three blocks each."""
        prompt = self.requests[0].prompt_token_ids or ()
        return tuple(
            Request(id=f"after-{number}", prompt_token_ids=(prompt[0], 3 + number), max_tokens=TOKENS, ignore_eos=True)
            for number in range(self.launch["max_batch"])
        )


@dataclass
class _Prompts:
    """Draws prompts of a vocabulary."""

    rng: np.random.Generator
    vocabulary: int
    made: int = 0
    out: list[Request] = field(default_factory=list)

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(int(token) for token in self.rng.integers(3, self.vocabulary, count))

    def request(self, prompt: Sequence[int], tokens: int = TOKENS) -> Request:
        self.made += 1
        return Request(id=f"r{self.made}", prompt_token_ids=tuple(prompt), max_tokens=tokens, ignore_eos=True)

    def requests(self, *lengths: int) -> tuple[Request, ...]:
        return tuple(self.request(self.tokens(length)) for length in lengths)


def scenarios(seed: int, vocabulary: int) -> tuple[Scenario, ...]:
    """The schedules, in order of what they add; equal arguments give equal requests."""
    draw = _Prompts(np.random.default_rng(seed), vocabulary)
    plain = {"max_batch": 1, "block_size": BLOCK, "max_model_len": 48, "prefill_chunk": 32, "prefix_cache": False}
    # Three requests of 8 tokens are admitted, and have no room for the last four of their outputs.
    tight = plain | {"max_batch": 3, "num_blocks": 10, "max_model_len": 40}
    return (
        Scenario("alone", plain, draw.requests(13)),
        Scenario("full memory", plain, draw.requests(48 - TOKENS)),
        Scenario("slot reuse", plain, draw.requests(9, 1, 3, 12, 2, 5, 1, 8, 4, 6)),
        Scenario("batch", plain | {"max_batch": 4}, draw.requests(7, 1, 12, 4, 2, 9)),
        Scenario("chunks", plain | {"max_batch": 3, "prefill_chunk": 3}, draw.requests(11, 5, 1, 8), every=2),
        Scenario("preemption", tight | {"prefill_chunk": 6}, draw.requests(*[8] * 12), every=1, ordered=True),
        Scenario("prefix cache", plain | {"max_batch": 2, "prefix_cache": True}, _prefixes(draw), every=3),
        Scenario("eviction", tight | {"prefix_cache": True}, _shared(draw), every=2),
        Scenario("abort", tight, draw.requests(7, 12, 3, 9), aborted=draw.requests(5, 9, 2, 7, 3), rounds=6),
    )


def _prefixes(draw: _Prompts) -> tuple[Request, ...]:
    """A prompt, prompts that differ from it as little as a careless key would not see, and all of them once more."""
    common = draw.tokens(4 * BLOCK + 1)
    half = draw.vocabulary // 2
    swapped, shifted, moved = list(common), list(common), list(common)
    swapped[BLOCK], swapped[BLOCK + 1] = swapped[BLOCK + 1], swapped[BLOCK]
    shifted[1] = 3 + (shifted[1] - 3 + half) % (draw.vocabulary - 3)
    moved[:BLOCK] = draw.tokens(BLOCK)
    last = [*common[:-2], *draw.tokens(2)]
    # Tokens that agree in their low bits: what an 8-bit key takes for one another.
    low = [token ^ 256 if (token ^ 256) < draw.vocabulary and token >= 3 + 256 else token for token in common]
    kinds = (common, swapped, shifted, moved, last, low, common[: 2 * BLOCK + 1], [*common, *draw.tokens(BLOCK)])
    return tuple(draw.request(prompt) for _ in range(2) for prompt in kinds)


def _shared(draw: _Prompts) -> tuple[Request, ...]:
    """Requests of a few conversations in turn, more than the cache can keep."""
    beginnings = [draw.tokens(2 * BLOCK) for _ in range(4)]
    turns = [(0, 3), (1, 5), (0, 6), (2, 2), (1, 1), (3, 7), (0, 4), (2, 6), (1, 3), (3, 2), (0, 1), (2, 5)]
    return tuple(draw.request((*beginnings[which], *draw.tokens(more))) for which, more in turns)
