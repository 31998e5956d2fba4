"""The model, its paged caches, and the tensors of each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.models.inputs import PagedContext, StepInputs
from target_engine.models.llama import Cache, Llama
from target_engine.ops.registry import build
from target_engine.ops.settings import OperatorSettings
from target_engine.spans import OPERATORS, SpanLog
from target_engine.weights import Weights


class Work(Protocol):
    """One sequence's part of a step, as the scheduler plans it: tokens [start, start + count) with blocks for [0, start
    + count).
    """

    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def block_ids(self) -> Sequence[int]: ...
    @property
    def samples(self) -> bool: ...
    @property
    def is_decode(self) -> bool: ...
    @property
    def token_ids(self) -> Sequence[int]:
        """The `count` tokens to compute."""
        ...


class Traced:
    """An operator that writes a span of its name for each call when operators are recorded."""

    __slots__ = ("_spans", "implementation", "name")

    def __init__(self, name: str, implementation: Any, spans: SpanLog) -> None:
        self.name, self.implementation, self._spans = name, implementation, spans

    def __call__(self, *arguments: Tensor) -> Any:
        if self._spans.level < OPERATORS:
            return self.implementation(*arguments)
        with self._spans.span(self.name, "op", rows=len(arguments[0])):
            return self.implementation(*arguments)


def operator_settings(config: LaunchConfig, model: ModelConfig) -> OperatorSettings:
    """What operators may know of the model and the launch configuration."""
    return OperatorSettings(
        dtype=config.dtype,
        eps=model.rms_norm_eps,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        rows=config.max_batch,
    )


class Runner:
    """Owns the model and the KV caches. `run` computes one step; `new_caches` gives caches of another size for the same
    model.
    """

    def __init__(self, config: LaunchConfig, weights: Weights, spans: SpanLog) -> None:
        self.config = config
        self.model_config = weights.config
        self.spans = spans
        self.settings = operator_settings(config, weights.config)
        self.model = Llama(self.make, weights)
        self.caches = self.new_caches(config.kv_blocks)

    def make(self, operator: str, **constants: Tensor) -> Traced:
        """The operator's chosen implementation around its constants, traced."""
        implementation = build(operator, self.config.implementation(operator), self.settings, **constants)
        return Traced(operator, implementation, self.spans)

    def new_caches(self, num_blocks: int) -> list[Cache]:
        """Zeroed keys and values for every layer, each [num_blocks, block_size, num_kv_heads, head_dim]."""
        model = self.model_config
        shape = (num_blocks, self.config.block_size, model.num_kv_heads, model.head_dim)
        dtype = getattr(torch, self.config.dtype)
        try:
            return [(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(model.num_layers)]
        except RuntimeError as error:
            raise EngineError(
                f"no memory for {num_blocks} KV blocks: lower num_blocks, max_batch or max_model_len"
            ) from error

    def run(self, work: Sequence[Work]) -> Tensor:
        """Logits float32 [number of rows that sample, vocabulary], in the order of `work` (decodes first)."""
        with self.spans.span("prepare"):
            step = step_inputs(work, self.config.block_size)
        phase = "decode" if step.prefill is None else "prefill" if step.decode is None else "mixed"
        with self.spans.span(phase, rows=len(work), tokens=len(step.token_ids)):
            return self.model.forward(step, self.caches)

    def weight_bytes(self) -> int:
        """Bytes of the constants that the operators keep, shared ones once."""
        kept = (tensor for operator in self.model.operators() for tensor in tensors_of(operator.implementation))
        return sum({_identity(tensor): tensor.numel() * tensor.element_size() for tensor in kept}.values())

    def kv_bytes(self) -> int:
        """Bytes of the KV caches."""
        return sum(tensor.numel() * tensor.element_size() for cache in self.caches for tensor in cache)


def tensors_of(holder: object, depth: int = 3) -> Iterator[Tensor]:
    """Every tensor that an object keeps in its attributes, in theirs and in lists of them."""
    if isinstance(holder, Tensor):
        yield holder
    elif depth:
        values = (
            holder if isinstance(holder, list | tuple) else vars(holder).values() if hasattr(holder, "__dict__") else ()
        )
        for value in values:
            yield from tensors_of(value, depth - 1)


def _identity(tensor: Tensor) -> int:
    """Equal for two tensors that share their data; packed tensors have no address and are never shared."""
    return id(tensor) if tensor.layout == torch._mkldnn else tensor.data_ptr()  # pyrefly: ignore[missing-attribute]


def step_inputs(work: Sequence[Work], block_size: int) -> StepInputs:
    """The tensors of a step; `work` has its decodes first."""
    decodes = [row for row in work if row.is_decode]
    prefills = work[len(decodes) :]
    assert not any(row.is_decode for row in prefills), "decodes come first"
    counts = np.array([row.count for row in work])
    positions = np.concatenate([np.arange(row.start, row.start + row.count) for row in work])
    tables = block_tables(work)
    owner = np.repeat(np.arange(len(work)), counts)
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    last = np.cumsum(counts) - 1
    return StepInputs(
        token_ids=torch.tensor([token for row in work for token in row.token_ids]),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slots),
        logit_rows=torch.from_numpy(last[[row.samples for row in work]]),
        num_decodes=len(decodes),
        decode=_context(decodes),
        prefill=_context(prefills),
    )


def block_tables(work: Sequence[Work]) -> np.ndarray:
    """int32 [rows, most blocks of a row], padded with 0."""
    tables = np.zeros((len(work), max(len(row.block_ids) for row in work)), np.int32)
    for index, row in enumerate(work):
        tables[index, : len(row.block_ids)] = row.block_ids
    return tables


def _context(work: Sequence[Work]) -> PagedContext | None:
    """Block tables and lengths of a group of sequences, no wider than the group needs."""
    if not work:
        return None
    lens = np.array([row.start + row.count for row in work], np.int32)
    starts = np.concatenate([[0], np.cumsum([row.count for row in work])]).astype(np.int32)
    return PagedContext(torch.from_numpy(block_tables(work)), torch.from_numpy(lens), torch.from_numpy(starts))
