"""Constant weights are packed once, and what is computed does not change."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skeletons.transfer import transfer
from tests.skeletons.support import apply, both, library, plain_operators, reasons, run

NAME = "prepack_constant_weights"
TOLERANCE = {torch.float32: {"atol": 1e-4, "rtol": 1e-4}, torch.bfloat16: {"atol": 5e-2, "rtol": 2e-2}}

VARIANT = """
import torch
from torch.nn.functional import linear as project

class Tower:
    def __init__(self, first, second, shift):
        self.first = first.to(torch.float32).to(first.dtype)
        self.second = second
        self.shift = shift
        self.out = self.second.shape[0]

    def run(self, x):
        # first
        h = project(
            x.relu(),
            self.first,
            bias=self.shift,
        )
        return torch.matmul(h, self.second.t()) + self.second.sum()
"""


def linear_text() -> str:
    return next(t for t in plain_operators().values() if t.count("F.linear") == 1 and ".float()" not in t)


@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=2),
    inside=st.integers(1, 40),
    outside=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None)
def test_the_engines_style_computes_the_same_on_any_rows(shape, inside, outside, dtype):
    before, after = both(NAME, linear_text())
    weight, x = torch.randn(outside, inside).to(dtype), torch.randn(*shape, inside).to(dtype)
    one, two = before.Implementation(None, weight), after.Implementation(None, weight)
    torch.testing.assert_close(two(x), one(x), **TOLERANCE[dtype])
    packed = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert any(value is weight for value in vars(two).values()) is not packed, "the plain weight stays only unpacked"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_strided_input_computes_the_same(dtype):
    before, after = both(NAME, linear_text())
    weight, x = torch.randn(8, 6).to(dtype), torch.randn(5, 12).to(dtype)[:, ::2]
    torch.testing.assert_close(
        after.Implementation(None, weight)(x), before.Implementation(None, weight)(x), **TOLERANCE[dtype]
    )


def test_the_weight_is_packed_where_the_machine_can():
    _, after = both(NAME, linear_text())
    packed = after.Implementation(None, torch.randn(8, 6)).packed_weight
    assert packed.is_mkldnn == torch.backends.mkldnn.is_available()


def test_types_that_cannot_be_packed_and_gradients_take_the_plain_way():
    before, after = both(NAME, linear_text())
    double = torch.randn(8, 6, dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(after.Implementation(None, double)(x), before.Implementation(None, double)(x))
    trained = torch.randn(8, 6, requires_grad=True)
    after.Implementation(None, trained)(torch.randn(3, 6)).sum().backward()
    assert trained.grad is not None


def test_a_renamed_variant_keeps_the_weight_that_is_used_elsewhere():
    before, after = both(NAME, VARIANT)
    first, second, shift, x = torch.randn(5, 4), torch.randn(3, 5), torch.randn(5), torch.randn(2, 4)
    one, two = before.Tower(first, second, shift), after.Tower(first, second, shift)
    torch.testing.assert_close(two.run(x), one.run(x), atol=1e-5, rtol=1e-5)
    assert two.second is second
    assert not hasattr(two, "first")


def test_it_composes_with_fusion():
    text = next(t for t in plain_operators().values() if "w_q" in t)
    fused = apply("fuse_parallel_projections", text).files["module.py"]
    packed = apply(NAME, fused)
    assert len(packed.sites) == 1
    weights = [torch.randn(n, 16) for n in (8, 4, 4)]
    x = torch.randn(3, 16)
    one, two = run(text).Implementation(None, *weights), run(packed.files["module.py"]).Implementation(None, *weights)
    for got, wanted in zip(two(x), one(x), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_transformers_mlp_packs_at_first_use_and_follows_its_weights(dtype):
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama

    text = "import torch\nfrom torch import nn\n\n\n" + inspect.getsource(modeling_llama.LlamaMLP)
    before, after = both(NAME, text, vars(modeling_llama))
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4)
    one, two = before.LlamaMLP(config).to(dtype), after.LlamaMLP(config).to(dtype)
    x = torch.randn(2, 3, 16).to(dtype)
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(two(x), one(x), **TOLERANCE[dtype])
        for module in (one, two):
            module.up_proj.weight.mul_(3.0)
        torch.testing.assert_close(two(x), one(x), **TOLERANCE[dtype])
    two(x).sum().backward()
    assert two.up_proj.weight.grad is not None


CLASS = """
import torch
import torch.nn.functional as F

class One:
    def __init__(self, w):
        self.w = w
{extra}
    def __call__(self, x):
        return F.linear(x, self.w)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CLASS.format(extra="    def load(self, w):\n        self.w = w\n"), "reassigned in load"),
        (CLASS.format(extra="    def step(self, d):\n        self.w -= d\n"), "changes it in place"),
        (CLASS.format(extra="    def step(self, d):\n        self.w[0] = d\n"), "writes into it"),
        (CLASS.format(extra="").replace("self.w = w", "self.w = torch.nn.Parameter(w)"), "loaded after construction"),
        (
            CLASS.format(extra="").replace("(x, self.w)", "(x, self.w, *x)"),
            "arguments that are not input, weight and bias",
        ),
    ],
)
def test_it_declines_with_the_reason(text, reason):
    assert reason in reasons(NAME, text)


def test_a_weight_that_another_file_reads_stays_beside_the_packed_one():
    files = {"module.py": CLASS.format(extra=""), "other.py": "def size(one):\n    return one.w.shape\n"}
    found = transfer(library(), NAME, files)
    assert "used in other.py:2" in found.sites[0].detail
    weight, x = torch.randn(3, 4), torch.randn(2, 4)
    two = run(found.files["module.py"]).One(weight)
    assert two.w is weight
    torch.testing.assert_close(two(x), torch.nn.functional.linear(x, weight))
