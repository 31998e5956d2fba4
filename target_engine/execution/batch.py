"""One step as plain values: all that a rank needs to compute it, and nothing that it could decide. Torch-free.

A batch can be pickled: the rank that schedules sends it to the others, and each computes its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkRow:
    """One sequence's part of a step: `token_ids` at positions start, start + 1, ..., with blocks for all up to the
    last.

    The logits of its last `logits` tokens are wanted. `is_decode`: one token, computed by the decode operators.
    `state_slot` is its row in the state tensors, -1 for a model without recurrent layers.
    """

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    logits: int
    is_decode: bool
    state_slot: int = -1

    @property
    def count(self) -> int:
        """Number of tokens to compute."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, decodes first, and what happens to state slots around it.

    Before the step the slots in `zeroed` are set to zero and each (source, slot) of `restored` copies a snapshot into
    a slot; after it each (slot, target) of `kept` copies a slot into a snapshot. With `scoring_blocks` the step runs
    on the scorer's own caches, of at least so many blocks and one state slot.
    """

    rows: Sequence[WorkRow]
    zeroed: Sequence[int] = field(default=())
    restored: Sequence[tuple[int, int]] = field(default=())
    kept: Sequence[tuple[int, int]] = field(default=())
    scoring_blocks: int = 0
