"""Turns the rows of a step into the tensors that the model reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from target_engine.execution.batch import WorkRow
from target_engine.models.inputs import PagedContext, StepInputs


def step_inputs(rows: Sequence[WorkRow], block_size: int) -> StepInputs:
    """The tensors of a step; `rows` has its decodes first."""
    decodes = [row for row in rows if row.is_decode]
    prefills = rows[len(decodes) :]
    assert not any(row.is_decode for row in prefills), "decodes come first"
    counts = np.array([row.count for row in rows])
    positions = np.concatenate([np.arange(row.start, row.start + row.count) for row in rows])
    tables = block_tables(rows)
    owner = np.repeat(np.arange(len(rows)), counts)
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    ends = np.cumsum(counts)
    recurrent = rows[0].state_slot >= 0
    return StepInputs(
        token_ids=torch.tensor([token for row in rows for token in row.token_ids]),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slots),
        logit_rows=torch.from_numpy(_logit_rows(ends, np.array([row.logits for row in rows]))),
        num_decodes=len(decodes),
        decode=_context(decodes),
        prefill=_context(prefills),
        state_slots=torch.tensor([row.state_slot for row in rows], dtype=torch.int32) if recurrent else None,
        query_starts=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)) if recurrent else None,
    )


def _logit_rows(ends: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Indices of the last `wanted` tokens of each sequence; `ends` is where the next one begins."""
    if wanted.max() <= 1:
        return (ends - 1)[wanted > 0]
    return np.concatenate([np.arange(end - count, end) for end, count in zip(ends, wanted, strict=True)])


def block_tables(rows: Sequence[WorkRow]) -> np.ndarray:
    """int32 [rows, most blocks of a row], padded with 0."""
    tables = np.zeros((len(rows), max(len(row.block_ids) for row in rows)), np.int32)
    for index, row in enumerate(rows):
        tables[index, : len(row.block_ids)] = row.block_ids
    return tables


def _context(rows: Sequence[WorkRow]) -> PagedContext | None:
    """Block tables and lengths of a group of sequences, no wider than the group needs."""
    if not rows:
        return None
    lens = np.array([row.start + row.count for row in rows], np.int32)
    starts = np.concatenate([[0], np.cumsum([row.count for row in rows])]).astype(np.int32)
    return PagedContext(torch.from_numpy(block_tables(rows)), torch.from_numpy(lens), torch.from_numpy(starts))
