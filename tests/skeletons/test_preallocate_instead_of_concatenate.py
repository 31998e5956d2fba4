"""Tensors that grow by concatenation are allocated with room to grow."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skeletons.support import apply, both, reasons

NAME = "preallocate_instead_of_concatenate"

ENGINE_STYLE = """
import torch


class Implementation:
    def __init__(self, settings):
        self.size = settings

    def __call__(self, cache, tables):
        rows = torch.empty(0, self.size)
        for block in tables.tolist():
            if block < 0:
                continue
            rows = torch.cat([rows, cache[block]], dim=0)
        return rows
"""

DECODING = """
import torch

def decode(first, steps, inputs):
    history = first.clone()
    for i in range(steps):
        score = history.sum(dim=1)
        piece = (inputs[i] + score).unsqueeze(1)
        history = torch.cat((history, piece), dim=1)
    return history
"""

UNBOUNDED = """
import torch

def grow(first, limit, step):
    ids = first
    seen = []
    while ids.shape[-1] < limit:
        seen.append(ids)
        ids = torch.cat([ids, step(ids)], dim=-1)
    return ids, seen
"""

GROWING_CACHE = """
import torch

class Memory:
    def __init__(self, start):
        self.kept = start

    def add(self, piece):
        self.kept = torch.cat((self.kept, piece), dim=1)
        return self.kept

    def forget(self, n):
        self.kept = self.kept[:, :n]
"""


@given(tables=st.lists(st.integers(-1, 3), max_size=6))
@settings(max_examples=20, deadline=None)
def test_pieces_that_nobody_reads_are_joined_once(tables):
    before, after = both(NAME, ENGINE_STYLE)
    cache = torch.randn(4, 2, 3)
    blocks = torch.tensor(tables, dtype=torch.int64)
    torch.testing.assert_close(after.Implementation(3)(cache, blocks), before.Implementation(3)(cache, blocks))


@given(rows=st.integers(1, 3), length=st.integers(0, 3), steps=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_a_known_number_of_rounds_is_allocated_before_them(rows, length, steps):
    before, after = both(NAME, DECODING)
    first, inputs = torch.randn(rows, length), torch.randn(max(steps, 1), rows)
    torch.testing.assert_close(after.decode(first, steps, inputs), before.decode(first, steps, inputs))
    assert "cat" not in after.decode.__code__.co_names


@given(limit=st.integers(1, 12), widths=st.lists(st.integers(1, 4), min_size=12, max_size=12))
@settings(max_examples=20, deadline=None)
def test_without_a_bound_room_is_doubled_and_earlier_results_stay(limit, widths):
    before, after = both(NAME, UNBOUNDED)

    def run(module):
        sizes = iter(widths)
        return module.grow(torch.arange(2.0)[None], limit, lambda ids: ids[:, :1].expand(1, next(sizes)) + ids.sum())

    (got, got_seen), (wanted, wanted_seen) = run(after), run(before)
    torch.testing.assert_close(got, wanted)
    for one, other in zip(got_seen, wanted_seen, strict=True):
        torch.testing.assert_close(one, other)


actions = st.lists(st.one_of(st.integers(1, 3), st.tuples(st.just("forget"), st.integers(0, 4))), max_size=10)


@given(actions=actions, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_a_growing_attribute_behaves_as_before_whatever_happens_to_it(actions, dtype):
    before, after = both(NAME, GROWING_CACHE)
    one, two = (m.Memory(torch.zeros(2, 1, 3, dtype=dtype)) for m in (before, after))
    returned = []
    for number, action in enumerate(actions):
        if isinstance(action, int):
            piece = torch.full((2, action, 3), float(number)).to(dtype)
            returned.append((one.add(piece), two.add(piece)))
        else:
            one.forget(action[1])
            two.forget(action[1])
    for wanted, got in [*returned, (one.kept, two.kept)]:
        assert torch.equal(got, wanted)


def test_two_results_grown_from_one_tensor_do_not_share_room():
    _, after = both(NAME, GROWING_CACHE)
    memory = after.Memory(torch.zeros(1, 1, 1))
    base = memory.add(torch.ones(1, 1, 1))
    left = memory.add(torch.full((1, 1, 1), 2.0))
    memory.kept = base
    right = memory.add(torch.full((1, 1, 1), 3.0))
    assert left.flatten().tolist() == [0, 1, 2]
    assert right.flatten().tolist() == [0, 1, 3]


def test_training_concatenates_as_before():
    _, after = both(NAME, GROWING_CACHE)
    start = torch.zeros(1, 1, 1, requires_grad=True)
    after.Memory(start).add(torch.ones(1, 1, 1)).sum().backward()
    assert start.grad is not None


def test_a_transformers_cache_layer_computes_the_same():
    from transformers import cache_utils

    text = "import torch\n\n\n" + inspect.getsource(cache_utils.DynamicLayer)
    before, after = both(NAME, text, vars(cache_utils))
    one, two = before.DynamicLayer(), after.DynamicLayer()
    for step in range(6):
        keys, values = torch.randn(2, 3, 1 + step % 2, 4), torch.randn(2, 3, 1 + step % 2, 4)
        for got, wanted in zip(two.update(keys, values), one.update(keys, values), strict=True):
            assert torch.equal(got, wanted)
        if step == 3:
            one.crop(-2)
            two.crop(-2)
            one.batch_select_indices(torch.tensor([1, 0]))
            two.batch_select_indices(torch.tensor([1, 0]))


def loop(*lines: str, head: str = "for i in range(n):") -> str:
    body = "\n".join("        " + line for line in lines)
    return f"import torch\ndef f(x, n, g):\n    {head}\n{body}\n    return x\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (loop("x = torch.cat((g(i), x))"), "not at the front"),
        (loop("x = torch.cat((x, g(i)))", "x = x * 2"), "bound more than once"),
        (loop("g(x)", "x = torch.cat((x, g(i)))", "x.mul_(2)"), "changed in place by mul_"),
        (loop("g(x)", "x = torch.cat((x, g(i)))", "y = x", "y.mul_(2)"), "y is changed in place by mul_"),
        (loop("g(x.view(-1))", "x = torch.cat((x, g(i)))"), "has to be contiguous"),
        (loop("g(x)", "x = torch.cat((x, g(i)), dim=n)"), "the size of a piece is not known"),
        (loop("g(x)", "x = torch.cat((x, g(i), g(i)))", head="while n:"), "a while loop has no known number of rounds"),
        (
            "import torch\nclass A:\n    def add(self, p):\n        self.k = torch.cat((self.k, p))\n"
            "    def clear(self):\n        self.k.zero_()\n",
            "changed in place by zero_",
        ),
        (
            "import torch\nclass A:\n    def add(self, p):\n        self.k = torch.cat((p, self.k))\n",
            "not at the front",
        ),
    ],
)
def test_it_declines_with_the_reason(text, reason):
    assert reason in reasons(NAME, text)


def test_a_concatenation_outside_loops_is_no_site():
    assert reasons(NAME, "import torch\ndef f(x, y):\n    x = torch.cat((x, y))\n    return x\n") == ""


def test_helpers_are_written_once():
    text = GROWING_CACHE.replace(
        "        return self.kept", "        self.other = torch.cat((self.other, piece), dim=0)"
    )
    assert apply(NAME, text).files["module.py"].count("def _append") == 1
