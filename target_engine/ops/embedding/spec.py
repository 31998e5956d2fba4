"""Specification: rows of a table by token id, exactly."""

import numpy as np

from target_engine.ops.embedding.shardings import SHARDINGS
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
    dims = case.dims
    ids = rng.integers(0, dims["V"], dims["N"])
    ids[0], ids[-1] = 0, dims["V"] - 1  # the ends of the table
    return {"weight": draw(rng, (dims["V"], dims["K"]), case.distribution), "token_ids": ids}


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"V": sizes.vocabulary, "K": sizes.hidden}, sizes)


_EXACT = Tolerance(0.0, 0.0, "a copy has no rounding")

SPEC = OperatorSpec(
    name="embedding",
    role="embedding",
    doc="x[n] = weight[token_ids[n]]",
    tensors=(
        TensorSpec("weight", ("V", "K"), "compute", "constant"),
        TensorSpec("token_ids", ("N",), "int64", "runtime"),
        TensorSpec("x", ("N", "K"), "compute", "output"),
    ),
    cases=row_cases({"V": 97, "K": 48}),
    tolerance={"float32": _EXACT, "bfloat16": _EXACT},
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
