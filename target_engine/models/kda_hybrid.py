"""The hybrid of Kimi Delta Attention and full attention (Kimi Linear, 2025) as a list of operator calls.

A KDA layer carries its past in one matrix a head instead of keys and values: decoding costs the same at any length. The
full-attention layers in between are Llama's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from target_engine.models.inputs import StepInputs
from target_engine.models.llama import Llama, LlamaLayer, Make, Mlp
from target_engine.weights import Weights


class KdaState(NamedTuple):
    """Recurrent states of one KDA layer, a row a slot.

    `conv_q`, `conv_k` [X, H * K, W - 1] and `conv_v` [X, H * V, W - 1] in the compute type: the last inputs of the
    convolutions, older first. `recurrent` float32 [X, H, K, V].
    """

    conv_q: Tensor
    conv_k: Tensor
    conv_v: Tensor
    recurrent: Tensor


class KdaLayer(Mlp):
    """The operators of one KDA layer that carry weights."""

    def __init__(self, make: Make, weights: Weights, index: int) -> None:
        block = f"model.layers.{index}."
        prefix = block + "linear_attn."

        def linear(name: str, cut: str | None = None) -> Any:
            return make("linear", cut=cut, weight=weights[f"{prefix}{name}_proj.weight"])

        self.attention_norm = make("rms_norm", weight=weights[block + "input_layernorm.weight"])
        self.q_projection = linear("q", "columns")
        self.k_projection = linear("k", "columns")
        self.v_projection = linear("v", "columns")
        self.beta_projection = linear("beta", "columns")
        self.decay_down, self.decay_up = linear("decay_down"), linear("decay_up", "columns")
        self.gate_down, self.gate_up = linear("gate_down"), linear("gate_up", "columns")
        self.q_convolution, self.k_convolution, self.v_convolution = (
            make("short_convolution", weight=weights[f"{prefix}{name}_conv.weight"]) for name in "qkv"
        )
        self.kda_gate = make("kda_gate", a_log=weights[prefix + "a_log"], dt_bias=weights[prefix + "dt_bias"])
        self.gated_norm = make("gated_norm", weight=weights[prefix + "norm.weight"])
        self.attention_output = linear("o", "rows")
        super().__init__(make, weights, block)


class KdaHybrid(Llama):
    """The model: `forward` maps the tokens of a step to the logits that the step wants."""

    def __init__(self, make: Make, weights: Weights) -> None:
        config = weights.config
        self.kda_layers = frozenset(config.kda_layers)
        self.key_shape = (-1, config.linear_num_heads, config.linear_key_dim)
        self.value_shape = (-1, config.linear_num_heads, config.linear_value_dim)
        self.kda_chunk = make("kda_chunk")
        self.kda_recurrent = make("kda_recurrent")
        super().__init__(make, weights)

    def make_layer(self, make: Make, weights: Weights, index: int) -> Any:
        """The operators of layer `index` that carry weights."""
        return (KdaLayer if index in self.kda_layers else LlamaLayer)(make, weights, index)

    def forward(self, step: StepInputs, caches: Sequence[Any]) -> Tensor:
        """Logits float32 [S, vocabulary] at `step.logit_rows`; writes the step's keys and values and the states after
        it into `caches`.
        """
        x = self.embedding(step.token_ids)
        cos, sin = self.rotary(step.positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            if isinstance(layer, KdaLayer):
                x = x + self.linear_attention(layer, x, cache, step)
            else:
                x = x + self.attention(layer, x, cos, sin, cache, step)
            x = x + self.mlp(layer, x)
        return self.lm_head(self.final_norm(x[step.logit_rows]))

    def linear_attention(self, layer: KdaLayer, x: Tensor, state: KdaState, step: StepInputs) -> Tensor:
        """What Kimi Delta Attention adds to x [N, hidden]; moves the states of the step's sequences on."""
        x = layer.attention_norm(x)
        slots, starts = step.state_slots, step.query_starts
        q = layer.q_convolution(layer.q_projection(x), state.conv_q, slots, starts).view(self.key_shape)
        k = layer.k_convolution(layer.k_projection(x), state.conv_k, slots, starts).view(self.key_shape)
        v = layer.v_convolution(layer.v_projection(x), state.conv_v, slots, starts).view(self.value_shape)
        raw = layer.decay_up(layer.decay_down(x)).view(self.key_shape)
        g, beta = layer.kda_gate(raw, layer.beta_projection(x))
        mixed = self._recur(q, k, v, g, beta, state.recurrent, step)
        gate = layer.gate_up(layer.gate_down(x)).view(self.value_shape)
        return layer.attention_output(layer.gated_norm(mixed, gate).flatten(1))

    def _recur(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, step: StepInputs
    ) -> Tensor:
        """The recurrence over the decoding sequences, one token each, then over the prefills: [N, H, V]."""
        assert step.state_slots is not None, "a model with recurrent layers needs a state slot for every sequence"
        cut, slots, parts = step.num_decodes, step.state_slots, []
        if step.decode is not None:
            parts.append(self.kda_recurrent(q[:cut], k[:cut], v[:cut], g[:cut], beta[:cut], state, slots[:cut]))
        if step.prefill is not None:
            starts = step.prefill.query_starts
            parts.append(self.kda_chunk(q[cut:], k[cut:], v[cut:], g[cut:], beta[cut:], state, slots[cut:], starts))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
