"""Every implementation of every operator against its float64 reference, on all cases of its specification.

Also that the specifications can fail: a defect of the usual kinds is seen by at least one case.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from target_engine.adapter import TargetEngine
from target_engine.errors import EngineError
from target_engine.ops import registry
from target_engine.ops.specification import Arrays, Case, settings_of

TARGET = TargetEngine()
DTYPES = ("float32", "bfloat16")
PAIRS = [(name, found) for name in registry.operator_names() for found in registry.implementations(name)]


def config_of(operator: str, implementation: str, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "operators": {operator: implementation}, "threads": 1}


def as_dict(case: Case) -> dict[str, Any]:
    return {"name": case.name, "dims": case.dims, "distribution": case.distribution, "tags": list(case.tags)}


def excess(operator: str, dtype: str, got: Arrays, expected: Arrays) -> float:
    """Largest |got - expected| as a multiple of what the tolerance allows."""
    tolerance = registry.specification(operator).tolerance[dtype]
    worst = 0.0
    for name, want in expected.items():
        assert got[name].shape == want.shape, name
        allowed = tolerance.atol + tolerance.rtol * np.abs(want) + 1e-30
        error = np.abs(got[name].astype(np.float64) - want) / allowed
        worst = max(worst, float(np.nan_to_num(error, nan=np.inf).max(initial=0.0)))
    return worst


def opened(operator: str, implementation: str, dtype: str, case: Case, inputs: Arrays) -> int:
    constants = {t.name: inputs[t.name] for t in registry.specification(operator).named("constant")}
    try:
        return TARGET.operator_open(operator, config_of(operator, implementation, dtype), as_dict(case), constants)
    except EngineError as error:
        if "cannot run on this machine" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operator", "implementation"), PAIRS)
def test_an_implementation_is_its_reference(operator: str, implementation: str, dtype: str) -> None:
    config = config_of(operator, implementation, dtype)
    for seed, case in enumerate(registry.specification(operator).cases):
        inputs = TARGET.operator_inputs(operator, as_dict(case), config, seed)
        kept = {name: array.copy() for name, array in inputs.items()}
        handle = opened(operator, implementation, dtype, case, inputs)
        got = TARGET.operator_run(handle, inputs)
        expected = TARGET.operator_reference(operator, as_dict(case), config, inputs)
        assert excess(operator, dtype, got, expected) <= 1.0, case.name
        for name, array in kept.items():
            np.testing.assert_array_equal(inputs[name], array, err_msg=f"{case.name}: {name} was changed")
        again = TARGET.operator_run(handle, inputs)
        for name, array in got.items():
            np.testing.assert_array_equal(again[name], array, err_msg=f"{case.name}: {name} differs the second time")


@pytest.mark.parametrize("operator", registry.operator_names())
def test_a_specification_is_complete(operator: str) -> None:
    spec = registry.specification(operator)
    assert spec.name == operator
    assert {tag for case in spec.cases for tag in case.tags} >= {
        "typical",
        "odd",
        "constructed",
    } or operator == "rotary"
    assert len({case.name for case in spec.cases}) == len(spec.cases)
    assert set(spec.tolerance) == set(DTYPES)
    for case in spec.cases:
        inputs = spec.make_inputs(case, 3)
        assert set(inputs) == {tensor.name for tensor in spec.named("constant", "runtime", "inout")}
        for tensor in spec.named("constant", "runtime", "inout"):
            sizes = tuple(case.dims[axis] if isinstance(axis, str) else axis for axis in tensor.shape)
            assert inputs[tensor.name].shape == sizes, (case.name, tensor.name)
            wanted = np.float32 if tensor.dtype == "compute" else np.dtype(tensor.dtype)
            assert inputs[tensor.name].dtype == wanted, (case.name, tensor.name)
        wide = {
            name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in inputs.items()
        }
        result = registry.reference(operator)(settings_of(case.dims, "float32"), **wide)
        assert set(result) == {tensor.name for tensor in spec.named("output", "inout")}


@pytest.mark.parametrize("operator", registry.operator_names())
def test_inputs_are_fresh_with_every_seed_and_the_same_with_one(operator: str) -> None:
    spec = registry.specification(operator)
    case = spec.cases[0]
    first, same, other = (spec.make_inputs(case, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


Defect = Callable[[Any, tuple[Any, ...]], Any]


def _shift(output: int) -> Defect:
    """The right values in the wrong rows."""

    def defect(run: Any, arguments: tuple[Any, ...]) -> Any:
        result = run(*arguments)
        parts = list(result) if isinstance(result, tuple) else [result]
        parts[output] = parts[output].roll(1, 0)
        return tuple(parts) if isinstance(result, tuple) else parts[0]

    return defect


def _change(index: int, change: Callable[[Any], Any]) -> Defect:
    """One argument seen wrongly."""

    def defect(run: Any, arguments: tuple[Any, ...]) -> Any:
        changed = list(arguments)
        changed[index] = change(changed[index])
        return run(*changed)

    return defect


DEFECTS: dict[str, tuple[str, Defect]] = {
    "decode attention that misses the newest token": ("attention_decode", _change(4, lambda n: (n - 1).clamp(min=1))),
    "decode attention that reads one token too many": ("attention_decode", _change(4, lambda n: n + 1)),
    "decode attention over the first block alone": (
        "attention_decode",
        _change(3, lambda table: table[:, :1].expand_as(table).contiguous()),
    ),
    "prefill attention that forgets the history": (
        "attention_prefill",
        lambda run, a: run(*a[:5], (a[4][1:] - a[4][:-1]).to(a[5].dtype)),
    ),
    "rope without the sign": ("rope", _change(3, lambda sin: -sin)),
    "swapped keys and values": ("kv_write", lambda run, a: run(a[1], a[0], *a[2:])),
    "slots off by one": ("kv_write", _change(2, lambda slots: (slots - 1).clamp(min=0))),
    "swapped gate and up": ("silu_mul", lambda run, a: run(a[1], a[0])),
    "rows in the wrong order": ("linear", _shift(0)),
    "values in the wrong order": ("qkv_projection", _shift(2)),
    "keys for values": ("qkv_projection", lambda run, a: (lambda q, k, v: (q, v, k))(*run(*a))),
    "a normalisation five per cent too large": ("rms_norm", lambda run, a: run(*a) * 1.05),
    "positions off by one": ("rotary", _change(0, lambda positions: positions + 1)),
    "the token after": ("embedding", _change(0, lambda ids: (ids + 1) % ids.max())),
    "logits of half precision noise": ("lm_head", lambda run, a: run(*a) + 0.1),
    "top-k one too small": ("sampling", _change(2, lambda k: torch.where(k > 1, k - 1, k))),
    "top-p ignored": ("sampling", _change(3, torch.ones_like)),
    "temperature ignored": ("sampling", _change(1, lambda heat: torch.where(heat > 0, torch.ones_like(heat), heat))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_seen(name: str, dtype: str) -> None:
    operator, defect = DEFECTS[name]
    config = config_of(operator, "torch", dtype)
    seen = []
    for case in registry.specification(operator).cases:
        inputs = TARGET.operator_inputs(operator, as_dict(case), config, 11)
        handle = opened(operator, "torch", dtype, case, inputs)
        spec, launch, run = TARGET._handles[handle]
        broken = (spec, launch, lambda *arguments, run=run: defect(run, arguments))
        TARGET._handles[handle] = broken
        got = TARGET.operator_run(handle, inputs)
        expected = TARGET.operator_reference(operator, as_dict(case), config, inputs)
        if excess(operator, dtype, got, expected) > 1.0:
            seen.append(case.name)
    assert seen


def test_unknown_choices_are_one_line(tmp_path: Path) -> None:
    settings = settings_of({}, "float32")
    with pytest.raises(EngineError, match="unknown operator"):
        registry.build("softmax", "torch", settings)
    with pytest.raises(EngineError, match="no implementation 'cuda'"):
        registry.build("linear", "cuda", settings)
    with pytest.raises(EngineError, match="never opened"):
        TARGET.operator_run(10_000, {})
