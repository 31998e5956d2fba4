"""Specification: new keys and values land in their slots, and nothing else of the cache changes."""

import numpy as np

from target_engine.ops.kv_write.shardings import SHARDINGS
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
    rows, blocks, size, kv_heads, head_dim = (case.dims[axis] for axis in "NXSGD")
    slots = rng.choice(blocks * size, rows, replace=False)
    if case.distribution == "ramp":  # a run of neighbours that crosses block boundaries
        slots = np.arange(rows) + blocks * size - rows
    return {
        "k": draw(rng, (rows, kv_heads, head_dim), case.distribution),
        "v": draw(rng, (rows, kv_heads, head_dim), case.distribution),
        "slot_mapping": slots.astype(np.int64),
        "k_cache": draw(rng, (blocks, size, kv_heads, head_dim), "normal"),
        "v_cache": draw(rng, (blocks, size, kv_heads, head_dim), "normal"),
    }


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    blocks = max(64, -(-sizes.prefill_chunk // sizes.block_size))
    dims = {"X": blocks, "S": sizes.block_size, "G": sizes.num_kv_heads, "D": sizes.head_dim}
    return row_microbench(dims, sizes)


_EXACT = Tolerance(0.0, 0.0, "a copy has no rounding")

SPEC = OperatorSpec(
    name="kv_write",
    role="kv_cache_write",
    doc="k_cache[slot // S, slot % S] = k, the same for v; slots are distinct",
    tensors=(
        TensorSpec("k", ("N", "G", "D"), "compute", "runtime"),
        TensorSpec("v", ("N", "G", "D"), "compute", "runtime"),
        TensorSpec("slot_mapping", ("N",), "int64", "runtime"),
        TensorSpec("k_cache", ("X", "S", "G", "D"), "compute", "inout"),
        TensorSpec("v_cache", ("X", "S", "G", "D"), "compute", "inout"),
    ),
    cases=(
        *row_cases({"X": 12, "S": 8, "G": 2, "D": 16}),
        Case("odd-block", {"N": 10, "X": 5, "S": 7, "G": 1, "D": 5}, tags=("odd",)),
    ),
    tolerance={"float32": _EXACT, "bfloat16": _EXACT},
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
