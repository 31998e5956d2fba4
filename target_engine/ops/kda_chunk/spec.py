"""Specification: runs of new tokens, one run per sequence, each read from and written to its sequence's state."""

import numpy as np

from target_engine.ops.kda_chunk.shardings import SHARDINGS
from target_engine.ops.recurrence import condition, model_axes, run_starts, state_slots, states, tokens
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance


def make_inputs(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    dims = case.dims
    slots = state_slots(rng, dims)
    return {
        **tokens(rng, dims, case.distribution, dims["N"]),
        "state": states(rng, slots, (dims["X"], dims["H"], dims["K"], dims["V"])),
        "state_slots": slots,
        "query_starts": run_starts(rng, dims),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    if not sizes.linear_heads:
        return ()
    return tuple(
        condition(name, sequences, new, "normal", ("microbench",), **model_axes(sizes))
        for name, sequences, new in (("model-one-prompt", 1, 128), ("model-chunk", 4, sizes.prefill_chunk))
    )


_ODD, _BUILT = ("odd",), ("constructed",)

SPEC = OperatorSpec(
    name="kda_chunk",
    role="kda_prefill",
    doc="tokens query_starts[b] .. query_starts[b+1]-1 continue the sequence whose state S is state[state_slots[b]]; "
    "one after another, with q and k divided by sqrt(their squared length + 1e-6): S <- Diag(exp g) S; "
    "S <- S + beta k (v - S^T k)^T; out = S^T q / sqrt(K). state then holds the last S; other slots, and those of "
    "empty runs, stay; slots are distinct; E = B + 1",
    tensors=(
        TensorSpec("q", ("N", "H", "K"), "compute", "runtime"),
        TensorSpec("k", ("N", "H", "K"), "compute", "runtime"),
        TensorSpec("v", ("N", "H", "V"), "compute", "runtime"),
        TensorSpec("g", ("N", "H", "K"), "float32", "runtime"),
        TensorSpec("beta", ("N", "H"), "float32", "runtime"),
        TensorSpec("state", ("X", "H", "K", "V"), "float32", "inout"),
        TensorSpec("state_slots", ("B",), "int32", "runtime"),
        TensorSpec("query_starts", ("E",), "int32", "runtime"),
        TensorSpec("out", ("N", "H", "V"), "compute", "output"),
    ),
    cases=(
        condition("one-prompt", 1, 48),
        condition("four-prompts", 4, 150),
        condition("model-heads", 2, 100, H=4, K=64, V=64),
        condition("one-token", 1, 1, tags=_ODD),
        condition("two-tokens", 1, 2, tags=_ODD),
        condition("chunk-minus-1", 1, 63, tags=_ODD),
        condition("chunk-exactly", 1, 64, tags=_ODD),
        condition("chunk-plus-1", 1, 65, tags=_ODD),
        condition("two-chunks-and-some", 1, 143, tags=_ODD),
        condition("seventeen-sequences", 17, 90, tags=_ODD),
        condition("one-token-each", 5, 5, tags=_ODD),
        condition("odd-sizes", 2, 40, tags=_ODD, H=3, K=20, V=12),
        condition("one-value", 2, 20, tags=_ODD, H=1, K=7, V=1),
        condition("empty-runs", 6, 140, tags=_BUILT, Z=3),
        condition("no-tokens", 2, 0, tags=_BUILT),
        condition("strong-decay", 2, 150, "strong_decay", _BUILT),
        condition("weak-decay", 2, 150, "weak_decay", _BUILT),
        condition("long-chain", 1, 700, "weak_decay", _BUILT),
        condition("long-strong-chain", 1, 400, "strong_decay", _BUILT),
        condition("beta-near-0-and-1", 2, 150, "beta_extremes", _BUILT),
        condition("repeated-keys", 2, 150, "repeated_keys", _BUILT),
        condition("small-keys", 2, 80, "small", _BUILT),
        condition("large-keys", 2, 80, "large", _BUILT),
        condition("one-hot", 2, 80, "one_hot", _BUILT),
        condition("ramp", 2, 80, "ramp", _BUILT),
        condition("zeros", 2, 20, "zeros", _BUILT),
    ),
    tolerance={
        "float32": Tolerance(
            1e-5,
            1e-5,
            "values of size up to about 1 after sums of 64 float32 products, a triangular system, and chains of 11 "
            "chunks: the plain form is off by 1e-6, other orders of summing have room, products in tf32 have not",
        ),
        "bfloat16": Tolerance(
            5e-3,
            2e-2,
            "outputs are rounded to 8 significant bits, and what tensor cores multiply may be; sums, decay and state "
            "are float32",
        ),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    shardings=SHARDINGS,
)
