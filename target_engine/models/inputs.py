"""The tensors of one step, the same for every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedContext:
    """Where a group of sequences has its keys and values.

    `block_tables` int32 [B, T], padded with 0; `context_lens` int32 [B], tokens visible to the last query;
    `query_starts` int32 [B+1], first token of each sequence within the group.
    """

    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """N tokens of one step: first `num_decodes` sequences with one token each, then the runs of tokens of prefills.

    `token_ids`, `positions`, `slot_mapping` int64 [N]; `logit_rows` int64 [S]: the tokens whose logits are wanted. A
    group without sequences is None. For a model with recurrent layers only, over all R sequences: `state_slots` int32
    [R], each one's row in the state tensors, and `query_starts` int32 [R+1], its first token.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logit_rows: Tensor
    num_decodes: int
    decode: PagedContext | None
    prefill: PagedContext | None
    state_slots: Tensor | None = None
    query_starts: Tensor | None = None
