"""Specification: queries and keys rotated by their position."""

import numpy as np

from target_engine.ops.rope.shardings import SHARDINGS
from target_engine.ops.specification import (
    Arrays,
    Case,
    ModelSizes,
    OperatorSpec,
    TensorSpec,
    Tolerance,
    draw,
    row_cases,
    row_microbench,
)


def make_inputs(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    rows, heads, kv_heads, size = (case.dims[axis] for axis in "NHGD")
    angles = rng.uniform(-np.pi, np.pi, (rows, size // 2)).astype(np.float32)
    angles = np.concatenate([angles, angles], axis=-1)
    return {
        "q": draw(rng, (rows, heads, size), case.distribution),
        "k": draw(rng, (rows, kv_heads, size), case.distribution),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"H": sizes.num_heads, "G": sizes.num_kv_heads, "D": sizes.head_dim}, sizes)


SPEC = OperatorSpec(
    name="rope",
    role="rotary_embedding",
    doc="x * cos + rotate_half(x) * sin for queries and keys; rotate_half([a, b]) = [-b, a]",
    tensors=(
        TensorSpec("q", ("N", "H", "D"), "compute", "runtime"),
        TensorSpec("k", ("N", "G", "D"), "compute", "runtime"),
        TensorSpec("cos", ("N", "D"), "compute", "runtime"),
        TensorSpec("sin", ("N", "D"), "compute", "runtime"),
        TensorSpec("q_out", ("N", "H", "D"), "compute", "output"),
        TensorSpec("k_out", ("N", "G", "D"), "compute", "output"),
    ),
    cases=(
        # Rotation is linear and acts on each pair alone, so its error is relative to the pair: large rows add nothing.
        *(case for case in row_cases({"H": 6, "G": 2, "D": 32}) if case.distribution not in ("large", "mixed")),
        Case("one-head", {"N": 4, "H": 1, "G": 1, "D": 6}, tags=("odd",)),
    ),
    tolerance={
        "float32": Tolerance(2e-5, 1e-5, "two float32 products and a sum, values up to about 4"),
        "bfloat16": Tolerance(
            2e-2, 2e-2, "each product may be rounded to 8 significant bits before the sum; cancellation is absolute"
        ),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
