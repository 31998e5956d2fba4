"""Llama (Touvron et al., 2023; grouped-query attention, gated MLP, rotary positions) as a list of operator calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from target_engine.models.inputs import StepInputs
from target_engine.weights import Weights

Make = Callable[..., Any]
"""`make(operator, cut=None, **constants)` builds the implementation that the launch configuration chose. `cut` says
what tensor parallelism cuts of a linear, which only the model knows: "rows" (outputs are summed), "columns", or None.
"""

Cache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [num_blocks, block_size, num_kv_heads, head_dim]."""


class Mlp:
    """The operators of a gated MLP that carry weights."""

    def __init__(self, make: Make, weights: Weights, prefix: str) -> None:
        self.mlp_norm = make("rms_norm", weight=weights[prefix + "post_attention_layernorm.weight"])
        self.gate_up_projection = make(
            "gate_up_projection",
            w_gate=weights[prefix + "mlp.gate_proj.weight"],
            w_up=weights[prefix + "mlp.up_proj.weight"],
        )
        self.mlp_down = make("linear", cut="rows", weight=weights[prefix + "mlp.down_proj.weight"])


class LlamaLayer(Mlp):
    """The operators of one layer that carry weights."""

    def __init__(self, make: Make, weights: Weights, index: int) -> None:
        prefix = f"model.layers.{index}."
        self.attention_norm = make("rms_norm", weight=weights[prefix + "input_layernorm.weight"])
        self.qkv_projection = make(
            "qkv_projection",
            w_q=weights[prefix + "self_attn.q_proj.weight"],
            w_k=weights[prefix + "self_attn.k_proj.weight"],
            w_v=weights[prefix + "self_attn.v_proj.weight"],
        )
        self.attention_output = make("linear", cut="head_rows", weight=weights[prefix + "self_attn.o_proj.weight"])
        super().__init__(make, weights, prefix)


class Llama:
    """The model: `forward` maps the tokens of a step to the logits that the step wants."""

    def __init__(self, make: Make, weights: Weights) -> None:
        config = weights.config
        self.head_shape = (-1, config.num_heads, config.head_dim)
        self.kv_shape = (-1, config.num_kv_heads, config.head_dim)
        tied = config.tie_word_embeddings
        table = weights["model.embed_tokens.weight"]
        self.embedding = make("embedding", weight=table)
        self.lm_head = make("lm_head", weight=table if tied else weights["lm_head.weight"])
        self.final_norm = make("rms_norm", weight=weights["model.norm.weight"])
        self.rotary = make("rotary", inv_freq=weights.inverse_frequencies())
        self.rope = make("rope")
        self.kv_write = make("kv_write")
        self.attention_prefill = make("attention_prefill")
        self.attention_decode = make("attention_decode")
        self.silu_mul = make("silu_mul")
        self.layers: list[Any] = [self.make_layer(make, weights, index) for index in range(config.num_layers)]

    def make_layer(self, make: Make, weights: Weights, index: int) -> Any:
        """The operators of layer `index` that carry weights."""
        return LlamaLayer(make, weights, index)

    def forward(self, step: StepInputs, caches: Sequence[Any]) -> Tensor:
        """Logits float32 [S, vocabulary] at `step.logit_rows`; writes the step's keys and values into `caches`."""
        x = self.embedding(step.token_ids)
        cos, sin = self.rotary(step.positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = x + self.attention(layer, x, cos, sin, cache, step)
            x = x + self.mlp(layer, x)
        return self.lm_head(self.final_norm(x[step.logit_rows]))

    def attention(
        self, layer: LlamaLayer, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache, step: StepInputs
    ) -> Tensor:
        """What causal attention adds to x [N, hidden]."""
        k_cache, v_cache = cache
        q, k, v = layer.qkv_projection(layer.attention_norm(x))
        q, k, v = q.view(self.head_shape), k.view(self.kv_shape), v.view(self.kv_shape)
        q, k = self.rope(q, k, cos, sin)
        self.kv_write(k, v, step.slot_mapping, k_cache, v_cache)
        return layer.attention_output(self._attend(q, k_cache, v_cache, step).flatten(1))

    def mlp(self, layer: Mlp, x: Tensor) -> Tensor:
        """What the gated MLP adds to x [N, hidden]."""
        gate, up = layer.gate_up_projection(layer.mlp_norm(x))
        return layer.mlp_down(self.silu_mul(gate, up))

    def _attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: StepInputs) -> Tensor:
        """Attention of the decoding sequences, then of the prefills: [N, num_heads, head_dim]."""
        parts = []
        if step.decode is not None:
            decode = step.decode
            rows = q[: step.num_decodes]
            parts.append(self.attention_decode(rows, k_cache, v_cache, decode.block_tables, decode.context_lens))
        if step.prefill is not None:
            prefill = step.prefill
            rows = q[step.num_decodes :]
            tables, starts, lens = prefill.block_tables, prefill.query_starts, prefill.context_lens
            parts.append(self.attention_prefill(rows, k_cache, v_cache, tables, starts, lens))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def operators(self) -> Iterator[Any]:
        """Every operator of the model, once."""
        for owner in (self, *self.layers):
            yield from (value for value in vars(owner).values() if callable(value))
