"""The input conditions of the linear-attention operators, and which models have them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target_engine.ops import recurrence, registry
from target_engine.ops.specification import ModelSizes, settings_of

LINEAR = tuple(name for name in registry.operator_names() if registry.specification(name).linear)
LLAMA = ModelSizes(576, 1536, 9, 3, 64, 49152, 16, 16, 512)
HYBRID = dataclasses.replace(LLAMA, linear_heads=4, key_dim=32, value_dim=48, conv_width=4)
SPREAD = dataclasses.replace(HYBRID, context_ranks=3)


def test_the_linear_operators_are_the_known_seven() -> None:
    assert set(LINEAR) == {
        "gated_norm",
        "kda_chunk",
        "kda_gate",
        "kda_local_state",
        "kda_recurrent",
        "kda_state_merge",
        "short_convolution",
    }


@pytest.mark.parametrize("operator", registry.operator_names())
def test_a_model_without_linear_layers_runs_none_of_them(operator: str) -> None:
    spec = registry.specification(operator)
    assert spec.runs_in(SPREAD)
    assert spec.runs_in(HYBRID) == (operator not in ("kda_local_state", "kda_state_merge"))
    assert spec.runs_in(LLAMA) == (operator not in LINEAR)
    assert bool(spec.microbench(LLAMA)) == (operator not in LINEAR)


@pytest.mark.parametrize("operator", LINEAR)
def test_a_models_own_sizes_are_timed(operator: str) -> None:
    spec = registry.specification(operator)
    cases = spec.microbench(HYBRID)
    assert len({case.name for case in cases}) == len(cases) >= 2
    for case in cases:
        assert case.tags == ("microbench",)
        inputs = spec.make_inputs(case, 1)
        for tensor in spec.named("constant", "runtime", "inout"):
            sizes = tuple(case.dims[axis] if isinstance(axis, str) else axis for axis in tensor.shape)
            assert inputs[tensor.name].shape == sizes, (case.name, tensor.name)
    dims = cases[0].dims
    known = settings_of(dims, "float32")
    assert (known.linear_heads, known.key_dim, known.value_dim, known.conv_width) == (
        dims.get("H", 1),
        dims.get("K", 1),
        dims.get("V", 1),
        dims.get("W", 4),
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 9), st.integers(0, 2**32))
def test_runs_cover_all_tokens(runs: int, count: int, empty: int, seed: int) -> None:
    """As many runs are empty as are wanted, unless there are too few tokens, or too few runs, for that."""
    dims = {"B": runs, "N": count, "Z": empty}
    lengths = np.diff(recurrence.run_starts(np.random.default_rng(seed), dims))
    assert lengths.sum() == count
    assert (lengths >= 0).all()
    assert len(lengths) == runs
    assert (lengths > 0).sum() == min(max(1, runs - empty), count)


@pytest.mark.parametrize("distribution", ["normal", *recurrence.CONDITIONS])
def test_decay_and_strength_are_in_range(distribution: str) -> None:
    rng = np.random.default_rng(2)
    drawn = recurrence.tokens(rng, {"H": 4, "K": 32, "V": 8}, distribution, 200)
    assert (drawn["g"] <= 0).all()
    assert ((drawn["beta"] >= 0) & (drawn["beta"] <= 1)).all()
    median = -float(np.median(drawn["g"]))
    low, high = {"strong_decay": (2, 5), "weak_decay": (1e-4, 1e-3), "repeated_keys": (1e-4, 1e-3)}.get(
        distribution, (0.05, 0.5)
    )
    assert low < median < high
    if distribution == "strong_decay":
        assert drawn["g"].sum(axis=0).min() < -600
    if distribution == "beta_extremes":
        assert {0.0, 1.0} <= set(drawn["beta"].ravel().tolist())


def test_a_slot_that_no_sequence_owns_is_far_off() -> None:
    spec = registry.specification("kda_chunk")
    inputs = spec.make_inputs(spec.cases[0], 0)
    free = [slot for slot in range(len(inputs["state"])) if slot not in inputs["state_slots"]]
    assert free
    assert (inputs["state"][free] == recurrence.UNOWNED).all()
    assert np.abs(inputs["state"][inputs["state_slots"]]).max() < 10
