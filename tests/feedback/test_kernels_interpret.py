"""Interpretation of Triton kernels: hardware's rounding, host code as it is, nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from feedback.kernels import rounding  # noqa: E402
from feedback.kernels.interpret import Unfaithful, interpreting  # noqa: E402
from tests.feedback import kernel_samples as samples  # noqa: E402

N = 32


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("precision", rounding.PRECISIONS)
@pytest.mark.parametrize("mode", rounding.MODES)
def test_a_product_is_rounded_as_its_precision_says(mode, precision):
    x, y, out = drawn(N, N), drawn(N, N, seed=1), torch.empty(N, N)
    with interpreting(mode) as seen:
        samples.product[(1,)](x, y, out, N=N, PRECISION=precision)
    expected = rounding.dot(x.numpy(), y.numpy(), np.zeros((N, N), np.float32), precision, mode)
    np.testing.assert_array_equal(out.numpy(), expected)
    (site,) = seen.dots
    assert (Path(site.file).name, site.dtype, site.precision) == ("kernel_samples.py", "fp32", precision)
    assert "tl.dot(" in Path(site.file).read_text().splitlines()[site.line - 1]


def test_the_default_of_a_product_is_tf32():
    x, y, out = drawn(N, N), drawn(N, N, seed=1), torch.empty(N, N)
    with interpreting("truncation") as seen:
        samples.default_product[(1,)](x, y, out, N=N)
    assert [site.precision for site in seen.dots] == ["tf32"]
    assert float((out - (x.double() @ y.double())).abs().max()) > 1e-3


def test_products_at_named_places_are_exact():
    x, y, out = drawn(N, N), drawn(N, N, seed=1), torch.empty(N, N)
    with interpreting("truncation") as seen:
        samples.default_product[(1,)](x, y, out, N=N)
    (site,) = seen.dots
    with interpreting("truncation", frozenset({site.place})):
        samples.default_product[(1,)](x, y, out, N=N)
    np.testing.assert_array_equal(out.numpy(), (x.double() @ y.double()).float().numpy())


@pytest.mark.parametrize("n", [1, 16, 17, 63, 64, 100])
def test_loops_masks_and_device_functions(n):
    x = drawn(n)
    out = torch.full((n + 8,), 7.0)
    with interpreting() as seen:
        samples.rows[lambda meta: (triton.cdiv(n, 2 * meta["BLOCK"]),)](x, out, n, BLOCK=16)
    torch.testing.assert_close(out[:n], 2 * x + 1, rtol=0, atol=0)
    assert (out[n:] == 7).all()
    assert seen.programs == -(-n // 32)
    assert [launch.kernel.__name__ for launch in seen.launches] == ["rows"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_arithmetic_of_narrow_types_is_what_torch_computes(dtype):
    x, y = drawn(64).to(dtype), drawn(64, seed=1).to(dtype)
    out, flags = torch.empty_like(x), torch.empty_like(x)
    with interpreting():
        samples.mixed[(1,)](x, y, out, flags, N=64)
    assert torch.equal(out, torch.where(x > y, x * y + x, x - y))
    assert torch.equal(flags, (x > y).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_width_products_are_exact_before_they_are_summed(dtype):
    x, y, out = drawn(N, N).to(dtype), drawn(N, N, seed=1).to(dtype), torch.empty(N, N)
    with interpreting("truncation") as seen:
        samples.default_product[(1,)](x, y, out, N=N)
    torch.testing.assert_close(out, (x.double() @ y.double()).float(), rtol=1e-5, atol=1e-5)
    assert [site.precision for site in seen.dots] == [""]


def test_what_is_not_modelled_is_refused():
    with interpreting(), pytest.raises(Unfaithful, match="reduction or scan of bf16"):
        samples.summed[(1,)](torch.ones(16, dtype=torch.bfloat16), torch.empty(1, dtype=torch.bfloat16), N=16)
    with interpreting(), pytest.raises(Unfaithful, match="inline assembly"):
        samples.assembled[(1,)](torch.ones(16), torch.empty(16), N=16)
    with interpreting(), pytest.raises(Unfaithful, match="bf16x6"):
        samples.product[(1,)](torch.ones(16, 16), torch.ones(16, 16), torch.empty(16, 16), N=16, PRECISION="bf16x6")
    narrow = torch.ones(16, 16).to(torch.float8_e5m2)
    with interpreting(), pytest.raises(Unfaithful, match="a product of fp8"):
        samples.default_product[(1,)](narrow, narrow, torch.empty(16, 16), N=16)


def test_an_autotuned_kernel_runs_with_its_first_configuration():
    x, out = drawn(40), torch.empty(40)
    with interpreting() as seen:
        samples.tuned[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, out, 40)
    torch.testing.assert_close(out, x + 16, rtol=0, atol=0)
    assert seen.launches[0].kwargs["BLOCK"] == 16
    assert seen.programs == 3


def patched() -> list[object]:
    """Everything of Triton that an interpretation changes, and some that it must not."""
    return [
        JITFunction.run,
        JITFunction.__call__,
        triton.jit,
        interpreter.interpreter_builder,
        interpreter.interpreter_semantic.builder,
        interpreter.ReduceScanOpInterface.apply,
        type(samples.tuned).run,
        dict(triton.knobs.runtime.__dict__),
        dict(vars(tl)),
        dict(vars(tl.core)),
        dict(vars(tl.math)),
        dict(vars(tl.tensor)),
        dict(vars(tl.standard)),
        dict(vars(samples)),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_afterwards(fails):
    before, environment = patched(), dict(os.environ)
    with interpreting():
        samples.rows[(1,)](drawn(16), torch.empty(16), 16, BLOCK=16)
        assert triton.knobs.runtime.interpret
        assert dict(os.environ) == environment
        if fails:
            with pytest.raises(ValueError, match="shape"):
                samples.failing[(1,)](torch.empty(16), N=16)
    assert patched() == before
    assert not triton.knobs.runtime.interpret
    assert "TRITON_INTERPRET" not in os.environ
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        samples.doubled(1)


def test_an_error_in_a_kernel_points_to_its_line():
    with interpreting(), pytest.raises(Exception, match="shape") as error:
        samples.failing[(1,)](torch.empty(16), N=16)
    places = [(Path(str(entry.path)).name, entry.lineno + 1) for entry in error.traceback]
    lines = Path(samples.__file__).read_text().splitlines()
    assert any(name == "kernel_samples.py" and "N // 2" in lines[line - 1] for name, line in places)


def test_interpretations_are_not_nested_and_nothing_compiles_inside():
    with interpreting():
        with pytest.raises(RuntimeError, match="cannot be nested"), interpreting():
            pass
        with pytest.raises(RuntimeError, match="leave the interpretation first"):
            samples.rows.warmup(torch.ones(16), torch.empty(16), 16, BLOCK=16, grid=(1,))
    with interpreting():
        samples.rows[(1,)](torch.ones(16), torch.empty(16), 16, BLOCK=16)


def test_a_launch_with_an_unknown_argument_fails_as_on_a_gpu():
    with interpreting(), pytest.raises(KeyError, match="no parameter SIZE"):
        samples.rows[(1,)](torch.ones(16), torch.empty(16), 16, BLOCK=16, SIZE=3)
    with interpreting():
        samples.rows[(1,)](torch.ones(16), torch.empty(16), 16, BLOCK=16, num_warps=2, num_stages=1)


def test_kernels_of_modules_imported_meanwhile_can_be_compiled(tmp_path):
    file = tmp_path / "late.py"
    file.write_text(
        "import triton\nimport triton.language as tl\nfrom triton.language import minimum\n\n\n"
        "@triton.jit\ndef one(x):\n    tl.store(x, 1.0)\n\n\n"
        "@triton.jit(do_not_specialize=['n'])\ndef two(x, n):\n    tl.store(x, n)\n"
    )
    with interpreting():
        spec = importlib.util.spec_from_file_location("late", file)
        assert spec is not None
        assert spec.loader is not None
        late = importlib.util.module_from_spec(spec)
        sys.modules["late"] = late
        spec.loader.exec_module(late)
        x = torch.zeros(1)
        late.one[(1,)](x)
    del sys.modules["late"]
    assert float(x) == 1.0
    assert type(late.one) is type(late.two) is JITFunction
    assert late.minimum is tl.minimum


def test_a_module_constant_is_what_it_is_at_the_time(monkeypatch):
    x, out = torch.ones(16), torch.empty(16)
    monkeypatch.setattr(samples, "FACTOR", tl.constexpr(5))
    with interpreting():
        samples.rows[(1,)](x, out, 16, BLOCK=16)
    assert (out == 6).all()
