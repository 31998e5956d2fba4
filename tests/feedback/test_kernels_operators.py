"""The engine's Triton implementations on every case of their specifications, with the rounding of hardware."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from feedback.kernels.interpret import interpreting
from feedback.kernels.rounding import MODES
from target_engine.adapter import TargetEngine
from target_engine.errors import EngineError
from target_engine.ops import registry
from target_engine.ops.specification import Case, settings_of

TARGET = TargetEngine()
OPERATORS = [name for name in registry.operator_names() if "triton" in registry.implementations(name)]

#: Many tokens one after another: each takes seconds, and shows no more than a shorter one.
LONG = 200


def ratio(operator: str, dtype: str, case: Case, mode: Any, seed: int) -> float:
    """Largest error of the Triton implementation as a multiple of what its specification allows."""
    spec = registry.specification(operator)
    config = {"dtype": dtype, "operators": {operator: "triton"}, "threads": 1}
    told = {"name": case.name, "dims": case.dims, "distribution": case.distribution, "tags": list(case.tags)}
    inputs = TARGET.operator_inputs(operator, told, config, seed)
    constants = {tensor.name: inputs[tensor.name] for tensor in spec.named("constant")}
    with interpreting(mode):
        handle = TARGET.operator_open(operator, config, told, constants)
        got = TARGET.operator_run(handle, inputs)
    expected = TARGET.operator_reference(operator, told, config, inputs)
    tolerance = spec.tolerance[dtype]
    worst = 0.0
    for name, want in expected.items():
        assert got[name].shape == want.shape
        error = np.abs(got[name].astype(np.float64) - want) / (tolerance.atol + tolerance.rtol * np.abs(want))
        worst = max(worst, float(np.nan_to_num(error, nan=np.inf).max(initial=0.0)))
    return worst


def test_the_linear_attention_operators_have_triton_implementations():
    assert set(OPERATORS) >= {
        *("kda_chunk", "kda_recurrent", "kda_local_state", "kda_state_merge", "short_convolution", "gated_norm"),
    }


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_implementation_is_its_reference(operator):
    for number, case in enumerate(registry.specification(operator).cases):
        if case.dims.get("N", 0) <= LONG:
            mode = MODES[number % len(MODES)]
            assert ratio(operator, "float32", case, mode, number) <= 1.0, (case.name, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_it_is_so_under_both_roundings_and_on_long_chains(operator, mode):
    for number, case in enumerate(registry.specification(operator).cases):
        assert ratio(operator, "float32", case, mode, 100 + number) <= 1.0, case.name


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_is_so_in_half_width(operator):
    cases = [case for case in registry.specification(operator).cases if case.dims.get("N", 0) <= 64]
    for number, case in enumerate(cases[:: max(1, len(cases) // 6)]):
        assert ratio(operator, "bfloat16", case, "truncation", number) <= 1.0, case.name


def weakest(operator: str) -> Case:
    """The case whose states live longest."""
    cases = [case for case in registry.specification(operator).cases if case.distribution == "weak_decay"]
    return max(cases, key=lambda case: case.dims.get("R", case.dims.get("N", 0)))


@pytest.mark.parametrize("operator", ["kda_state_merge", "kda_local_state"])
def test_the_products_that_carry_a_state_need_their_precision(operator, tmp_path, monkeypatch):
    """With the precision that Triton takes by itself the specification's weak decay is out of tolerance."""
    file = Path(registry.__file__).parent / operator / "triton.py"
    text = file.read_text()
    assert text.count(', input_precision="tf32x3"') == 1
    copy = tmp_path / "rough.py"
    copy.write_text(text.replace(', input_precision="tf32x3"', ""))
    spec = importlib.util.spec_from_file_location(f"rough_{operator}", copy)
    assert spec is not None
    assert spec.loader is not None
    rough = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rough)
    monkeypatch.setattr(f"target_engine.ops.{operator}.triton.Implementation", rough.Implementation)
    for mode in MODES:
        assert ratio(operator, "float32", weakest(operator), mode, 5) > 1.0


def test_without_a_gpu_and_without_the_interpreter_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        EngineError, match=r"operators\.gated_norm: triton cannot run on this machine: Triton kernels need"
    ):
        registry.build("gated_norm", "triton", settings_of({"V": 4}, "float32"), weight=torch.ones(4))


def test_keys_that_do_not_fit_a_block_are_refused():
    for operator in ("kda_chunk", "kda_local_state", "kda_state_merge"):
        with interpreting(), pytest.raises(EngineError, match=f"operators.{operator}: triton holds keys of up to 128"):
            registry.build(operator, "triton", settings_of({"K": 256}, "float32"))
