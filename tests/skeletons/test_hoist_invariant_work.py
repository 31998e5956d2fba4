"""Work that repeats with the same operands is done once."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skeletons.support import apply, both, operator, reasons

NAME = "hoist_invariant_work"

ENGINE_STYLE = '''
import torch
from torch import Tensor


def table(size: int, base: float) -> Tensor:
    """Inverse frequencies."""
    return 1.0 / base ** (torch.arange(0, size, 2).float() / size)


class Implementation:
    def __init__(self, settings, weight: Tensor) -> None:
        self.size = settings
        self.weight = weight

    def __call__(self, positions: Tensor) -> Tensor:
        angles = torch.outer(positions.float(), table(self.size, 100.0))
        wide = self.weight.t().contiguous()
        return (torch.cat([angles, angles], dim=-1) @ wide).cos()
'''

LAYERS = """
import torch

def forward(layers, x, positions, lens):
    n = x.shape[0]
    for layer in layers:
        # every layer sees the same angles
        angles = positions[:, None].float() * 0.5
        cos, sin = angles.cos(), angles.sin()
        x = layer(x, cos, sin, mask=torch.arange(n)[None, :] < lens[:, None])
    return x
"""

NESTED = """
import torch

def total(rows, xs, w):
    out = 0
    for row in rows:
        for x in xs:
            out = out + (row * x * torch.exp(w)).sum()
    return out
"""


@given(size=st.sampled_from([2, 4, 8]), count=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_what_an_instance_fixes_is_computed_in_its_constructor(size, count):
    before, after = both(NAME, ENGINE_STYLE)
    weight, positions = torch.randn(3, size), torch.arange(count)
    one, two = before.Implementation(size, weight), after.Implementation(size, weight)
    torch.testing.assert_close(two(positions), one(positions))


def test_it_is_really_not_computed_in_the_call():
    new = apply(NAME, ENGINE_STYLE).files["module.py"]
    call = new[new.index("def __call__") :]
    assert "table(" not in call
    assert "contiguous" not in call


class Counting:
    """Counts the times a mask is made for it."""

    def __call__(self, x, cos, sin, mask):
        self.seen = mask
        return x * cos + mask.float() * sin


@given(layers=st.integers(0, 3), n=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_what_a_loop_does_not_change_is_computed_before_it(layers, n):
    before, after = both(NAME, LAYERS)
    stack = [Counting() for _ in range(layers)]
    x, positions, lens = torch.randn(n, n), torch.arange(n), torch.randint(1, n + 1, (n,))
    wanted = before.forward(stack, x, positions, lens)
    torch.testing.assert_close(after.forward(stack, x, positions, lens), wanted)
    assert len({id(layer.seen) for layer in stack}) <= 1, "every layer got a mask of its own"


def test_comments_move_with_their_statement():
    new = apply(NAME, LAYERS).files["module.py"]
    assert "    # every layer sees the same angles\n    angles = positions" in new


def test_it_goes_before_the_outermost_loop_that_leaves_it_alone():
    before, after = both(NAME, NESTED)
    rows, xs, w = [1.0, 2.0], [torch.ones(2), torch.ones(2)], torch.randn(2)
    torch.testing.assert_close(after.total(rows, xs, w), before.total(rows, xs, w))
    new = apply(NAME, NESTED).files["module.py"]
    assert new.index("torch.exp(w)") < new.index("for row in rows")


def test_an_operator_that_writes_nothing_may_move_and_names_its_share():
    text = """
class Model:
    def __init__(self, tables, layers):
        self.angle_tables = tables
        self.layers = layers

    def forward(self, x, positions):
        for layer in self.layers:
            cos, sin = self.angle_tables(positions)
            x = layer(x, cos, sin)
        return x
"""
    tensors = [("positions", ("N",), "int64", "runtime"), ("cos", ("N",), "compute", "output")]
    tables = operator("angle_tables", "rotary_tables", tensors, [{"N": 1}], "tables.py")
    result = apply(NAME, text, operators=(tables,))
    assert [site.share_facts for site in result.sites] == [("share.op.rotary_tables",)]
    assert "nothing is known of self.angle_tables" not in reasons(
        NAME, text
    )  # silent: an unknown call is simply no site
    random = operator("angle_tables", "x", tensors, [{"N": 1}], "tables.py", deterministic=False)
    assert not apply(NAME, text, operators=(random,)).sites


def test_a_transformers_encoder_computes_the_same():
    from transformers.models.detr import modeling_detr

    text = "import torch\nfrom torch import nn\n\n\n" + inspect.getsource(modeling_detr.DetrConvEncoder)
    before, after = both(NAME, text, vars(modeling_detr))
    features = [torch.randn(1, 2, 4, 4), torch.randn(1, 2, 2, 2)]
    mask = torch.ones(1, 8, 8, dtype=torch.bool)
    mask[:, 5:] = False

    def run(module):
        encoder = module.DetrConvEncoder.__new__(module.DetrConvEncoder)
        torch.nn.Module.__init__(encoder)
        encoder.config = type("Config", (), {"use_timm_backbone": True})()
        encoder.model = lambda pixels: features
        return encoder.forward(torch.zeros(1, 3, 8, 8), mask)

    for (got, got_mask), (wanted, wanted_mask) in zip(run(after), run(before), strict=True):
        assert got is wanted
        assert torch.equal(got_mask, wanted_mask)


LOOP = """
import torch

def forward(layers, x, p, q):
    for layer in layers:
{body}
    return x
"""


def loop(*lines: str) -> str:
    return LOOP.format(body="\n".join("        " + line for line in lines))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (loop("m = p.cos()", "m.add_(1)", "x = layer(x, m)"), "m is changed in place by add_ afterwards"),
        (loop("m = torch.zeros(3)", "x = layer(x, m)"), "a fresh buffer that layer may fill"),
        (loop("x = layer(x, m) if x is p else x", "m = p.cos()"), "read before it is assigned"),
        (loop("m = p.cos()", "x = layer(x, m)").replace("    return", "    m = 1\n    return"), "bound elsewhere too"),
        (
            "import torch\nclass A:\n    def __init__(self, n):\n        self.n = n\n"
            "    def __call__(self, x):\n        return torch.arange(self.n)\n",
            "the caller may write to it",
        ),
        (
            "import torch\nclass A:\n    def __init__(self, n):\n        self.n = n\n"
            "    def __call__(self, x):\n        out = torch.zeros(self.n)\n        return out\n",
            "a fresh buffer",
        ),
    ],
)
def test_it_declines_with_the_reason(text, reason):
    assert reason in reasons(NAME, text)


@pytest.mark.parametrize(
    "text",
    [
        loop("x = layer(x, x.cos())"),  # changes with the loop
        loop("x = layer(x, torch.rand(3))"),  # random
        loop("p[0] += 1", "x = layer(x, p.cos())"),  # an operand is written to
        loop("p.mul_(2)", "x = layer(x, p.cos())"),
        loop("if x is q:", "    continue", "x = layer(x, p.cos())"),  # does not always run
        loop("x = layer(x, p.cos() if x is q else None)"),
        loop("x = layer(x, lambda: p.cos())"),
        loop("x = layer(x, helper(p))") + "\ndef helper(p):\n    print(p)\n    return p.cos()\n",  # side effects
        loop("x = layer(x, p.shape, p.view(-1))"),  # costs nothing
        loop("x = layer(x, torch.arange(COUNT))", "step()")  # a called function binds it
        + "\ndef step():\n    global COUNT\n    COUNT += 1\n",
        "import torch\nclass A(torch.nn.Module):\n    def __init__(self, n):\n        self.w = torch.nn.Parameter(n)\n"
        "    def forward(self, x):\n        return x * self.w.float()\n",  # loaded after construction
        "import torch\nclass A:\n    def __init__(self, n):\n        self.n = n\n"
        "    def grow(self):\n        self.n += 1\n"
        "    def forward(self, x):\n        return x * torch.arange(self.n)\n",
    ],
)
def test_it_leaves_alone(text):
    assert not apply(NAME, text).sites
