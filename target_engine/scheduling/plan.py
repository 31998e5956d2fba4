"""What the scheduler hands out and takes back: the rows of a step, the requests that ended, and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from target_engine.scheduling.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class StateWork:
    """What a row does to recurrent state: it moves `slot` on by its tokens.

    Before it the slot is zeroed (`zeroed`) or takes a copy of the snapshot in slot `restored`; after it slot `kept`
    takes a copy, the state after the row's last token.
    """

    slot: int
    zeroed: bool = False
    restored: int | None = None
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: tokens [start, start + count) are computed, attending to all tokens before them.

    `block_ids` cover positions [0, start + count). `samples`: the step ends with this request's next token.
    `is_decode`: one token, and it samples. Tokens are `request.tokens[start : start + count]`. `state` is None for a
    model without recurrent layers.
    """

    request: Request
    start: int
    count: int
    block_ids: tuple[int, ...]
    samples: bool
    state: StateWork | None = None

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

    Around the step state slots are to be set to zero (`zeroed`), filled from snapshots before it (`restored`: pairs of
    snapshot and slot) and copied into snapshots after it (`kept`: pairs of slot and snapshot).
    """

    rows: tuple[Row, ...]
    preempted: tuple[str, ...] = ()
    zeroed: tuple[int, ...] = ()
    restored: tuple[tuple[int, int], ...] = ()
    kept: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Row], preempted: Sequence[str]) -> Plan:
        """A plan of these rows, with what they do to state slots."""
        states = [row.state for row in rows if row.state is not None]
        return cls(
            tuple(rows),
            tuple(preempted),
            tuple(state.slot for state in states if state.zeroed),
            tuple((state.restored, state.slot) for state in states if state.restored is not None),
            tuple((state.slot, state.kept) for state in states if state.kept is not None),
        )

    @property
    def tokens(self) -> int:
        """Number of tokens that the step computes."""
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended; it holds no blocks and no state slot any more."""

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
