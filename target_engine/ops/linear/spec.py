"""Specification: a projection without bias."""

import numpy as np

from target_engine.ops.linear.shardings import SHARDINGS
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
    return {"weight": matrix(rng, dims["M"], dims["K"]), "x": draw(rng, (dims["N"], dims["K"]), case.distribution)}


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"M": sizes.hidden, "K": sizes.intermediate}, sizes)


SPEC = OperatorSpec(
    name="linear",
    role="linear",
    doc="y = x @ weight.T",
    tensors=(
        TensorSpec("weight", ("M", "K"), "compute", "constant"),
        TensorSpec("x", ("N", "K"), "compute", "runtime"),
        TensorSpec("y", ("N", "M"), "compute", "output"),
    ),
    cases=(
        *row_cases({"M": 64, "K": 96}),
        Case("odd-widths", {"N": 5, "M": 51, "K": 37}, tags=("odd",)),
        Case("one-output", {"N": 3, "M": 1, "K": 64}, tags=("odd",)),
    ),
    tolerance=MATMUL_TOLERANCE,
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
