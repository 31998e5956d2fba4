"""Every native implementation against its operator's float64 reference: all cases of the specification, and views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from target_engine.errors import EngineError
from target_engine.native.build import unavailable
from target_engine.native.projection import MANY_ROWS, Projection
from target_engine.ops import registry
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Case, settings_of

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"native code {unavailable()}")

DTYPES = ("float32", "bfloat16")
NATIVE = [name for name in registry.operator_names() if "native" in registry.implementations(name)]
CASES = [
    pytest.param(name, case, dtype, id=f"{name}-{case.name}-{dtype}")
    for name in NATIVE
    for case in registry.specification(name).cases
    for dtype in DTYPES
]


@pytest.fixture(autouse=True)
def two_threads():
    """More than one, so that work is really divided."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def check(name: str, case: Case, dtype: str, seed: int, strided: bool = False) -> None:
    """Run the native implementation on fresh inputs and compare within the specification's tolerance."""
    spec = registry.specification(name)
    compute = getattr(torch, dtype)
    tensors = {}
    for key, array in spec.make_inputs(case, seed).items():
        tensor = torch.from_numpy(array)
        is_compute = next(item.dtype for item in spec.tensors if item.name == key) == "compute"
        tensors[key] = tensor.to(compute) if is_compute else tensor
    wide = {
        key: value.double().numpy() if value.is_floating_point() else value.numpy() for key, value in tensors.items()
    }
    expected = registry.reference(name)(settings_of(case.dims, dtype), **{k: v.copy() for k, v in wide.items()})
    constants = {item.name: tensors[item.name] for item in spec.named("constant")}
    implementation = registry.build(name, "native", settings_of(case.dims, dtype), **constants)
    arguments = [tensors[item.name] for item in spec.named("runtime", "inout")]
    if strided:
        arguments = [widened(a) if a.dtype == compute and a.dim() == 2 else a for a in arguments]
    before = {item.name: tensors[item.name].clone() for item in spec.named("runtime")}
    result = implementation(*arguments)
    outputs = spec.named("output")
    results = result if isinstance(result, tuple) else (result,) if outputs else ()
    got = dict(zip((item.name for item in outputs), results, strict=True))
    got |= {item.name: tensors[item.name] for item in spec.named("inout")}
    tolerance = spec.tolerance[dtype]
    for key, want in expected.items():
        np.testing.assert_allclose(got[key].double().numpy(), want, tolerance.rtol, tolerance.atol, err_msg=key)
    for item in outputs:
        assert got[item.name].dtype == (compute if item.dtype == "compute" else getattr(torch, item.dtype))
    for key, value in before.items():
        assert torch.equal(tensors[key], value), f"{key} was changed"


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same rows as columns of a wider matrix whose other values would show."""
    wide = torch.full((tensor.shape[0], tensor.shape[1] + 13), 1e4, dtype=tensor.dtype)
    wide[:, 5:-8] = tensor
    return wide[:, 5:-8]


def test_the_operators_that_pay_have_a_native_form() -> None:
    assert {"attention_decode", "linear", "qkv_projection", "gate_up_projection", "lm_head"} <= set(NATIVE)


@pytest.mark.parametrize(("name", "case", "dtype"), CASES)
def test_native_agrees_with_the_reference(name: str, case: Case, dtype: str) -> None:
    check(name, case, dtype, seed=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["linear", "lm_head", "qkv_projection", "gate_up_projection", "rms_norm", "silu_mul"])
def test_rows_may_be_views_of_wider_ones(name: str, dtype: str) -> None:
    for case in registry.specification(name).cases[:5]:
        check(name, case, dtype, seed=2, strided=True)


@settings(max_examples=60)
@given(rows=st.integers(1, 40), inputs=st.integers(1, 70), outputs=st.integers(1, 70), dtype=st.sampled_from(DTYPES),
       seed=st.integers(0, 999))  # fmt: skip
def test_a_projection_of_any_shape(rows: int, inputs: int, outputs: int, dtype: str, seed: int) -> None:
    check("linear", Case("any", {"N": rows, "K": inputs, "M": outputs}), dtype, seed)


@settings(max_examples=60)
@given(
    batch=st.integers(1, 9),
    longest=st.integers(1, 200),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    size=st.sampled_from([16, 32, 48, 64, 80, 128, 256]),
    block_size=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 999),
)
def test_decode_attention_of_any_shape(
    batch: int, longest: int, kv_heads: int, group: int, size: int, block_size: int, dtype: str, seed: int
) -> None:
    width = -(-longest // block_size)
    dims = {"B": batch, "C": longest, "L": 1, "H": kv_heads * group, "G": kv_heads, "D": size, "S": block_size}
    check("attention_decode", Case("any", dims | {"T": width, "X": batch * width}), dtype, seed)


@settings(max_examples=40)
@given(
    sequences=st.integers(1, 5),
    new=st.integers(5, 90),
    before=st.integers(0, 100),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 6),
    size=st.sampled_from([16, 48, 64, 128]),
    block_size=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 999),
)
def test_prefill_attention_of_any_shape(
    sequences: int, new: int, before: int, kv_heads: int, group: int, size: int, block_size: int, dtype: str, seed: int
) -> None:
    width = -(-(new + before) // block_size)
    dims = {"B": sequences, "N": new, "C": before, "H": kv_heads * group, "G": kv_heads, "D": size, "S": block_size}
    check("attention_prefill", Case("any", dims | {"T": width, "X": sequences * width}), dtype, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_batch_or_on_the_threads(dtype: str) -> None:
    """Bitwise: what a request gets must not change with who runs beside it."""
    torch.manual_seed(0)
    weight, x = torch.randn(300, 123).to(getattr(torch, dtype)), torch.randn(37, 123).to(getattr(torch, dtype))
    project = registry.build("linear", "native", OperatorSettings(dtype=dtype), weight=weight)
    full = project(x)
    torch.set_num_threads(1)
    for row in range(len(x)):
        assert torch.equal(project(x[row : row + 1])[0], full[row])


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 product for this processor"
)
def test_where_the_processor_has_matrix_tiles_many_rows_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice alone: oneDNN computes the product without tiles too."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    torch.manual_seed(0)
    weight, x = torch.randn(70, 96).bfloat16(), torch.randn(MANY_ROWS + 1, 96).bfloat16()
    project = Projection(weight)
    few = project(x[:MANY_ROWS])
    monkeypatch.setattr(project, "_run", None)
    many = project(x)
    torch.testing.assert_close(many[:MANY_ROWS], few, atol=2e-2, rtol=1.6e-2)


def test_a_head_size_that_it_cannot_do_is_refused() -> None:
    with pytest.raises(EngineError, match="multiple of 16, this model has 40: choose another"):
        registry.build("attention_decode", "native", OperatorSettings(head_dim=40))


def test_bad_numbers_stay_visible() -> None:
    """NaN and infinity are not turned into plausible values."""
    values = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 0.0] + [1.0] * 26])
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        gate = values.to(dtype)
        got = registry.build("silu_mul", "native", OperatorSettings(dtype=name))(gate, torch.ones_like(gate))
        want = torch.nn.functional.silu(gate.float())
        assert torch.equal(got.isnan(), want.isnan() | (gate == -float("inf")))
        assert torch.equal(got.isinf(), want.isinf())
        norm = registry.build("rms_norm", "native", OperatorSettings(dtype=name), weight=torch.ones(32, dtype=dtype))
        assert norm(gate).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(1, 1), (16, 7), (23,), (5, 40, 3), (64, 64)])
def test_prefill_in_any_chunks_equals_decoding_token_by_token(dtype: str, cuts: tuple[int, ...]) -> None:
    """Bitwise: neither the chunks of a prompt nor recomputation after preemption change what a request gets."""
    torch.manual_seed(3)
    options = OperatorSettings(dtype=dtype, num_heads=6, num_kv_heads=2, head_dim=32, block_size=8)
    length, compute = sum(cuts), getattr(torch, dtype)
    blocks = -(-length // 8)
    table = torch.randperm(blocks).int().view(1, -1)
    k, v = (torch.randn(blocks, 8, 2, 32).to(compute) for _ in range(2))
    q = torch.randn(length, 6, 32).to(compute)
    decode = registry.build("attention_decode", "native", options)
    prefill = registry.build("attention_prefill", "native", options)

    def lens(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    one_by_one = torch.cat([decode(q[i : i + 1], k, v, table, lens(i + 1)) for i in range(length)])
    start = 0
    for cut in cuts:
        end = start + cut
        assert torch.equal(prefill(q[start:end], k, v, table, lens(0, cut), lens(end)), one_by_one[start:end])
        start = end
