"""Which tensors a model needs, by Hugging Face name, and their shapes. Torch-free."""

from __future__ import annotations

from target_engine.models.config import ModelConfig


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that the model needs, by Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        mixing = _kda_shapes(config) if layer in config.kda_layers else _attention_shapes(config)
        shapes |= {prefix + name: shape for name, shape in mixing.items()}
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a full-attention layer."""
    hidden, wide, narrow = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    return {
        "self_attn.q_proj.weight": (wide, hidden),
        "self_attn.k_proj.weight": (narrow, hidden),
        "self_attn.v_proj.weight": (narrow, hidden),
        "self_attn.o_proj.weight": (hidden, wide),
    }


def _kda_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a KDA layer; the decay and the output gate come through `linear_value_dim` channels."""
    hidden, heads, width = config.hidden_size, config.linear_num_heads, config.conv_width
    key, value = heads * config.linear_key_dim, heads * config.linear_value_dim
    rank = config.linear_value_dim
    shapes: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (key, hidden),
        "k_proj.weight": (key, hidden),
        "v_proj.weight": (value, hidden),
        "o_proj.weight": (hidden, value),
        "beta_proj.weight": (heads, hidden),
        "q_conv.weight": (key, width),
        "k_conv.weight": (key, width),
        "v_conv.weight": (value, width),
        "decay_down_proj.weight": (rank, hidden),
        "decay_up_proj.weight": (key, rank),
        "gate_down_proj.weight": (rank, hidden),
        "gate_up_proj.weight": (value, rank),
        "a_log": (heads,),
        "dt_bias": (heads, config.linear_key_dim),
        "norm.weight": (config.linear_value_dim,),
    }
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}
