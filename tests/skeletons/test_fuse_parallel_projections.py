"""Parallel projections of one input become one, when that is shown to be the same."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skeletons.support import apply, both, plain_operators, reasons

NAME = "fuse_parallel_projections"

RENAMED = '''
"""Two heads over one body."""
import torch
from torch.nn.functional import linear as project

SCALE = 2.0  # kept


class Heads:
    def __init__(self, upper, lower, shift):
        self.upper, self.lower = upper, lower.contiguous()
        self.shift = shift
        self.width = self.upper.shape[1]

    def forward(self, body):
        # both heads see the same body
        top = project(body, self.upper, bias=self.shift).relu()
        middle = top.sum()
        bottom = project(input=body, weight=self.lower)
        return top, middle, bottom * SCALE


def unrelated( a,b ):
    return a+b   # odd spacing stays
'''

MATMULS = """
import torch

class Gate:
    def __init__(self, a, b):
        self.a: torch.Tensor = a
        self.b = b

    def __call__(self, x):
        return torch.sigmoid(x @ self.a.T) * (x @ self.b.T)
"""


@given(
    rows=st.integers(0, 5),
    width=st.integers(1, 9),
    parts=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_the_engines_style_computes_the_same(rows, width, parts, seed):
    generator = torch.Generator().manual_seed(seed)
    files = {path: text for path, text in plain_operators().items() if "w_q" in text}
    text = next(iter(files.values()))
    before, after = both(NAME, text)
    weights = [torch.randn(n, width, generator=generator) for n in parts]
    x = torch.randn(rows, width, generator=generator)
    one = before.Implementation(None, *weights)
    two = after.Implementation(None, *weights)
    for got, wanted in zip(two(x), one(x), strict=True):
        torch.testing.assert_close(got, wanted)
    assert not any(value is weights[0] for value in vars(two).values()), "the separate weight is still held"


@given(
    rows=st.integers(0, 4), width=st.integers(1, 6), up=st.integers(1, 5), low=st.integers(1, 5), biased=st.booleans()
)
@settings(max_examples=25, deadline=None)
def test_a_renamed_variant_computes_the_same(rows, width, up, low, biased):
    before, after = both(NAME, RENAMED)
    upper, lower = torch.randn(up, width), torch.randn(low, width)
    shift = torch.randn(up) if biased else None
    x = torch.randn(rows, width)
    one, two = before.Heads(upper, lower, shift), after.Heads(upper, lower, shift)
    for got, wanted in zip(two.forward(x), one.forward(x), strict=True):
        torch.testing.assert_close(got, wanted)
    assert two.width == width


def test_comments_and_odd_spacing_elsewhere_stay():
    new = apply(NAME, RENAMED).files["module.py"]
    assert "SCALE = 2.0  # kept" in new
    assert "def unrelated( a,b ):\n    return a+b   # odd spacing stays" in new
    assert "        # both heads see the same body\n" in new


def test_products_with_transposed_weights_are_projections_too():
    before, after = both(NAME, MATMULS)
    a, b, x = torch.randn(3, 4), torch.randn(3, 4), torch.randn(2, 5, 4)
    torch.testing.assert_close(after.Gate(a, b)(x), before.Gate(a, b)(x))


@pytest.mark.parametrize("bias", [False, True])
def test_a_transformers_mlp_loads_its_old_checkpoint_and_computes_the_same(bias):
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama

    text = "import torch\nfrom torch import nn\n\n\n" + inspect.getsource(modeling_llama.LlamaMLP)
    before, after = both(NAME, text, vars(modeling_llama))
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4, mlp_bias=bias)
    one, two = before.LlamaMLP(config), after.LlamaMLP(config)
    two.load_state_dict(one.state_dict())
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(two(x), one(x))
    assert sorted(two.state_dict()) == sorted(
        n for n in two.state_dict() if n.startswith(("gate_up_proj.", "down_proj."))
    )


def test_a_transformers_attention_computes_the_same():
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama

    text = "import torch\nfrom torch import nn\n\n\n" + inspect.getsource(modeling_llama.LlamaAttention)
    before, after = both(NAME, text, vars(modeling_llama))
    config = LlamaConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager")
    one, two = before.LlamaAttention(config, 0).eval(), after.LlamaAttention(config, 0).eval()
    two.load_state_dict(one.state_dict())
    x, angles = torch.randn(2, 5, 16), torch.randn(2, 5, 4)
    positions = (angles.cos(), angles.sin())
    torch.testing.assert_close(two(x, positions, None)[0], one(x, positions, None)[0])


CLASS = """
import torch
import torch.nn.functional as F

class Two:
    def __init__(self, a, b):
        self.a = a
        self.b = b
{extra}
    def __call__(self, x, flag=True):
{body}
"""

A, B = "u = F.linear(x, self.a)", "return u, F.linear(x, self.b)"


def sample(*lines: str, extra: str = "") -> str:
    body = "\n".join("        " + line for line in lines or (A, B))
    return CLASS.format(body=body, extra=extra)


FREE = "import torch.nn.functional as F\ndef f(x, a, b):\n    return F.linear(x, a), F.linear(x, b)\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (sample(A, "x = x + 1", B), "bound again"),
        (sample(A, "x.add_(1)", B), "changed in place by add_"),
        (sample("y = x.view(-1)", A, "y[0] = 1", B), "written to"),
        (sample(A, "self.log(x)", B), "which may write to it"),
        (sample(A, "if flag:", "    u = u + F.linear(x, self.b)", "return u"), "different blocks"),
        (sample(A, "return u if flag else F.linear(x, self.b)"), "does not always run"),
        (sample(extra="    def reload(self, b):\n        self.b = b\n"), "reassigned in reload"),
        (sample(extra="    def scale(self):\n        self.b.mul_(2)\n"), "changes it in place by mul_"),
        (sample(extra="    def norm(self):\n        return self.b.norm()\n"), "read elsewhere: Two.norm"),
        (sample(extra="    def put(self, k, v):\n        setattr(self, k, v)\n"), "sets attributes by name"),
        (sample().replace("self.b = b", "self.b = a"), "tied"),
        (sample().replace("self.b = b", "if b is not None:\n            self.b = b"), "assigned under a condition"),
        (sample(A, "return u, F.linear(x, self.b, x)"), "bias is not an attribute"),
        (sample().replace("self.b = b", "self.b = torch.nn.Parameter(b)"), "loaded after construction"),
        (sample() + "\ndef peek(two):\n    return two.b\n", "read elsewhere: module.py"),
        (FREE, "weights applied to x are arguments"),
    ],
)
def test_it_declines_with_the_reason(text, reason):
    assert reason in reasons(NAME, text)


def test_a_weight_that_another_file_reads_is_left_alone():
    from skeletons.transfer import transfer
    from tests.skeletons.support import library

    files = {"module.py": sample(), "other.py": "def size(two):\n    return two.a.shape\n"}
    found = transfer(library(), NAME, files)
    assert not found.sites
    assert "read elsewhere: other.py:2" in found.declined[0].reason


def test_one_projection_is_no_site():
    assert reasons(NAME, sample("return F.linear(x, self.a)")) == ""
