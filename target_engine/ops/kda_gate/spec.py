"""Specification: how fast each channel of each head forgets at a token, and how strongly the token writes."""

import numpy as np

from target_engine.ops.kda_gate.shardings import SHARDINGS
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
    """Constants as models start with them: rates from 1 to 16, biases whose softplus is 0.001 to 0.1."""
    rng = np.random.default_rng(seed)
    rows, heads, keys = case.dims["N"], case.dims["H"], case.dims["K"]
    steps = np.exp(rng.uniform(np.log(1e-3), np.log(0.1), (heads, keys)))
    return {
        "a_log": np.log(rng.uniform(1.0, 16.0, heads)).astype(np.float32),
        "dt_bias": np.log(np.expm1(steps)).astype(np.float32),
        "raw": draw(rng, (rows, heads, keys), case.distribution),
        "raw_beta": draw(rng, (rows, heads), case.distribution),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    if not sizes.linear_heads:
        return ()
    return row_microbench({"H": sizes.linear_heads, "K": sizes.key_dim}, sizes)


_EXACT_INPUTS = (
    "inputs are exact in the compute type and results float32: a few float32 roundings, exp and log1p among them"
)

SPEC = OperatorSpec(
    name="kda_gate",
    role="kda_gate",
    doc="g = -exp(a_log) * log(1 + exp(raw + dt_bias)), beta = 1 / (1 + exp(-raw_beta)), both float32",
    tensors=(
        TensorSpec("a_log", ("H",), "float32", "constant"),
        TensorSpec("dt_bias", ("H", "K"), "float32", "constant"),
        TensorSpec("raw", ("N", "H", "K"), "compute", "runtime"),
        TensorSpec("raw_beta", ("N", "H"), "compute", "runtime"),
        TensorSpec("g", ("N", "H", "K"), "float32", "output"),
        TensorSpec("beta", ("N", "H"), "float32", "output"),
    ),
    cases=(
        *row_cases({"H": 3, "K": 16}),
        Case("odd-width", {"N": 5, "H": 2, "K": 37}, tags=("odd",)),
        Case("one-head", {"N": 6, "H": 1, "K": 8}, tags=("odd",)),
        Case("no-tokens", {"N": 0, "H": 2, "K": 16}, tags=("odd",)),
    ),
    tolerance={
        "float32": Tolerance(1e-7, 1e-5, _EXACT_INPUTS),
        "bfloat16": Tolerance(1e-7, 1e-5, _EXACT_INPUTS),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    shardings=SHARDINGS,
)
