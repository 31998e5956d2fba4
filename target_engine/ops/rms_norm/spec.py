"""Specification: every row divided by its root mean square, scaled by a weight."""

import numpy as np

from target_engine.ops.rms_norm.shardings import SHARDINGS
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
    rows, columns = case.dims["N"], case.dims["K"]
    return {
        "weight": (1.0 + 0.3 * rng.standard_normal(columns)).astype(np.float32),
        "x": draw(rng, (rows, columns), case.distribution),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"K": sizes.hidden}, sizes)


SPEC = OperatorSpec(
    name="rms_norm",
    role="rms_norm",
    doc="y = weight * x / sqrt(mean(x^2) + eps), the mean over a row",
    tensors=(
        TensorSpec("weight", ("K",), "compute", "constant"),
        TensorSpec("x", ("N", "K"), "compute", "runtime"),
        TensorSpec("y", ("N", "K"), "compute", "output"),
    ),
    cases=(*row_cases({"K": 64}), Case("odd-width", {"N": 5, "K": 37}, tags=("odd",))),
    tolerance={
        "float32": Tolerance(1e-5, 2e-5, "one float32 mean and three products"),
        "bfloat16": Tolerance(
            1e-2, 1.6e-2, "the result is rounded to 8 significant bits, the product with the weight may be too"
        ),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
