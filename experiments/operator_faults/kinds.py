"""What a mutation does to one expression: for each kind, expressions that a hand could have written by mistake.

A mutation takes a node of a syntax tree (LibCST) and gives replacements, or none where it does not fit. It looks at the
node alone, so that the same text has the same mutants whatever stands around it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import libcst as cst
import libcst.matchers as m

from experiments.operator_faults.expressions import (
    bracketed,
    ceiling,
    code,
    integer,
    name_of,
    receiver,
    renamed,
    template,
    text_of,
    tight,
    with_argument,
)

Kind = Literal["mask", "index", "axis", "sign", "off-by-one", "dtype", "missing collective", "wrong length"]

#: In the order in which they are told.
KINDS: tuple[Kind, ...] = (
    "mask",
    "index",
    "axis",
    "sign",
    "off-by-one",
    "dtype",
    "missing collective",
    "wrong length",
)

#: Where a call has axes: name of the method or function -> positions of its arguments, as a method. As a function of
#: torch, the tensor comes first.
AXES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("sum", "mean", "softmax", "cumsum", "unsqueeze", "squeeze", "argmax", "unflatten", "select"), (0,)
    ),
    **dict.fromkeys(("index_select", "gather", "index_copy_", "flip"), (0,)),
    **dict.fromkeys(("transpose", "flatten", "movedim"), (0, 1)),
    **dict.fromkeys(("split", "chunk", "roll"), (1,)),
    **dict.fromkeys(("cat", "stack"), (1,)),
}

AXIS_NAMES = frozenset({"dim", "dim0", "dim1", "dim2"})

#: Methods that pick elements by an index, and the position of that index.
PICKS = {"index_select": 1, "index_copy_": 1}


@dataclass(frozen=True)
class Change:
    """One replacement of a node."""

    kind: Kind
    new: cst.BaseExpression | cst.BaseSlice


Mutation = Callable[[cst.CSTNode], Iterator[Change]]


def masks(node: cst.CSTNode) -> Iterator[Change]:
    """A mask that hides nothing, is left out, or is joined the wrong way."""
    if isinstance(node, cst.Call):
        inner, name = receiver(node), name_of(node)
        if inner is not None and name in ("masked_fill", "where", "clamp"):
            yield Change("mask", bracketed(inner))
        if inner is None and name == "where" and len(node.args) == 3:
            yield Change("mask", bracketed(node.args[1].value))
        kept = [argument for argument in node.args if not m.matches(argument, m.Arg(keyword=m.Name("attn_mask")))]
        if len(kept) < len(node.args):
            yield Change("mask", node.with_changes(args=kept))
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd):
        yield Change("mask", node.with_changes(operator=cst.BitOr()))
        yield Change("mask", node.left)
        yield Change("mask", node.right)
    elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        yield Change("mask", bracketed(node.expression))
    elif isinstance(node, cst.Comparison) and _ordering(node):
        yield Change("mask", template("left == left", left=node.left))


def indices(node: cst.CSTNode) -> Iterator[Change]:
    """Another element than the one that is meant."""
    if isinstance(node, cst.Index):
        number = integer(node.value)
        if number is not None:
            yield Change("index", cst.Index(code(str(number + 1))))
            yield Change("index", cst.Index(code(str(number - 1))))
        elif isinstance(node.value, cst.Name | cst.Attribute | cst.Call) and text_of(node.value) != "None":
            yield Change("index", cst.Index(template("a - 1", a=node.value)))
    elif isinstance(node, cst.Call) and name_of(node) in PICKS and receiver(node) is not None:
        place = PICKS[name_of(node)]
        flipped = template("a.flip(0)", a=node.args[place].value)
        yield Change("index", with_argument(node, place, flipped))


def axes(node: cst.CSTNode) -> Iterator[Change]:
    """The axis beside the one that is meant, or a transposition that is left out."""
    if not isinstance(node, cst.Call):
        return
    name, inner = name_of(node), receiver(node)
    if inner is not None and name in ("transpose", "t", "movedim"):
        yield Change("axis", bracketed(inner))
    if name not in AXES:
        return
    shift = 0 if inner is not None or name in ("cat", "stack") else 1
    for place, argument in enumerate(node.args):
        named = argument.keyword is not None and argument.keyword.value in AXIS_NAMES
        number = integer(argument.value)
        if number is None or not (named or (argument.keyword is None and place - shift in AXES[name])):
            continue
        yield Change("axis", with_argument(node, place, code(str(_beside(number)))))


def signs(node: cst.CSTNode) -> Iterator[Change]:
    """The opposite: difference for sum, growth for decay, root for its reciprocal."""
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, cst.Add | cst.Subtract) and not _by_one(node) and not _texts(node):
            other = cst.Subtract() if isinstance(node.operator, cst.Add) else cst.Add()
            yield Change("sign", node.with_changes(operator=other))
        elif isinstance(node.operator, cst.Power) and integer(node.right) is None:
            yield Change("sign", template("1 / a", a=node))
    elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        if integer(node) is None and not m.matches(node.expression, m.Float()) and ceiling(node) is None:
            yield Change("sign", bracketed(node.expression))
    elif isinstance(node, cst.Call):
        inner, name = receiver(node), name_of(node)
        if inner is not None and name == "exp":
            yield Change("sign", template("a.neg().exp()", a=inner))
        elif name == "rsqrt":
            yield Change("sign", node.with_changes(func=renamed(node.func, "sqrt")))
        elif inner is not None and name in ("add_", "sub_"):
            yield Change("sign", node.with_changes(func=renamed(node.func, "sub_" if name == "add_" else "add_")))
        elif name in ("addcmul", "addcmul_"):
            minus = cst.Arg(code("-1"), keyword=cst.Name("value"), equal=tight())
            yield Change("sign", node.with_changes(args=[*node.args, minus]))


def off_by_ones(node: cst.CSTNode) -> Iterator[Change]:
    """One more or one less: at a border, at the end of a range."""
    if isinstance(node, cst.Comparison) and _ordering(node):
        target = node.comparisons[0]
        other = _BORDERS[type(target.operator)]()
        yield Change("off-by-one", node.with_changes(comparisons=[target.with_changes(operator=other)]))
    elif isinstance(node, cst.BinaryOperation) and _by_one(node):
        yield Change("off-by-one", bracketed(node.left if integer(node.right) is not None else node.right))
    elif isinstance(node, cst.Slice):
        for side in ("lower", "upper"):
            bound = getattr(node, side)
            if bound is not None and not m.matches(bound, m.SimpleString()):
                for step in ("a + 1", "a - 1"):
                    yield Change("off-by-one", node.with_changes(**{side: template(step, a=bound)}))
    elif isinstance(node, cst.Call) and name_of(node) == "range" and len(node.args) == 1:
        yield Change("off-by-one", template("range(a - 1)", a=node.args[0].value))
        yield Change("off-by-one", template("range(1, a)", a=node.args[0].value))
    elif isinstance(node, cst.Call) and name_of(node) == "arange" and receiver(node) is None:
        yield Change("off-by-one", template("a + 1", a=node))


def types(node: cst.CSTNode) -> Iterator[Change]:
    """A rounding to half the width, or an index in a type that is too narrow."""
    if isinstance(node, cst.Call):
        inner, name = receiver(node), name_of(node)
        if inner is not None and name in ("float", "to"):
            yield Change(
                "dtype", node.with_changes(func=cst.Attribute(template("a.bfloat16()", a=inner), cst.Name(name)))
            )
        elif inner is not None and name == "long":
            yield Change("dtype", template("a.to(torch.int8).long()", a=inner))
        elif name == "promote_types":
            yield Change("dtype", code("torch.bfloat16"))
        elif name == "widened" and node.args:
            yield Change("dtype", template("a.bfloat16()", a=node.args[0].value))
        elif name in ("matmul", "linear") and len(node.args) == 2:
            a, b = (argument.value for argument in node.args)
            rounded = [node.args[0].with_changes(value=_rounded(a)), node.args[1].with_changes(value=_rounded(b))]
            yield Change("dtype", node.with_changes(args=rounded))
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        yield Change("dtype", template("a @ b", a=_rounded(node.left), b=_rounded(node.right)))


def collectives(node: cst.CSTNode) -> Iterator[Change]:
    """A rank that does without the others, or takes what is another's."""
    if not isinstance(node, cst.Call):
        return
    name = name_of(node)
    group = receiver(node)
    first = node.args[0].value if node.args else None
    if group is not None and m.matches(group, m.Name("group")) and first is not None:
        if name == "all_reduce":
            yield Change("missing collective", first)
            yield Change("missing collective", template("group.all_reduce(a)", a=node))
        elif name == "all_gather":
            yield Change("missing collective", template("[a] * group.size", a=first))
            yield Change("missing collective", template("a[::-1]", a=node))
        elif name == "broadcast":
            yield Change("missing collective", first)
            other = template("(a + 1) % group.size", a=node.args[1].value)
            yield Change("missing collective", with_argument(node, 1, other))
    elif name == "gathered" and first is not None:
        yield Change("missing collective", first)


def lengths(node: cst.CSTNode) -> Iterator[Change]:
    """A count that is of something else, or not all of it."""
    if isinstance(node, cst.UnaryOperation):
        floor = ceiling(node)
        if floor is not None:
            yield Change("wrong length", floor)
    elif isinstance(node, cst.Call):
        name = name_of(node)
        if name == "len" and isinstance(node.func, cst.Name):
            yield Change("wrong length", template("a - 1", a=node))
        elif name in ("min", "max") and isinstance(node.func, cst.Name) and len(node.args) == 2:
            other = "max" if name == "min" else "min"
            yield Change("wrong length", node.with_changes(func=cst.Name(other)))
        elif name == "diff" and receiver(node) is not None:
            yield Change("wrong length", template("a[1:]", a=receiver(node) or node))
    elif isinstance(node, cst.Slice):
        for side in ("lower", "upper"):
            if getattr(node, side) is not None:
                yield Change("wrong length", node.with_changes(**{side: None}))


MUTATIONS: tuple[Mutation, ...] = (masks, indices, axes, signs, off_by_ones, types, collectives, lengths)

_BORDERS: dict[type, type] = {
    cst.LessThan: cst.LessThanEqual,
    cst.LessThanEqual: cst.LessThan,
    cst.GreaterThan: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.GreaterThan,
}


def _ordering(node: cst.Comparison) -> bool:
    return len(node.comparisons) == 1 and type(node.comparisons[0].operator) in _BORDERS


def _by_one(node: cst.BinaryOperation) -> bool:
    """Whether one is added or taken away."""
    if not isinstance(node.operator, cst.Add | cst.Subtract):
        return False
    return integer(node.right) == 1 or (isinstance(node.operator, cst.Add) and integer(node.left) == 1)


def _texts(node: cst.BinaryOperation) -> bool:
    return any(isinstance(side, cst.SimpleString | cst.FormattedString) for side in (node.left, node.right))


def _beside(axis: int) -> int:
    return {-1: -2, 0: 1}.get(axis, axis + 1 if axis < 0 else axis - 1)


def _rounded(node: cst.BaseExpression) -> cst.BaseExpression:
    return template("a.bfloat16().to(a.dtype)", a=node)
