"""Specification: one new token per sequence, read from and written to its sequence's state."""

import numpy as np

from target_engine.ops.kda_recurrent.shardings import SHARDINGS
from target_engine.ops.recurrence import model_axes, state_slots, states, tokens
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance


def make_inputs(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    dims = case.dims
    slots = state_slots(rng, dims)
    return {
        **tokens(rng, dims, case.distribution, dims["B"]),
        "state": states(rng, slots, (dims["X"], dims["H"], dims["K"], dims["V"])),
        "state_slots": slots,
    }


def condition(name: str, sequences: int, distribution: str = "normal", tags: tuple[str, ...] = ("typical",),
              **axes: int) -> Case:  # fmt: skip
    """A case for one token of each of `sequences`; two heads of 16 x 24 and 40 slots unless given."""
    return Case(name, {"B": sequences, "H": 2, "K": 16, "V": 24, "X": 40} | axes, distribution, tags)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    if not sizes.linear_heads:
        return ()
    axes = model_axes(sizes) | {"X": sizes.state_slots or 2 * sizes.max_batch}
    return tuple(
        condition(f"model-decode-{count}", count, "normal", ("microbench",), **axes) for count in (1, sizes.max_batch)
    )


_ODD, _BUILT = ("odd",), ("constructed",)

SPEC = OperatorSpec(
    name="kda_recurrent",
    role="kda_decode",
    doc="S = state[state_slots[b]]; with q and k divided by sqrt(their squared length + 1e-6): S <- Diag(exp g) S; "
    "S <- S + beta k (v - S^T k)^T; out = S^T q / sqrt(K). state then holds S; other slots stay; slots are distinct",
    tensors=(
        TensorSpec("q", ("B", "H", "K"), "compute", "runtime"),
        TensorSpec("k", ("B", "H", "K"), "compute", "runtime"),
        TensorSpec("v", ("B", "H", "V"), "compute", "runtime"),
        TensorSpec("g", ("B", "H", "K"), "float32", "runtime"),
        TensorSpec("beta", ("B", "H"), "float32", "runtime"),
        TensorSpec("state", ("X", "H", "K", "V"), "float32", "inout"),
        TensorSpec("state_slots", ("B",), "int32", "runtime"),
        TensorSpec("out", ("B", "H", "V"), "compute", "output"),
    ),
    cases=(
        condition("four-sequences", 4),
        condition("sixteen-sequences", 16),
        condition("model-heads", 3, H=4, K=64, V=64),
        condition("one-sequence", 1, tags=_ODD),
        condition("three-sequences", 3, tags=_ODD),
        condition("seventeen-sequences", 17, tags=_ODD),
        condition("odd-sizes", 3, tags=_ODD, H=3, K=20, V=12),
        condition("one-value", 3, tags=_ODD, H=1, K=7, V=1),
        condition("every-slot", 6, tags=_BUILT, X=6),
        condition("strong-decay", 5, "strong_decay", _BUILT),
        condition("weak-decay", 5, "weak_decay", _BUILT),
        condition("beta-near-0-and-1", 8, "beta_extremes", _BUILT),
        condition("small-keys", 5, "small", _BUILT),
        condition("large-keys", 5, "large", _BUILT),
        condition("one-hot", 5, "one_hot", _BUILT),
        condition("ramp", 5, "ramp", _BUILT),
        condition("zeros", 2, "zeros", _BUILT),
    ),
    tolerance={
        "float32": Tolerance(2e-6, 1e-5, "two float32 sums over the key size, values of size up to about 1"),
        "bfloat16": Tolerance(
            2e-3, 1e-2, "the output is rounded to 8 significant bits; the step and the state are float32"
        ),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    shardings=SHARDINGS,
)
