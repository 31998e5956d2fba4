"""Specification: cosines and sines of position times frequency."""

import numpy as np

from target_engine.ops.rotary.shardings import SHARDINGS
from target_engine.ops.specification import (
    Arrays,
    Case,
    ModelSizes,
    OperatorSpec,
    TensorSpec,
    Tolerance,
    row_microbench,
)


def make_inputs(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    size = case.dims["D"]
    inv_freq = (10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    positions = rng.integers(0, 1024, case.dims["N"])
    positions[0] = 0
    return {"inv_freq": inv_freq, "positions": positions}


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"D": sizes.head_dim, "F": sizes.head_dim // 2}, sizes)


_AXES = {"D": 32, "F": 16}

SPEC = OperatorSpec(
    name="rotary",
    role="rotary_tables",
    doc="cos, sin of positions[n] * inv_freq[f], the F frequencies twice in a row (D = 2F)",
    tensors=(
        TensorSpec("inv_freq", ("F",), "float32", "constant"),
        TensorSpec("positions", ("N",), "int64", "runtime"),
        TensorSpec("cos", ("N", "D"), "compute", "output"),
        TensorSpec("sin", ("N", "D"), "compute", "output"),
    ),
    cases=(
        Case("decode-16", {"N": 16, **_AXES}),
        Case("prefill-65", {"N": 65, **_AXES}, tags=("odd",)),
        Case("one-row", {"N": 1, **_AXES}, tags=("odd",)),
        Case("three-rows", {"N": 3, **_AXES}, tags=("odd",)),
        Case("seventeen-rows", {"N": 17, "D": 64, "F": 32}, tags=("odd",)),
        Case("smallest-head", {"N": 5, "D": 2, "F": 1}, tags=("constructed",)),
    ),
    tolerance={
        "float32": Tolerance(
            2e-4, 0.0, "the angle is a float32 product, off by up to 1024 * 6e-8 before the cosine is taken"
        ),
        "bfloat16": Tolerance(5e-3, 0.0, "values in [-1, 1] rounded to 8 significant bits"),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
