"""A written-out root mean square normalisation becomes a call of the library's."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skeletons.library import load_transform
from skeletons.view import Site, TargetView
from tests.skeletons.support import both, library, plain_operator, reasons

NAME = "library_kernel_for_rms"
TOLERANCE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 4e-2, "rtol": 2e-2}}

FORMS = """
import torch
import torch.nn.functional as F


def plain(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def divided(h, gain, tiny):
    size = (h * h).mean(dim=-1, keepdim=True)
    return gain * (h / torch.sqrt(size + tiny))


def around_one(x, w, eps):
    y = x.float()
    y = y * (torch.mean(y ** 2, dim=-1, keepdim=True) + eps) ** -0.5
    return (y * (1.0 + w.float())).type_as(x)


def inverse(x, w, eps):
    kept = x.dtype
    x = x.to(torch.float32)
    spread = x.square().mean(-1, True)
    x = x * (1 / (eps + spread).sqrt())
    out = w * x.to(kept)
    return F.relu(out)


def gated(x, w, eps):
    gate = F.silu(x)
    n = gate.float() * torch.rsqrt(gate.float().pow(2).mean([-1], keepdim=True) + eps)
    n = n.to(x.dtype)
    return n * gate
"""


@given(
    form=st.sampled_from(["plain", "divided", "around_one", "inverse", "gated"]),
    shape=st.lists(st.integers(0, 3), max_size=2),
    width=st.integers(1, 20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
@settings(max_examples=60, deadline=None)
def test_every_form_computes_the_same(form, shape, width, dtype, scale):
    before, after = both(NAME, FORMS)
    x, w = (scale * torch.randn(*shape, width)).to(dtype), torch.randn(width).to(dtype)
    got, wanted = getattr(after, form)(x, w, 1e-5), getattr(before, form)(x, w, 1e-5)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])


def test_every_form_is_found_once_and_the_pieces_are_gone():
    _before, after = both(NAME, FORMS)
    for form in ("plain", "divided", "around_one", "inverse", "gated"):
        source = after.__dict__[form].__code__.co_names
        assert "rms_norm" in source
        assert not {"rsqrt", "sqrt", "mean"} & set(source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_engines_style_computes_the_same(dtype):
    text = plain_operator("rms_norm")[1]
    before, after = both(NAME, text)
    config = type("Settings", (), {"eps": 1e-5})()
    weight, x = torch.randn(8).to(dtype), torch.randn(5, 8).to(dtype)
    torch.testing.assert_close(
        after.Implementation(config, weight)(x), before.Implementation(config, weight)(x), **TOLERANCE[dtype]
    )


def test_rounding_once_is_declared_for_16_bit_types_only():
    path, text = plain_operator("rms_norm")
    transform = load_transform(library().folders[NAME])
    for dtype, changes in (("float32", False), ("bfloat16", True)):
        view = TargetView({path: text}, facts={"launch.dtype": dtype})
        assert [s.changes_numerics for s in transform.find(view) if isinstance(s, Site)] == [changes]


def test_a_transformers_norm_computes_the_same():
    from transformers.models.llama import modeling_llama

    text = "import torch\nfrom torch import nn\n\n\n" + inspect.getsource(modeling_llama.LlamaRMSNorm)
    before, after = both(NAME, text, vars(modeling_llama))
    one, two = before.LlamaRMSNorm(12), after.LlamaRMSNorm(12)
    with torch.no_grad():
        one.weight.copy_(torch.randn(12))
    two.load_state_dict(one.state_dict())
    x = torch.randn(2, 3, 12)
    torch.testing.assert_close(two(x), one(x))


FORM = "import torch\ndef f(x, z, w, eps):\n{}\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + eps) * w", "not taken over the last axis"),
        ("    return x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + eps) * w", "not taken over the last axis"),
        ("    return x * torch.rsqrt(x.pow(2).mean(-1) + eps) * w", "does not keep its axis"),
        (
            "    return z * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w",
            "one tensor is squared and another one is scaled",
        ),
        ("    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * w", "nothing is added"),
        (
            "    y = x.float()\n    s = y.pow(2).mean(-1, keepdim=True)\n    x = x + 1\n"
            "    return y * torch.rsqrt(s + eps) * x.mean()",
            "x has another value",
        ),
        (
            "    s = x.pow(2).mean(-1, keepdim=True)\n    s.clamp_(max=3)\n    return x * torch.rsqrt(s + eps) * w",
            "changed in place by clamp_",
        ),
    ],
)
def test_it_declines_with_the_reason(body, reason):
    assert reason in reasons(NAME, FORM.format(body))


@pytest.mark.parametrize(
    "body",
    [
        "    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)",  # a length, not a mean
        "    c = x - x.mean(-1, keepdim=True)\n    return c / torch.sqrt(c.abs().mean(-1, keepdim=True) + eps)",
        "    return x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + eps)",
    ],
)
def test_other_normalisations_are_left_alone(body):
    assert reasons(NAME, FORM.format(body)) == ""
