"""Specification: one query per sequence attends to that sequence's whole context in the paged cache."""

import numpy as np

from target_engine.ops.attention_decode.shardings import SHARDINGS
from target_engine.ops.paged import paged_cache, values
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance


def make_inputs(case: Case, seed: int) -> Arrays:
    """Axis C is the longest context and L the shortest; the first sequence has C tokens."""
    rng = np.random.default_rng(seed)
    dims = case.dims
    lens = rng.integers(dims["L"], dims["C"] + 1, dims["B"])
    lens[0], lens[-1] = dims["C"], dims["L"] if dims["B"] > 1 else dims["C"]
    shared = 2 if "prefix" in case.name else 0
    return {
        "q": values(rng, (dims["B"], dims["H"], dims["D"]), case.distribution),
        **paged_cache(rng, lens, dims, case.distribution, shared),
    }


def condition(name: str, batch: int, longest: int, shortest: int = 1, distribution: str = "normal",
              tags: tuple[str, ...] = ("typical",), **axes: int) -> Case:  # fmt: skip
    """A case for these context lengths; block size 8, 6 query and 2 KV heads of 16 unless given."""
    dims = {"B": batch, "C": longest, "L": shortest, "H": 6, "G": 2, "D": 16, "S": 8} | axes
    width = -(-longest // dims["S"])
    dims["T"] = width + 1
    dims["X"] = max(2, batch * width)
    return Case(name, dims, distribution, tags)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    axes = {"H": sizes.num_heads, "G": sizes.num_kv_heads, "D": sizes.head_dim, "S": sizes.block_size}
    return tuple(
        condition(f"model-{batch}x{context}", batch, context, max(1, context // 2), tags=("microbench",), **axes)
        for batch, context in ((1, 256), (sizes.max_batch, 96), (sizes.max_batch, 256), (sizes.max_batch, 700))
    )


_ODD, _BUILT = ("odd",), ("constructed",)

SPEC = OperatorSpec(
    name="attention_decode",
    role="paged_decode_attention",
    doc="out[b] = softmax(q[b] . K[b] / sqrt(D)) V[b] over positions 0 .. context_lens[b]-1, H/G query heads to a KV "
    "head; position p lies in block block_tables[b, p // S] at p % S",
    tensors=(
        TensorSpec("q", ("B", "H", "D"), "compute", "runtime"),
        TensorSpec("k_cache", ("X", "S", "G", "D"), "compute", "runtime"),
        TensorSpec("v_cache", ("X", "S", "G", "D"), "compute", "runtime"),
        TensorSpec("block_tables", ("B", "T"), "int32", "runtime"),
        TensorSpec("context_lens", ("B",), "int32", "runtime"),
        TensorSpec("out", ("B", "H", "D"), "compute", "output"),
    ),
    cases=(
        condition("four-sequences", 4, 60, 20),
        condition("sixteen-sequences", 16, 90, 30),
        condition("shared-prefix", 5, 60, 30),
        condition("one-sequence", 1, 45, tags=_ODD),
        condition("three-sequences", 3, 33, tags=_ODD),
        condition("seventeen-sequences", 17, 50, tags=_ODD),
        condition("context-1", 3, 1, 1, tags=_ODD),
        condition("context-1-to-17", 6, 17, 1, tags=_ODD),
        condition("block-minus-1", 3, 15, 15, tags=_ODD),
        condition("block-exactly", 3, 16, 16, tags=_ODD),
        condition("block-plus-1", 3, 17, 17, tags=_ODD),
        condition("long-context", 2, 700, 500, tags=_ODD),
        condition("one-kv-head", 3, 40, H=4, G=1, tags=_ODD),
        condition("no-grouping", 3, 40, H=4, G=4, tags=_ODD),
        condition("model-heads", 3, 70, H=9, G=3, D=64, S=16),
        condition("odd-block-size", 3, 40, S=7, tags=_ODD),
        condition("peaked", 4, 60, 20, "peaked", _BUILT),
        condition("one-hot", 4, 60, 20, "one_hot", _BUILT),
        condition("ramp", 4, 60, 20, "ramp", _BUILT),
        condition("zeros", 2, 20, 5, "zeros", _BUILT),
    ),
    tolerance={
        "float32": Tolerance(5e-5, 1e-4, "float32 softmax over up to 700 scores of size up to about 100"),
        "bfloat16": Tolerance(3e-2, 3e-2, "weights may be rounded to 8 significant bits before they multiply values"),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
