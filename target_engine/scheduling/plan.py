"""What the scheduler hands out and takes back: the rows of a step, the requests that ended, and its counters."""

from __future__ import annotations

from dataclasses import dataclass

from target_engine.scheduling.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: tokens [start, start + count) are computed, attending to all tokens before them.

    `block_ids` cover positions [0, start + count). `samples`: the step ends with this request's next token.
    `is_decode`: one token, and it samples. Tokens are `request.tokens[start : start + count]`.
    """

    request: Request
    start: int
    count: int
    block_ids: tuple[int, ...]
    samples: bool

    def __post_init__(self) -> None:
        assert self.count >= 1, f"request {self.request.id}: a row of {self.count} tokens"
        assert self.start >= 0
        assert self.start + self.count <= len(self.request.tokens)

    @property
    def is_decode(self) -> bool:
        """One token, after which the next is sampled."""
        return self.samples and self.count == 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes: decode rows first, each kind in order of arrival. `preempted`: ids that lost their blocks
    for it.
    """

    rows: tuple[Row, ...]
    preempted: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens that the step computes."""
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended; it holds no blocks any more."""

    request: Request
    reason: FinishReason


@dataclass(slots=True)
class Totals:
    """Counters over the life of a scheduler."""

    steps: int = 0
    requests: int = 0
    finished: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0  # of admitted requests, each prompt once
    cached_tokens: int = 0  # of those, how many the prefix cache held
    computed_tokens: int = 0  # recomputation after preemption included
    output_tokens: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
