"""Specification: the state that a part of a sequence leaves from nothing, and what it makes of any state before."""

import numpy as np

from target_engine.ops.kda_local_state.shardings import SHARDINGS
from target_engine.ops.recurrence import model_axes, tokens
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance


def make_inputs(case: Case, seed: int) -> Arrays:
    drawn = tokens(np.random.default_rng(seed), case.dims, case.distribution, case.dims["N"])
    return {name: drawn[name] for name in ("k", "v", "g", "beta")}


def condition(name: str, count: int, distribution: str = "normal", tags: tuple[str, ...] = ("typical",),
              **axes: int) -> Case:  # fmt: skip
    """A case for `count` tokens of one sequence; two heads of 16 x 24 unless given."""
    return Case(name, {"N": count, "H": 2, "K": 16, "V": 24} | axes, distribution, tags)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    if not sizes.linear_heads:
        return ()
    counts = sorted({max(1, sizes.prefill_chunk // 4), sizes.prefill_chunk})
    return tuple(condition(f"model-{count}", count, "normal", ("microbench",), **model_axes(sizes)) for count in counts)


_ODD, _BUILT = ("odd",), ("constructed",)

SPEC = OperatorSpec(
    name="kda_local_state",
    role="kda_local_state",
    doc="over the N tokens, with k divided by sqrt(its squared length + 1e-6): S <- Diag(exp g) S; "
    "S <- S + beta k (v - S^T k)^T takes any state S to m S + s_ext; without tokens m is the identity and s_ext 0",
    tensors=(
        TensorSpec("k", ("N", "H", "K"), "compute", "runtime"),
        TensorSpec("v", ("N", "H", "V"), "compute", "runtime"),
        TensorSpec("g", ("N", "H", "K"), "float32", "runtime"),
        TensorSpec("beta", ("N", "H"), "float32", "runtime"),
        TensorSpec("s_ext", ("H", "K", "V"), "float32", "output"),
        TensorSpec("m", ("H", "K", "K"), "float32", "output"),
    ),
    cases=(
        condition("forty-eight-tokens", 48),
        condition("model-heads", 100, H=4, K=64, V=64),
        condition("one-token", 1, tags=_ODD),
        condition("two-tokens", 2, tags=_ODD),
        condition("chunk-minus-1", 63, tags=_ODD),
        condition("chunk-exactly", 64, tags=_ODD),
        condition("chunk-plus-1", 65, tags=_ODD),
        condition("two-chunks-and-some", 143, tags=_ODD),
        condition("odd-sizes", 40, tags=_ODD, H=3, K=20, V=12),
        condition("one-value", 20, tags=_ODD, H=1, K=7, V=1),
        condition("empty-shard", 0, tags=_BUILT),
        condition("strong-decay", 150, "strong_decay", _BUILT),
        condition("weak-decay", 150, "weak_decay", _BUILT),
        condition("fewer-tokens-than-keys", 24, "weak_decay", _BUILT, K=48, V=32),
        condition("long-chain", 700, "weak_decay", _BUILT),
        condition("wide-long-chain", 400, "weak_decay", _BUILT, K=48, V=32),
        condition("beta-near-0-and-1", 150, "beta_extremes", _BUILT),
        condition("repeated-keys", 150, "repeated_keys", _BUILT),
        condition("small-keys", 80, "small", _BUILT),
        condition("large-keys", 80, "large", _BUILT),
        condition("one-hot", 80, "one_hot", _BUILT),
        condition("ramp", 80, "ramp", _BUILT),
        condition("zeros", 20, "zeros", _BUILT),
    ),
    tolerance={
        "float32": Tolerance(
            1e-5,
            1e-5,
            "values of size up to about 1 after sums of 64 float32 products, a triangular system, and chains of 11 "
            "chunks: the plain form is off by 1e-6, other orders of summing have room, products in tf32 have not",
        ),
        "bfloat16": Tolerance(
            5e-3, 2e-2, "what tensor cores multiply may be rounded to 8 significant bits; sums and results are float32"
        ),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    context=True,
    shardings=SHARDINGS,
)
