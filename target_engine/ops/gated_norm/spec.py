"""Specification: every head's output divided by its root mean square, scaled by a weight and gated."""

import numpy as np

from target_engine.ops.gated_norm.shardings import SHARDINGS
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
    shape = (case.dims["N"], case.dims["H"], case.dims["V"])
    return {
        "weight": (1.0 + 0.3 * rng.standard_normal(shape[-1])).astype(np.float32),
        "x": draw(rng, shape, case.distribution),
        "gate": draw(rng, shape, case.distribution),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    if not sizes.linear_heads:
        return ()
    return row_microbench({"H": sizes.linear_heads, "V": sizes.value_dim}, sizes)


SPEC = OperatorSpec(
    name="gated_norm",
    role="gated_rms_norm",
    doc="out = weight * x / sqrt(mean(x^2) + eps) / (1 + exp(-gate)), the mean over the V values of a head",
    tensors=(
        TensorSpec("weight", ("V",), "compute", "constant"),
        TensorSpec("x", ("N", "H", "V"), "compute", "runtime"),
        TensorSpec("gate", ("N", "H", "V"), "compute", "runtime"),
        TensorSpec("out", ("N", "H", "V"), "compute", "output"),
    ),
    cases=(
        *row_cases({"H": 3, "V": 24}),
        Case("odd-width", {"N": 5, "H": 2, "V": 37}, tags=("odd",)),
        Case("no-tokens", {"N": 0, "H": 2, "V": 16}, tags=("odd",)),
    ),
    tolerance={
        "float32": Tolerance(1e-6, 2e-5, "one float32 mean, an exponential and four products"),
        "bfloat16": Tolerance(
            1e-3, 2e-2, "the normalised value, the sigmoid and the result may each be rounded to 8 significant bits"
        ),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    shardings=SHARDINGS,
)
