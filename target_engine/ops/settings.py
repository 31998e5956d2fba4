"""What an operator's implementation may know besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorSettings:
    """Sizes shared by all layers; `dtype` is the compute type's name, `rows` the usual number of rows in a call.

    Linear-attention layers have `linear_heads` heads with a state of `key_dim` x `value_dim` each, behind a causal
    convolution over `conv_width` tokens.
    """

    dtype: str = "float32"
    eps: float = 1e-5
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    block_size: int = 16
    rows: int = 16
    linear_heads: int = 1
    key_dim: int = 1
    value_dim: int = 1
    conv_width: int = 4
