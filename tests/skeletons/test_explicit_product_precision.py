"""Products in Triton kernels get a precision where they round to tf32 by default, and nowhere else."""

from __future__ import annotations

import ast

import pytest

from feedback.target import Case, OperatorInfo, Tensor, Tolerance
from skeletons.library import Library
from skeletons.matching import opportunities
from skeletons.view import Decline, Site, TargetView

NAME = "explicit_product_precision"
DEVIATES = {"deviation.cause": "precision"}
KERNEL = '''import triton
import triton.language as tl


@triton.jit
def chain(steps, out, n, SIZE: tl.constexpr, HOW: tl.constexpr):
    """A chain."""
    row = tl.arange(0, SIZE)
    now = tl.zeros([SIZE, SIZE], tl.float32)
    for i in range(n):
        step = tl.load(steps + i * SIZE * SIZE + row[:, None] * SIZE + row[None, :])
        now = tl.dot(step, now) + step  # the chain
        sure = tl.dot(step, now, input_precision="ieee")
        other = tl.dot(now, step, sure, allow_tf32=True)
    tl.store(out + row[:, None] * SIZE + row[None, :], other)


def outside(a, b):
    return tl.dot(a, b)
'''


def view(text: str = KERNEL, facts=DEVIATES, operators: bool = False) -> TargetView:
    info = OperatorInfo(
        name="merge",
        role="merge",
        doc="",
        selected="triton",
        implementations=("triton",),
        tensors=(Tensor(name="x", shape=("N",), dtype="float32", kind="runtime"),),
        cases=(Case(name="one", dims={"N": 1}),),
        tolerance={"float32": Tolerance(atol=0.0, rtol=0.0, reason="exact")},
        files={"triton": "k/triton.py"},
    )
    return TargetView({"k/triton.py": text}, (info,) if operators else (), {}, facts)


@pytest.fixture(scope="module")
def transform():
    return Library.load().transform(NAME)


def sites(transform, variant: str, text: str = KERNEL) -> list[Site]:
    return [item for item in transform.find(view(text)) if isinstance(item, Site) and item.variant == variant]


def test_only_products_at_the_default_precision_are_found(transform) -> None:
    found = sites(transform, "tf32x3")
    assert [site.payload[0] for site in found] == ["chain: dot(step, now)", "chain: dot(now, step)"]
    assert [site.line for site in found] == [12, 14]
    assert all(site.changes_numerics for site in found)


@pytest.mark.parametrize("variant", ["tf32x3", "ieee"])
def test_the_rewrite_says_the_precision_and_changes_nothing_else(transform, variant: str) -> None:
    found = sites(transform, variant)
    text = transform.rewrite(view(), found).files["k/triton.py"]
    ast.parse(text)
    expected = KERNEL.replace("tl.dot(step, now) +", f'tl.dot(step, now, input_precision="{variant}") +')
    expected = expected.replace("allow_tf32=True", f'input_precision="{variant}"')
    assert text == expected
    assert not sites(transform, variant, text)


def test_one_place_can_be_changed_alone(transform) -> None:
    first, second = sites(transform, "tf32x3")
    one = transform.rewrite(view(), [second]).files["k/triton.py"]
    assert "tl.dot(step, now) + step" in one
    assert [site.payload for site in sites(transform, "tf32x3", one)] == [first.payload]


def test_the_same_operands_twice_are_two_places(transform) -> None:
    text = KERNEL.replace('sure = tl.dot(step, now, input_precision="ieee")', "sure = tl.dot(step, now)")
    found = sites(transform, "tf32x3", text)
    assert len({site.symbol for site in found}) == len(found) == 3
    second = next(site for site in found if "number 2" in site.symbol)
    changed = transform.rewrite(view(text), [second]).files["k/triton.py"]
    assert 'sure = tl.dot(step, now, input_precision="tf32x3")' in changed
    assert "now = tl.dot(step, now) + step" in changed


@pytest.mark.parametrize(
    "call", ["tl.dot(step, now, input_precision=HOW)", "tl.dot(step, now, None, HOW)", "tl.dot(*[step, now])"]
)
def test_what_is_not_written_is_declined_with_the_place(transform, call: str) -> None:
    found = transform.find(view(KERNEL.replace("tl.dot(step, now) + step", call)))
    declined = [item for item in found if isinstance(item, Decline)]
    assert [(item.line, "constant keyword" in item.reason) for item in declined] == [(12, True)]


def test_a_place_that_is_gone_is_an_error(transform) -> None:
    found = sites(transform, "tf32x3")
    gone = view(KERNEL.replace("tl.dot(step, now) + step", "step"))
    with pytest.raises(ValueError, match="find the sites again"):
        transform.rewrite(gone, found)


def test_it_is_offered_only_where_rounding_was_seen_to_deviate() -> None:
    library = Library.load()
    for facts in ({}, {"deviation.cause": "logic"}, {"deviation.cause": "undecided"}):
        offered, declined = opportunities(library, view(facts=facts, operators=True))
        assert NAME not in {each.skeleton for each in offered}
        assert any(each.skeleton == NAME and "deviation.cause" in each.reason for each in declined)
    offered, _ = opportunities(library, view(operators=True))
    mine = [each for each in offered if each.skeleton == NAME]
    assert [each.sites[0].variant for each in mine] == ["tf32x3", "ieee"]
    for each in mine:
        assert each.repair is not None
        assert each.operators == ("merge",)
        assert [len(part.sites) for part in each.parts] == [1, 1]
        assert each.sites[0].variant in each.title
    assert mine[0].repair.slowdown < mine[1].repair.slowdown
    assert mine[0].repair.bits < mine[1].repair.bits
