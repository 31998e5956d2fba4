"""Specification: queries, keys and values of the same rows."""

import numpy as np

from target_engine.ops.qkv_projection.shardings import SHARDINGS
from target_engine.ops.specification import (
    MATMUL_TOLERANCE,
    Arrays,
    Case,
    ModelSizes,
    OperatorSpec,
    TensorSpec,
    draw,
    matrix,
    row_cases,
    row_microbench,
)


def make_inputs(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    dims = case.dims
    return {
        "w_q": matrix(rng, dims["Q"], dims["K"]),
        "w_k": matrix(rng, dims["P"], dims["K"]),
        "w_v": matrix(rng, dims["P"], dims["K"]),
        "x": draw(rng, (dims["N"], dims["K"]), case.distribution),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    q, p = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    return row_microbench({"Q": q, "P": p, "K": sizes.hidden}, sizes)


SPEC = OperatorSpec(
    name="qkv_projection",
    role="qkv_projection",
    doc="q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T",
    tensors=(
        TensorSpec("w_q", ("Q", "K"), "compute", "constant"),
        TensorSpec("w_k", ("P", "K"), "compute", "constant"),
        TensorSpec("w_v", ("P", "K"), "compute", "constant"),
        TensorSpec("x", ("N", "K"), "compute", "runtime"),
        TensorSpec("q", ("N", "Q"), "compute", "output"),
        TensorSpec("k", ("N", "P"), "compute", "output"),
        TensorSpec("v", ("N", "P"), "compute", "output"),
    ),
    cases=(
        *row_cases({"Q": 64, "P": 32, "K": 64}),
        Case("equal-widths", {"N": 4, "Q": 32, "P": 32, "K": 48}, tags=("constructed",)),
        Case("odd-widths", {"N": 5, "Q": 45, "P": 15, "K": 37}, tags=("odd",)),
    ),
    tolerance=MATMUL_TOLERANCE,
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
