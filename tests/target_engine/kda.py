"""Drawn sequences for tests of the linear-attention operators, and calls of operators on them in any precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from target_engine.ops import recurrence, registry
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays

DECAYS = ("normal", "strong_decay", "weak_decay", "beta_extremes", "repeated_keys", "one_hot", "zeros")

#: Error in float64 that reordering of sums explains.
CLOSE = 1e-10


@st.composite
def sequences(draw: st.DrawFn, longest: int = 150, runs: int = 4) -> tuple[list[int], Arrays]:
    """Lengths of runs, some of them 0, and the tokens of all of them in float64, with state [X, H, K, V] and slots."""
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=runs))
    dims = {
        "H": draw(st.integers(1, 3)),
        "K": draw(st.sampled_from([1, 3, 8, 16])),
        "V": draw(st.sampled_from([1, 5, 8])),
        "X": len(lengths) + draw(st.integers(0, 2)),
        "B": len(lengths),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens = recurrence.tokens(rng, dims, draw(st.sampled_from(DECAYS)), sum(lengths))
    slots = recurrence.state_slots(rng, dims)
    state = recurrence.states(rng, slots, (dims["X"], dims["H"], dims["K"], dims["V"]))
    wide = {name: array.astype(np.float64) for name, array in {**tokens, "state": state}.items()}
    return lengths, {**wide, "state_slots": slots}


def starts(lengths: list[int]) -> np.ndarray:
    """int32 [B+1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def cut(arrays: Arrays, names: str, start: int, end: int) -> Arrays:
    """Tokens start .. end-1 of the arrays named, which are separated by spaces."""
    return {name: arrays[name][start:end] for name in names.split()}


def call(operator: str, arrays: Arrays, dtype: torch.dtype = torch.float64, eps: float = 1e-5) -> Arrays:
    """The torch implementation on these arrays, every float of them in `dtype`: outputs and inout arrays in float64."""
    spec = registry.specification(operator)
    tensors: dict[str, Any] = {}
    for tensor in spec.named("constant", "runtime", "inout"):
        value = torch.from_numpy(np.array(arrays[tensor.name]))
        tensors[tensor.name] = value.to(dtype) if value.is_floating_point() else value
    constants = {tensor.name: tensors[tensor.name] for tensor in spec.named("constant")}
    run = registry.build(operator, "torch", OperatorSettings(eps=eps), **constants)
    with torch.inference_mode():
        result = run(*(tensors[tensor.name] for tensor in spec.named("runtime", "inout")))
    results = result if isinstance(result, tuple) else (result,)
    found = {tensor.name: value for tensor, value in zip(spec.named("output"), results, strict=True)}
    found |= {tensor.name: tensors[tensor.name] for tensor in spec.named("inout")}
    return {name: value.double().numpy() for name, value in found.items()}


def plain(operator: str, arrays: Arrays) -> Arrays:
    """The reference on these arrays."""
    named = registry.specification(operator).named("constant", "runtime", "inout")
    return registry.reference(operator)(OperatorSettings(), **{tensor.name: arrays[tensor.name] for tensor in named})


def equal(got: Arrays, wanted: Arrays, error: float = CLOSE) -> None:
    """Every wanted array is there, and within `error`, absolute and relative."""
    for name, want in wanted.items():
        np.testing.assert_allclose(got[name], want, rtol=error, atol=error, err_msg=name)
