"""Specification: the gated activation."""

import numpy as np

from target_engine.ops.silu_mul.shardings import SHARDINGS
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
    shape = (case.dims["N"], case.dims["M"])
    return {"gate": draw(rng, shape, case.distribution), "up": draw(rng, shape, case.distribution)}


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    return row_microbench({"M": sizes.intermediate}, sizes)


SPEC = OperatorSpec(
    name="silu_mul",
    role="silu_mul",
    doc="y = gate / (1 + exp(-gate)) * up; gate and up may be strided views with unit stride in a row",
    tensors=(
        TensorSpec("gate", ("N", "M"), "compute", "runtime"),
        TensorSpec("up", ("N", "M"), "compute", "runtime"),
        TensorSpec("y", ("N", "M"), "compute", "output"),
    ),
    cases=(*row_cases({"M": 96}), Case("odd-width", {"N": 5, "M": 37}, tags=("odd",))),
    tolerance={
        "float32": Tolerance(1e-6, 1e-5, "an exponential and three products in float32"),
        "bfloat16": Tolerance(1e-3, 2e-2, "silu and the product may each be rounded to 8 significant bits"),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
