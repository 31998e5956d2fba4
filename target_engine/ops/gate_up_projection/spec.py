"""Specification: gate and up projections of the same rows."""

import numpy as np

from target_engine.ops.gate_up_projection.shardings import SHARDINGS
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
        "w_gate": matrix(rng, dims["M"], dims["K"]),
        "w_up": matrix(rng, dims["M"], dims["K"]),
        "x": draw(rng, (dims["N"], dims["K"]), case.distribution),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"M": sizes.intermediate, "K": sizes.hidden}, sizes)


SPEC = OperatorSpec(
    name="gate_up_projection",
    role="gate_up_projection",
    doc="gate, up = x @ w_gate.T, x @ w_up.T",
    tensors=(
        TensorSpec("w_gate", ("M", "K"), "compute", "constant"),
        TensorSpec("w_up", ("M", "K"), "compute", "constant"),
        TensorSpec("x", ("N", "K"), "compute", "runtime"),
        TensorSpec("gate", ("N", "M"), "compute", "output"),
        TensorSpec("up", ("N", "M"), "compute", "output"),
    ),
    cases=(*row_cases({"M": 96, "K": 64}), Case("odd-widths", {"N": 5, "M": 51, "K": 37}, tags=("odd",))),
    tolerance=MATMUL_TOLERANCE,
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
