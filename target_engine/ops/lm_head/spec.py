"""Specification: float32 logits over the vocabulary."""

import numpy as np

from target_engine.ops.lm_head.shardings import SHARDINGS
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
    return {"weight": matrix(rng, dims["V"], dims["K"]), "x": draw(rng, (dims["N"], dims["K"]), case.distribution)}


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"V": sizes.vocabulary, "K": sizes.hidden}, sizes)


SPEC = OperatorSpec(
    name="lm_head",
    role="lm_head",
    doc="logits = x @ weight.T, as float32",
    tensors=(
        TensorSpec("weight", ("V", "K"), "compute", "constant"),
        TensorSpec("x", ("N", "K"), "compute", "runtime"),
        TensorSpec("logits", ("N", "V"), "float32", "output"),
    ),
    cases=(
        *row_cases({"V": 300, "K": 64}),
        Case("odd-widths", {"N": 5, "V": 51, "K": 37}, tags=("odd",)),
        Case("one-output", {"N": 3, "V": 1, "K": 64}, tags=("odd",)),
    ),
    tolerance=MATMUL_TOLERANCE,
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
