"""Every operator, cut in every way, over simulated ranks: the same as on one rank, however the cut falls.

Also that a fault of the combining code is seen, and that the recorded steps tell where it is.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from target_engine.adapter import TargetEngine
from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.ops import registry
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays, Case, Tolerance
from target_engine.parallel import tokens
from target_engine.parallel.collectives import Build, Simulated
from target_engine.parallel.combining import Combine
from target_engine.parallel.simulate import BuildFor, chosen, combine, exact, find_sharding, run_sharded, run_whole

PAIRS = [
    (name, sharding.name) for name in registry.operator_names() for sharding in registry.specification(name).shardings
]
CONTEXT = [(operator, name) for operator, name in PAIRS if find_sharding(operator, name).by_tokens]
TORCH = chosen(LaunchConfig(threads=1))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def excess(tolerance: Tolerance, got: Arrays, want: Arrays) -> float:
    """Largest |got - want| as a multiple of what the tolerance allows."""
    assert set(got) == set(want)
    worst = 0.0
    for name in want:
        assert got[name].shape == want[name].shape, name
        wide = want[name].astype(np.float64)
        error = np.abs(got[name].astype(np.float64) - wide) / (tolerance.atol + tolerance.rtol * np.abs(wide) + 1e-30)
        worst = max(worst, float(np.nan_to_num(error, nan=np.inf).max(initial=0.0)))
    return worst


def inputs_of(operator: str, case: Case, dtype: str, seed: int) -> Arrays:
    values = {"name": case.name, "dims": case.dims, "distribution": case.distribution, "tags": list(case.tags)}
    return TargetEngine().operator_inputs(operator, values, {"dtype": dtype}, seed)


def case_of(operator: str, name: str) -> Case:
    return next(case for case in registry.specification(operator).cases if case.name == name)


def test_every_operator_says_how_it_is_cut_or_why_not() -> None:
    for name in registry.operator_names():
        spec = registry.specification(name)
        assert bool(spec.shardings) != bool(spec.unsharded), f"{name} needs shardings or a reason for none, not both"
        names = [sharding.name for sharding in spec.shardings]
        assert len(set(names)) == len(names)
        for sharding in spec.shardings:
            assert sharding.operator == name
            assert set(sharding.cuts) == {tensor.name for tensor in spec.tensors}, "every tensor's cut is told"
            assert sharding.steps[-1] == "output"
            assert set(sharding.tolerance) == {"float32", "bfloat16"}
            assert all(each.reason for each in sharding.tolerance.values())


def test_combining_code_takes_what_the_protocol_says() -> None:
    wanted = [name for name in inspect.signature(Combine.__call__).parameters if name != "self"]
    for name in sorted({operator for operator, _ in PAIRS}):
        assert list(inspect.signature(combine(name)).parameters) == wanted, name
        module = importlib.import_module(f"target_engine.ops.{name}.parallel")
        assert getattr(module, "ROWS", "tokens") in ("tokens", "logits"), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_sharded_is_unsharded(operator: str, name: str, dtype: str) -> None:
    sharding = find_sharding(operator, name)
    seen = 0
    for number, case in enumerate(registry.specification(operator).cases):
        inputs = inputs_of(operator, case, dtype, number)
        want = run_whole(operator, case, inputs, dtype, TORCH)
        ranks = 2 + number % 3
        if sharding.ranks(case.dims, ranks):
            continue
        for seed in (0, number + 1) if sharding.by_tokens and dtype == "float32" else (0,):
            kept = {key: array.copy() for key, array in inputs.items()}
            got = run_sharded(operator, name, case, inputs, ranks, dtype, TORCH, seed=seed)
            error = excess(sharding.tolerance[dtype], got.outputs, want)
            assert error <= 1.0, f"{case.name} over {ranks} ranks, seed {seed}: off {error:.2g} tolerances"
            assert all(list(steps) == list(sharding.steps) for steps in got.steps), "every step, in order"
            for key, array in kept.items():
                np.testing.assert_array_equal(inputs[key], array, err_msg=key)
            seen += 1
    assert seen >= 4, "too few cases can be cut"


@given(data=st.data(), ranks=st.integers(2, 7), seed=st.integers(1, 2**31))
@settings(max_examples=60)
def test_any_uneven_cut_of_tokens_is_no_cut(data: st.DataObject, ranks: int, seed: int) -> None:
    operator, name = data.draw(st.sampled_from(CONTEXT))
    case = data.draw(st.sampled_from([case for case in registry.specification(operator).cases if _small(case)]))
    inputs = inputs_of(operator, case, "float32", seed % 1000)
    want = run_whole(operator, case, inputs, "float32", TORCH)
    got = run_sharded(operator, name, case, inputs, ranks, "float32", TORCH, seed=seed)
    assert excess(find_sharding(operator, name).tolerance["float32"], got.outputs, want) <= 1.0


def _small(case: Case) -> bool:
    return case.dims.get("N", 0) <= 70


@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_the_exact_run_is_the_reference(operator: str, name: str) -> None:
    sharding = find_sharding(operator, name)
    case = next(case for case in registry.specification(operator).cases if not sharding.ranks(case.dims, 3))
    inputs = inputs_of(operator, case, "float32", 3)
    want = run_whole(operator, case, inputs, "float64", exact)
    got = run_sharded(operator, name, case, inputs, 3, "float64", exact, seed=5)
    assert excess(Tolerance(1e-9, 1e-9, "float64"), got.outputs, want) <= 1.0


def faulty(operator: str, fault: Callable[..., Any]) -> BuildFor:
    """The chosen implementations, one of them with a fault around it: `fault(implementation, *arguments)`."""

    def for_settings(settings: OperatorSettings) -> Build:
        def build(name: str, **constants: torch.Tensor) -> Any:
            implementation = TORCH(settings)(name, **constants)
            if name != operator:
                return implementation
            return lambda *arguments: fault(implementation, *arguments)

        return build

    return for_settings


def tf32(x: torch.Tensor) -> torch.Tensor:
    """What the tensor core keeps of a float32 operand."""
    return (x.contiguous().view(torch.int32) & -8192).view(torch.float32)


def coarse_merge(merge: Any, s_ext: torch.Tensor, m: torch.Tensor, s_0: torch.Tensor) -> torch.Tensor:
    states = [s_0]
    for rank in range(len(s_ext)):
        states.append(tf32(m[rank]) @ tf32(states[rank]) + s_ext[rank])
    return torch.stack(states)


def test_rounding_in_the_merge_is_found_and_placed() -> None:
    case, ranks = case_of("kda_chunk", "long-chain"), 4
    inputs = inputs_of("kda_chunk", case, "float32", 1)
    tolerance = find_sharding("kda_chunk", "context").tolerance["float32"]
    want = run_whole("kda_chunk", case, inputs, "float32", TORCH)
    truth = run_sharded("kda_chunk", "context", case, inputs, ranks, "float64", exact)
    bad = run_sharded("kda_chunk", "context", case, inputs, ranks, "float32", faulty("kda_state_merge", coarse_merge))
    assert excess(tolerance, bad.outputs, want) > 1.0
    last = ranks - 1
    wrong = [
        step
        for step in find_sharding("kda_chunk", "context").steps
        if excess(tolerance, bad.steps[last][step], truth.steps[last][step]) > 1.0
    ]
    assert wrong[0] == "merge"
    mild = case_of("kda_chunk", "one-prompt")
    few = inputs_of("kda_chunk", mild, "float32", 1)
    good = run_sharded("kda_chunk", "context", mild, few, ranks, "float32", TORCH)
    assert excess(tolerance, good.outputs, run_whole("kda_chunk", mild, few, "float32", TORCH)) <= 1.0


def shift(merge: Any, *arguments: torch.Tensor) -> torch.Tensor:
    return merge(*arguments).roll(1, 0)


FAULTS: dict[str, tuple[str, str, Callable[[pytest.MonkeyPatch], BuildFor | None]]] = {
    "no sum over ranks": ("linear", "rows", lambda patch: patch.setattr(Simulated, "all_reduce", lambda self, t: t)),
    "no sum of the embedding": (
        "embedding",
        "vocabulary",
        lambda patch: patch.setattr(Simulated, "all_reduce", lambda self, t: t),
    ),
    "gathered tokens in the order of ranks": (
        "kv_write",
        "context",
        lambda patch: patch.setattr(tokens, "order", lambda lengths: torch.arange(int(lengths.sum()))),
    ),
    "no halo": (
        "short_convolution",
        "context",
        lambda patch: patch.setattr("target_engine.ops.short_convolution.parallel.advance", lambda w, t, c: w),
    ),
    "states of the next rank": ("kda_chunk", "context", lambda patch: faulty("kda_state_merge", shift)),
    "transition forgotten": (
        "kda_chunk",
        "context",
        lambda patch: faulty("kda_state_merge", lambda merge, s_ext, m, s_0: merge(s_ext, torch.zeros_like(m), s_0)),
    ),
    "blocks of nobody": (
        "attention_decode",
        "layers",
        lambda patch: patch.setattr(Simulated, "broadcast", lambda self, tensor, root: torch.zeros_like(tensor)),
    ),
    "logits of this rank's tokens alone": (
        "lm_head",
        "context",
        lambda patch: patch.setattr(
            Simulated, "all_gather", lambda self, t, sizes=None: [t.new_zeros(n, *t.shape[1:]) for n in sizes]
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, name, plant = FAULTS[fault]
    build_for = plant(monkeypatch) or TORCH
    tolerance = find_sharding(operator, name).tolerance["float32"]
    seen = []
    for case in registry.specification(operator).cases[:6]:
        inputs = inputs_of(operator, case, "float32", 2)
        want = run_whole(operator, case, inputs, "float32", TORCH)
        got = run_sharded(operator, name, case, inputs, 3, "float32", build_for, seed=1)
        seen.append(excess(tolerance, got.outputs, want) > 1.0)
    assert any(seen)


def test_more_ranks_than_there_is_to_cut_are_refused() -> None:
    case = case_of("lm_head", "one-output")
    with pytest.raises(EngineError, match="lm_head: vocabulary over 2 ranks: 2 ranks are more than the 1 tokens"):
        run_sharded("lm_head", "vocabulary", case, inputs_of("lm_head", case, "float32", 0), 2, "float32", TORCH)
    with pytest.raises(EngineError, match="no sharding 'rows'; there are: context"):
        find_sharding("rms_norm", "rows")
