"""Keys and values of a group of heads are used without repeating them."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skeletons.support import both, plain_operators, reasons

NAME = "avoid_repeated_kv_expansion"

VARIANT = """
import torch
from torch.nn import functional as F

class Heads:
    def __init__(self, n):
        self.n = n

    def summed(self, q, k, v):
        wide = k.repeat_interleave(self.n, dim=2)
        s = torch.einsum("bhd,bshd->bhs", q, wide).softmax(-1)
        return torch.einsum("bhs,bshd->bhd", s, torch.repeat_interleave(v, self.n, 2))

    def library(self, q, k, v):
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(
            q[:, :, None],
            k[:, :, None].expand(k.shape[0], k.shape[1], self.n, k.shape[2], k.shape[3]).flatten(1, 2),
            v.repeat_interleave(self.n, dim=1),
        )

    def products(self, q, k, v):
        keys = k.repeat_interleave(repeats=self.n, dim=2).permute(0, 2, 3, 1)
        s = (q.unsqueeze(2) @ keys).softmax(-1)
        values = v.transpose(1, 2).repeat_interleave(self.n, dim=1)
        return s.matmul(values)
"""


@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    times=st.integers(1, 3),
    length=st.integers(1, 6),
    size=st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_a_renamed_variant_computes_the_same(batch, groups, times, length, size):
    before, after = both(NAME, VARIANT)
    q = torch.randn(batch, groups * times, size)
    k, v = torch.randn(batch, length, groups, size), torch.randn(batch, length, groups, size)
    one, two = before.Heads(times), after.Heads(times)
    for form in ("summed", "library", "products"):
        torch.testing.assert_close(getattr(two, form)(q, k, v), getattr(one, form)(q, k, v), atol=1e-5, rtol=1e-5)


def test_nothing_is_repeated_any_more():
    _, after = both(NAME, VARIANT)
    for form in ("summed", "library", "products"):
        assert not {"repeat_interleave", "expand"} & set(getattr(after.Heads, form).__code__.co_names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_engines_decode_attention_computes_the_same(dtype):
    text = next(t for t in plain_operators().values() if "repeat_interleave" in t and "query_starts" not in t)
    before, after = both(NAME, text)
    config = type("Settings", (), {"num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "block_size": 8})()
    q = torch.randn(3, 6, 4).to(dtype)
    caches = [torch.randn(7, 8, 2, 4).to(dtype) for _ in range(2)]
    tables, lens = (
        torch.tensor([[1, 2], [3, 0], [4, 5]], dtype=torch.int32),
        torch.tensor([11, 8, 1], dtype=torch.int32),
    )
    got, wanted = (m.Implementation(config)(q, *caches, tables, lens) for m in (after, before))
    torch.testing.assert_close(got, wanted, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2)


def test_the_engines_prefill_attention_computes_the_same():
    text = next(t for t in plain_operators().values() if "repeat_interleave" in t and "query_starts" in t)
    before, after = both(NAME, text)
    config = type("Settings", (), {"num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "block_size": 8})()
    q, caches = torch.randn(7, 6, 4), [torch.randn(7, 8, 2, 4) for _ in range(2)]
    tables = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    starts, lens = torch.tensor([0, 4, 7], dtype=torch.int32), torch.tensor([11, 3], dtype=torch.int32)
    got, wanted = (m.Implementation(config)(q, *caches, tables, starts, lens) for m in (after, before))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (4, 1), (3, 3)])
def test_transformers_eager_attention_computes_the_same(heads, groups):
    from transformers.models.llama import modeling_llama as llama

    sources = [inspect.getsource(f) for f in (llama.repeat_kv, llama.eager_attention_forward)]
    before, after = both(NAME, "import torch\nfrom torch import nn\n\n\n" + "\n\n".join(sources), vars(llama))
    owner = type("Owner", (), {"num_key_value_groups": heads // groups, "training": False})()
    q, k, v = torch.randn(2, heads, 5, 8), torch.randn(2, groups, 6, 8), torch.randn(2, groups, 6, 8)
    mask = torch.where(torch.rand(2, 1, 5, 6) > 0.7, -1e4, 0.0)
    for got, wanted in zip(
        after.eager_attention_forward(owner, q, k, v, mask, 0.3),
        before.eager_attention_forward(owner, q, k, v, mask, 0.3),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def body(*lines: str) -> str:
    text = "\n".join("    " + line for line in lines)
    return f"import torch\nimport torch.nn.functional as F\ndef f(q, k, v, n, g):\n{text}\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (body("k = k.repeat_interleave(n, dim=1)", "g(k)", "return q @ k.mT"), "k is needed repeated: g(k)"),
        (body("k = k.repeat_interleave(n, dim=1)", "return k.shape[1] * (q @ k.mT)"), "number of heads of k is read"),
        (body("k = k.repeat_interleave(n, dim=1)", "return k @ q.mT"), "left side of a product"),
        (body("k = k.repeat_interleave(n, dim=1)", "return q @ k.transpose(1, 2)"), "not the third from the end"),
        (
            body("return torch.einsum('bhd,bshd->bds', q, k.repeat_interleave(n, dim=2))"),
            "the repeated axis is summed over",
        ),
        (body("return F.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v)"), "only one of key and value"),
        (body("g.k = k.repeat_interleave(n, dim=1)", "return q @ g.k.mT"), "kept in an object"),
        (body("if n:", "    k = k.repeat_interleave(n, dim=1)", "return q @ k.mT"), "used outside this block"),
    ],
)
def test_it_declines_with_the_reason(text, reason):
    assert reason in reasons(NAME, text)


@pytest.mark.parametrize(
    "text", [body("return q @ k.repeat(1, n, 1, 1).mT"), body("return q @ k.repeat_interleave(n).mT")]
)
def test_tiling_is_no_grouping(text):
    """`repeat` puts a copy of all heads behind all heads: consecutive heads are of different groups."""
    assert reasons(NAME, text) == ""
