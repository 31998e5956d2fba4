"""Specification: runs of new tokens, one run per sequence, attend causally to their sequence's cached context."""

import numpy as np

from target_engine.ops.attention_prefill.shardings import SHARDINGS
from target_engine.ops.paged import paged_cache, values
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance


def make_inputs(case: Case, seed: int) -> Arrays:
    """Axis N is the number of new tokens of all B sequences and C the most tokens a sequence had before them."""
    rng = np.random.default_rng(seed)
    dims = case.dims
    cuts = np.sort(rng.choice(np.arange(1, dims["N"]), dims["B"] - 1, replace=False)) if dims["B"] > 1 else []
    starts = np.concatenate([[0], cuts, [dims["N"]]]).astype(np.int32)
    before = rng.integers(0, dims["C"] + 1, dims["B"])
    before[0] = dims["C"]
    cache = paged_cache(rng, np.diff(starts) + before, dims, case.distribution)
    return {
        "q": values(rng, (dims["N"], dims["H"], dims["D"]), case.distribution),
        "k_cache": cache["k_cache"],
        "v_cache": cache["v_cache"],
        "block_tables": cache["block_tables"],
        "query_starts": starts,
        "context_lens": cache["context_lens"],
    }


def condition(name: str, sequences: int, new: int, before: int = 0, distribution: str = "normal",
              tags: tuple[str, ...] = ("typical",), **axes: int) -> Case:  # fmt: skip
    """A case for `new` tokens in all and up to `before` cached ones each; block size 8, 6 query and 2 KV heads of 16
    unless given.
    """
    dims = {"B": sequences, "N": new, "C": before, "H": 6, "G": 2, "D": 16, "S": 8} | axes
    dims["T"] = -(-(new + before) // dims["S"]) + 1
    dims["X"] = sequences * dims["T"]
    dims["E"] = sequences + 1
    return Case(name, dims, distribution, tags)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    axes = {"H": sizes.num_heads, "G": sizes.num_kv_heads, "D": sizes.head_dim, "S": sizes.block_size}
    return tuple(
        condition(name, sequences, new, before, tags=("microbench",), **axes)
        for name, sequences, new, before in (
            ("model-one-prompt", 1, 128, 0),
            ("model-chunk", 4, sizes.prefill_chunk, 0),
            ("model-after-prefix", 2, 128, 96),
        )
    )


_ODD, _BUILT = ("odd",), ("constructed",)

SPEC = OperatorSpec(
    name="attention_prefill",
    role="paged_prefill_attention",
    doc="tokens query_starts[b] .. query_starts[b+1]-1 are the last ones of sequence b's context_lens[b]; each attends "
    "to itself and all before it, softmax(q . K / sqrt(D)) V, H/G query heads to a KV head; position p lies in block "
    "block_tables[b, p // S] at p % S; E = B + 1",
    tensors=(
        TensorSpec("q", ("N", "H", "D"), "compute", "runtime"),
        TensorSpec("k_cache", ("X", "S", "G", "D"), "compute", "runtime"),
        TensorSpec("v_cache", ("X", "S", "G", "D"), "compute", "runtime"),
        TensorSpec("block_tables", ("B", "T"), "int32", "runtime"),
        TensorSpec("query_starts", ("E",), "int32", "runtime"),
        TensorSpec("context_lens", ("B",), "int32", "runtime"),
        TensorSpec("out", ("N", "H", "D"), "compute", "output"),
    ),
    cases=(
        condition("one-prompt", 1, 48),
        condition("four-prompts", 4, 100),
        condition("after-prefix", 3, 40, 32),
        condition("one-token", 1, 1, tags=_ODD),
        condition("one-token-late", 1, 1, 25, tags=_ODD),
        condition("three-tokens-each", 3, 9, 5, tags=_ODD),
        condition("block-minus-1", 1, 15, tags=_ODD),
        condition("block-exactly", 1, 16, tags=_ODD),
        condition("block-plus-1", 1, 17, tags=_ODD),
        condition("seventeen-prompts", 17, 120, 9, tags=_ODD),
        condition("long-prompt", 1, 300, tags=_ODD),
        condition("long-history", 1, 20, 400, tags=_ODD),
        condition("no-grouping", 2, 30, 7, H=4, G=4, tags=_ODD),
        condition("model-heads", 2, 50, 20, H=9, G=3, D=64, S=16),
        condition("odd-block-size", 2, 30, 11, S=7, tags=_ODD),
        condition("peaked", 2, 40, 10, "peaked", _BUILT),
        condition("one-hot", 2, 40, 10, "one_hot", _BUILT),
        condition("ramp", 2, 40, 10, "ramp", _BUILT),
        condition("zeros", 2, 20, 5, "zeros", _BUILT),
    ),
    tolerance={
        "float32": Tolerance(5e-5, 1e-4, "float32 softmax over up to 420 scores of size up to about 100"),
        "bfloat16": Tolerance(3e-2, 3e-2, "weights may be rounded to 8 significant bits before they multiply values"),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    shardings=SHARDINGS,
)
