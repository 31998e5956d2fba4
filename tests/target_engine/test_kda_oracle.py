"""The linear-attention operators against what others wrote: flash-linear-attention's naive forms, and torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from target_engine.ops import recurrence, registry
from target_engine.ops.specification import Arrays
from tests.target_engine.kda import call, equal, plain, starts


@pytest.fixture(scope="module")
def naive() -> ModuleType:
    """`fla.ops.kda.naive` from its file: its package would compile Triton kernels for a GPU at import."""
    pytest.importorskip("einops", reason="the extra 'fla' (fla-core, einops) is not installed")
    found = importlib.util.find_spec("fla")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the extra 'fla' (fla-core) is not installed")
    path = Path(next(iter(found.submodule_search_locations))) / "ops/kda/naive.py"
    if not path.is_file():
        pytest.skip(f"this fla-core has no {path.name} for KDA")
    spec = importlib.util.spec_from_file_location("fla_kda_naive", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(length: int, distribution: str) -> Arrays:
    rng = np.random.default_rng(length)
    dims = {"H": 3, "K": 16, "V": 24, "X": 1}
    tokens = recurrence.tokens(rng, dims, distribution, length)
    state = 0.5 * rng.standard_normal((1, 3, 16, 24)).astype(np.float32)
    return {**tokens, "state": state, "state_slots": np.zeros(1, np.int32), "query_starts": starts([length])}


def theirs(form: str, naive: ModuleType, arrays: Arrays) -> Arrays:
    """Their form takes q and k of unit length, one batch axis more, and computes in float32."""
    unit = {name: recurrence.unit(arrays[name].astype(np.float64)) for name in ("q", "k")}
    given = {**{name: arrays[name] for name in ("v", "g", "beta")}, **unit}
    tensors = {name: torch.from_numpy(array).float().unsqueeze(0) for name, array in given.items()}
    out, state = getattr(naive, form)(
        **tensors, initial_state=torch.from_numpy(arrays["state"]), output_final_state=True
    )
    return {"out": out[0].double().numpy(), "state": state.double().numpy()}


@pytest.mark.parametrize("distribution", ["normal", "weak_decay", "beta_extremes", "repeated_keys", "one_hot"])
@pytest.mark.parametrize("form", ["naive_recurrent_kda", "naive_chunk_kda"])
def test_ours_are_flash_linear_attentions(naive: ModuleType, form: str, distribution: str) -> None:
    arrays = drawn(192, distribution)
    wanted = theirs(form, naive, arrays)
    equal(
        plain("kda_chunk", {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in arrays.items()}),
        wanted,
        1e-5,
    )
    equal(call("kda_chunk", arrays, torch.float32), wanted, 1e-5)


def test_the_recurrent_form_agrees_under_strong_decay(naive: ModuleType) -> None:
    """Their chunked form is left out: it takes differences of sums, and loses digits under strong decay."""
    arrays = drawn(150, "strong_decay")
    equal(call("kda_chunk", arrays, torch.float32), theirs("naive_recurrent_kda", naive, arrays), 1e-5)


def test_a_convolution_is_torchs() -> None:
    rng = np.random.default_rng(3)
    x, weight = torch.from_numpy(rng.standard_normal((20, 7))), torch.from_numpy(rng.standard_normal((7, 4)))
    wanted = F.silu(F.conv1d(F.pad(x.T, (3, 0)).unsqueeze(0), weight.unsqueeze(1), groups=7))[0].T
    arrays: Arrays = {"weight": weight.numpy(), "x": x.numpy(), "state": np.zeros((1, 7, 3))}
    arrays |= {"state_slots": np.zeros(1, np.int32), "query_starts": starts([20])}
    equal(call("short_convolution", arrays), {"out": wanted.numpy(), "state": x.numpy()[None, -3:].transpose(0, 2, 1)})


def test_a_gated_normalisation_is_torchs() -> None:
    rng = np.random.default_rng(4)
    x, gate, weight = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((5, 3, 8), (5, 3, 8), (8,)))
    wanted = F.rms_norm(x, (8,), weight, 1e-5) * torch.sigmoid(gate)
    equal(call("gated_norm", {"x": x.numpy(), "gate": gate.numpy(), "weight": weight.numpy()}), {"out": wanted.numpy()})


def test_a_gate_is_torchs() -> None:
    inputs = registry.specification("kda_gate").make_inputs(registry.specification("kda_gate").cases[0], 5)
    tensors = {name: torch.from_numpy(array).double() for name, array in inputs.items()}
    wanted = -tensors["a_log"].exp().unsqueeze(-1) * F.softplus(tensors["raw"] + tensors["dt_bias"])
    equal(call("kda_gate", inputs), {"g": wanted.numpy(), "beta": torch.sigmoid(tensors["raw_beta"]).numpy()})
