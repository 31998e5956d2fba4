"""Specification: the state before each part of a sequence, and after the last, from what the parts do to any state."""

import numpy as np

from target_engine.ops.kda_state_merge.shardings import SHARDINGS
from target_engine.ops.recurrence import local_state, model_axes, tokens
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance


def make_inputs(case: Case, seed: int) -> Arrays:
    """Of R shards of a sequence: the first has L tokens, the others 0 to L."""
    rng = np.random.default_rng(seed)
    dims = case.dims
    lengths = [dims["L"], *rng.integers(0, dims["L"] + 1, dims["R"] - 1).tolist()]
    drawn = tokens(rng, dims, case.distribution, sum(lengths))
    ends = np.cumsum(lengths)
    locals_ = [
        local_state(*(drawn[name][end - length : end] for name in ("k", "v", "g", "beta")))
        for length, end in zip(lengths, ends, strict=True)
    ]
    return {
        "s_ext": np.stack([s_ext for s_ext, _ in locals_]).astype(np.float32),
        "m": np.stack([m for _, m in locals_]).astype(np.float32),
        "s_0": (0.5 * rng.standard_normal((dims["H"], dims["K"], dims["V"]))).astype(np.float32),
    }


def condition(name: str, ranks: int, longest: int, distribution: str = "normal",
              tags: tuple[str, ...] = ("typical",), **axes: int) -> Case:  # fmt: skip
    """A case for shards of up to `longest` tokens on this many ranks; two heads of 16 x 24 unless given; E = R + 1."""
    dims = {"R": ranks, "E": ranks + 1, "L": longest, "H": 2, "K": 16, "V": 24} | axes
    return Case(name, dims, distribution, tags)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    if not sizes.linear_heads:
        return ()
    counts = sorted({2, 4, max(2, sizes.context_ranks)})
    return tuple(
        condition(f"model-{ranks}-ranks", ranks, 32, "normal", ("microbench",), **model_axes(sizes)) for ranks in counts
    )


_ODD, _BUILT = ("odd",), ("constructed",)

_FLOAT32 = Tolerance(
    2e-6,
    1e-5,
    "chains of up to 16 float32 products with transitions that shrink what they take, values of size up to about 1, "
    "whatever the compute type: the plain form is off by 6e-7; under weak decay products in tf32 are outside",
)

SPEC = OperatorSpec(
    name="kda_state_merge",
    role="kda_state_merge",
    doc="states[0] = s_0 and states[r+1] = m[r] states[r] + s_ext[r]: the state before each rank's part of the "
    "sequence, and after the last; E = R + 1",
    tensors=(
        TensorSpec("s_ext", ("R", "H", "K", "V"), "float32", "runtime"),
        TensorSpec("m", ("R", "H", "K", "K"), "float32", "runtime"),
        TensorSpec("s_0", ("H", "K", "V"), "float32", "runtime"),
        TensorSpec("states", ("E", "H", "K", "V"), "float32", "output"),
    ),
    cases=(
        condition("two-ranks", 2, 24),
        condition("four-ranks", 4, 24),
        condition("model-heads", 4, 40, H=4, K=64, V=64),
        condition("one-rank", 1, 24, tags=_ODD),
        condition("three-ranks", 3, 24, tags=_ODD),
        condition("one-head", 4, 24, tags=_ODD, H=1),
        condition("three-heads", 4, 24, tags=_ODD, H=3),
        condition("five-heads", 4, 24, tags=_ODD, H=5),
        condition("odd-sizes", 3, 20, tags=_ODD, H=3, K=20, V=12),
        condition("one-value", 3, 20, tags=_ODD, H=1, K=7, V=1),
        condition("mostly-empty-shards", 6, 1, tags=_BUILT),
        condition("empty-shards", 3, 0, tags=_BUILT),
        condition("strong-decay", 4, 24, "strong_decay", _BUILT),
        condition("weak-decay", 4, 60, "weak_decay", _BUILT),
        condition("many-ranks-of-weak-decay", 16, 30, "weak_decay", _BUILT),
        condition("many-ranks-of-strong-decay", 16, 30, "strong_decay", _BUILT),
        condition("beta-near-0-and-1", 4, 24, "beta_extremes", _BUILT),
        condition("repeated-keys", 4, 24, "repeated_keys", _BUILT),
        condition("one-hot", 4, 24, "one_hot", _BUILT),
        condition("zeros", 3, 8, "zeros", _BUILT),
    ),
    tolerance={"float32": _FLOAT32, "bfloat16": _FLOAT32},
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    context=True,
    shardings=SHARDINGS,
)
