"""Specification: each channel mixed over its last W inputs, with what a sequence's next tokens need kept as state."""

import numpy as np

from target_engine.ops.recurrence import run_starts, state_slots, states
from target_engine.ops.short_convolution.shardings import SHARDINGS
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, Tolerance, draw


def make_inputs(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    dims = case.dims
    slots = state_slots(rng, dims)
    return {
        "weight": (rng.standard_normal((dims["C"], dims["W"])) / np.sqrt(dims["W"])).astype(np.float32),
        "x": draw(rng, (dims["N"], dims["C"]), case.distribution),
        "state": states(rng, slots, (dims["X"], dims["C"], dims["P"])),
        "state_slots": slots,
        "query_starts": run_starts(rng, dims),
    }


def condition(name: str, sequences: int, new: int, distribution: str = "normal",
              tags: tuple[str, ...] = ("typical",), width: int = 4, **axes: int) -> Case:  # fmt: skip
    """A case for `new` tokens of B sequences in all, Z of which have none; 40 channels unless given; P = W - 1."""
    dims = {"B": sequences, "N": new, "Z": 0, "C": 40, "W": width, "P": width - 1} | axes
    dims |= {"X": sequences + 2, "E": sequences + 1}
    return Case(name, dims, distribution, tags)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    """Channels of the keys: of queries there are as many, of values as many or more."""
    if not sizes.linear_heads:
        return ()
    channels, batch, chunk = sizes.linear_heads * sizes.key_dim, sizes.max_batch, sizes.prefill_chunk
    return tuple(
        condition(name, sequences, new, tags=("microbench",), width=sizes.conv_width, C=channels)
        for name, sequences, new in (
            ("model-decode-1", 1, 1),
            (f"model-decode-{batch}", batch, batch),
            (f"model-prefill-{chunk}", 4, chunk),
        )
    )


_ODD, _BUILT = ("odd",), ("constructed",)

SPEC = OperatorSpec(
    name="short_convolution",
    role="short_convolution",
    doc="tokens query_starts[b] .. query_starts[b+1]-1 are the next ones of the sequence whose last W - 1 inputs, "
    "older first, are state[state_slots[b]]; out = silu(sum over w of weight[:, w] times the input W - 1 - w tokens "
    "before); state then holds the last W - 1 inputs, also after a shorter run; other slots, and those of empty runs, "
    "stay; slots are distinct; P = W - 1, E = B + 1",
    tensors=(
        TensorSpec("weight", ("C", "W"), "compute", "constant"),
        TensorSpec("x", ("N", "C"), "compute", "runtime"),
        TensorSpec("state", ("X", "C", "P"), "compute", "inout"),
        TensorSpec("state_slots", ("B",), "int32", "runtime"),
        TensorSpec("query_starts", ("E",), "int32", "runtime"),
        TensorSpec("out", ("N", "C"), "compute", "output"),
    ),
    cases=(
        condition("one-prompt", 1, 48),
        condition("four-prompts", 4, 100),
        condition("decode-16", 16, 16),
        condition("one-token", 1, 1, tags=_ODD),
        condition("two-tokens", 1, 2, tags=_ODD),
        condition("as-long-as-the-state", 1, 3, tags=_ODD),
        condition("as-wide-as-the-kernel", 1, 4, tags=_ODD),
        condition("sixty-five-tokens", 1, 65, tags=_ODD),
        condition("runs-shorter-than-the-state", 5, 8, tags=_ODD),
        condition("seventeen-sequences", 17, 60, tags=_ODD),
        condition("odd-channels", 3, 20, tags=_ODD, C=37),
        condition("two-taps", 2, 9, tags=_ODD, width=2),
        condition("eight-taps", 3, 12, tags=_ODD, width=8),
        condition("empty-runs", 6, 11, tags=_BUILT, Z=3),
        condition("no-tokens", 2, 0, tags=_BUILT),
        condition("large-values", 3, 20, "large", _BUILT),
        condition("small-values", 3, 20, "small", _BUILT),
        condition("one-hot", 3, 20, "one_hot", _BUILT),
        condition("ramp", 3, 20, "ramp", _BUILT),
        condition("zeros", 2, 9, "zeros", _BUILT),
    ),
    tolerance={
        "float32": Tolerance(3e-5, 1e-5, "sums of up to eight float32 products of size up to about 100"),
        "bfloat16": Tolerance(2e-3, 1e-2, "float32 sums rounded once to 8 significant bits; state is a copy"),
    },
    make_inputs=make_inputs,
    microbench=microbench,
    linear=True,
    shardings=SHARDINGS,
)
