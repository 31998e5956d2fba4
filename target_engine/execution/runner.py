"""The model and its caches: computes one batch after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from target_engine.checkpoint import Checkpoint
from target_engine.errors import EngineError
from target_engine.execution.batch import Batch
from target_engine.execution.caches import Caches, empty_states
from target_engine.execution.inputs import step_inputs
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.models.kda_hybrid import KdaHybrid
from target_engine.models.llama import Cache, Llama
from target_engine.ops.registry import build
from target_engine.ops.settings import OperatorSettings
from target_engine.spans import OPERATORS, SpanLog
from target_engine.weights import Weights


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
    linear = {}
    if model.kda_layers:
        linear = {
            "linear_heads": model.linear_num_heads,
            "key_dim": model.linear_key_dim,
            "value_dim": model.linear_value_dim,
            "conv_width": model.conv_width,
        }
    return OperatorSettings(
        dtype=config.dtype,
        eps=model.rms_norm_eps,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        rows=config.max_batch,
        **linear,
    )


class Runner:
    """Owns the model and its caches, of one rank where there are several (`parallel`). `run` computes one batch."""

    state_dtype = torch.float32
    """Type of the recurrent states, whatever the compute type: they are sums over all tokens so far."""

    def __init__(self, config: LaunchConfig, weights: Weights, spans: SpanLog, parallel: Any = None) -> None:
        self.config = config
        self.spans = spans
        self.parallel = parallel
        if parallel is not None:
            weights = parallel.weights(weights)
        self.model_config = weights.config
        self.dtype = weights.dtype
        self.settings = operator_settings(config, weights.config)
        self.model = (KdaHybrid if weights.config.kda_layers else Llama)(self.make, weights)
        self.caches = self.new_caches(config.kv_blocks, config.state_slots)
        self._scoring: tuple[int, Caches] | None = None

    @classmethod
    def open(cls, config: LaunchConfig, checkpoint: Checkpoint, spans: SpanLog) -> Runner:
        """A runner of the whole model in this process."""
        with torch.inference_mode(), Weights(checkpoint.folder, checkpoint.config, cls.dtype_of(config)) as weights:
            return cls(config, weights, spans)

    @staticmethod
    def dtype_of(config: LaunchConfig) -> torch.dtype:
        """Type of weights, activations, keys and values."""
        return getattr(torch, config.dtype)

    def make(self, operator: str, cut: str | None = None, **constants: Tensor) -> Traced:
        """The operator's chosen implementation around its constants, traced; `cut` is for several ranks alone."""
        if self.parallel is None:
            implementation = self.build(operator, **constants)
        else:
            implementation = self.parallel.make(operator, self.build, self.settings, cut, constants)
        return Traced(operator, implementation, self.spans)

    def build(self, operator: str, **constants: Tensor) -> Any:
        """The operator's chosen implementation around its constants."""
        return build(operator, self.config.implementation(operator), self.settings, **constants)

    def new_caches(self, num_blocks: int, state_slots: int) -> Caches:
        """Zeroed caches for the model; state slots only where it has recurrent layers."""
        model = self.model_config
        full_layers = model.num_layers - len(model.kda_layers)
        pairs = [self._keys_and_values(place, num_blocks) for place in range(full_layers)]
        if not model.kda_layers:
            return Caches(pairs)
        return Caches(pairs, empty_states(model, state_slots, self.dtype, self.state_dtype), model.kda_layers)

    def _keys_and_values(self, place: int, num_blocks: int) -> Cache:
        """Zeroed keys and values of the full layer number `place`."""
        model = self.model_config
        blocks = num_blocks if self.parallel is None else self.parallel.blocks(place, num_blocks)
        shape = (blocks, self.config.block_size, model.num_kv_heads, model.head_dim)
        try:
            cache = torch.zeros(shape, dtype=self.dtype), torch.zeros(shape, dtype=self.dtype)
        except RuntimeError as error:
            raise EngineError(
                f"no memory for {num_blocks} KV blocks: lower num_blocks, max_batch or max_model_len"
            ) from error
        if self.parallel is not None:
            self.parallel.own(cache[0], place)
        return cache

    def run(self, batch: Batch) -> Tensor:
        """Logits float32 [number of tokens that want them, vocabulary], in the order of the rows."""
        parallel = self.parallel
        if parallel is not None:
            parallel.announce("run", batch)
        with self.spans.span("prepare"):
            step = step_inputs(batch.rows, self.config.block_size)
            caches = self._scoring_caches(batch.scoring_blocks) if batch.scoring_blocks else self.caches
            caches.zero(batch.zeroed)
            caches.copy(batch.restored)
            if parallel is not None:
                step = parallel.local(step)
        phase = "decode" if step.prefill is None else "prefill" if step.decode is None else "mixed"
        with self.spans.span(phase, rows=len(batch.rows), tokens=len(step.token_ids)):
            logits = self.model.forward(step, caches.layers)
            caches.copy(batch.kept)
        if parallel is not None:
            parallel.finish()
        return logits

    def _scoring_caches(self, blocks: int) -> Caches:
        """The scorer's caches: at least so many blocks, and one state slot."""
        if self._scoring is None or self._scoring[0] < blocks:
            self._scoring = blocks, self.new_caches(blocks, 1)
        return self._scoring[1]

    def weight_bytes(self) -> int:
        """Bytes of the constants that the operators keep, shared ones once."""
        kept = (tensor for operator in self.model.operators() for tensor in tensors_of(operator.implementation))
        return sum({_identity(tensor): tensor.numel() * tensor.element_size() for tensor in kept}.values())

    def kv_bytes(self) -> int:
        """Bytes of keys and values."""
        return self.caches.kv_bytes()

    def state_bytes(self) -> int:
        """Bytes of recurrent states."""
        return self.caches.state_bytes()

    def close(self) -> None:
        """Nothing to end: a runner in this process goes with its last reference."""


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
