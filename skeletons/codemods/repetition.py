"""Recognises a tensor that is repeated along one axis, and follows that axis through views of it."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.source import Source, parameters, walk


@dataclass(frozen=True)
class Expansion:
    """One repetition: `source` is repeated `times` along axis `axis`; `node` the whole expression."""

    node: cst.BaseExpression
    source: cst.BaseExpression
    times: cst.BaseExpression
    axis: int
    rank: int  # at least


class NotThis(Exception):
    """Why an expansion has to stay."""


def repeats(function: cst.FunctionDef) -> int | None:
    """The head axis where the function repeats its first argument as often as its second says, and no more."""
    listed = parameters(function)
    if len(listed) != 2 or not isinstance(function.body, cst.IndentedBlock):
        return None
    tensor, times = (p.name.value for p in listed)
    reshaped = expanded = None
    for node in walk(function.body):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value == "reshape":
                reshaped = node
            elif node.func.attr.value == "expand":
                expanded = node
            elif node.func.attr.value not in ("size", "dim"):
                return None
        elif isinstance(node, cst.Call):
            return None
    if reshaped is None or expanded is None or times not in {r.value for r in blocks.reads(expanded)}:
        return None
    for node in walk(function.body):
        axis = _new_axis(node) if isinstance(node, cst.Subscript) else None
        if axis is not None and isinstance(node, cst.Subscript) and blocks.root_name(node.value) == tensor:
            return axis - 1
    return None


def _new_axis(node: cst.Subscript) -> int | None:
    """Position of the one None among full slices: `x[:, :, None]` -> 2."""
    where = None
    for position, element in enumerate(node.slice):
        index = element.slice
        if isinstance(index, cst.Slice):
            if index.lower or index.upper or index.step:
                return None
        elif isinstance(index, cst.Index) and isinstance(index.value, cst.Name) and index.value.value == "None":
            if where is not None:
                return None
            where = position
        elif not (isinstance(index, cst.Index) and isinstance(index.value, cst.Ellipsis)):
            return None
    return where


def expansion_at(source: Source, node: cst.CSTNode, helpers: dict[str, int]) -> Expansion | None:
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Name) and node.func.value in helpers and len(node.args) == 2:
        axis = helpers[node.func.value]
        return Expansion(node, node.args[0].value, node.args[1].value, axis, axis + 3)
    if not isinstance(node.func, cst.Attribute):
        return None
    args = list(node.args)
    if node.func.attr.value == "repeat_interleave":
        dotted = source.dotted(node.func)
        owner = args.pop(0).value if dotted == "torch.repeat_interleave" and args else node.func.value
        given = {("times", "dim")[i]: a.value for i, a in enumerate(args[:2]) if a.keyword is None}
        given |= {"times" if a.keyword.value == "repeats" else a.keyword.value: a.value for a in args if a.keyword}
        axis = integer(given.get("dim"))
        if set(given) == {"times", "dim"} and axis is not None:
            return Expansion(node, owner, given["times"], axis, 3)
    if node.func.attr.value in ("reshape", "flatten") and isinstance(node.func.value, cst.Call):
        inner = node.func.value
        if (
            isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value == "expand"
            and isinstance(inner.func.value, cst.Subscript)
        ):
            axis = _new_axis(inner.func.value)
            if axis is not None and axis < len(inner.args):
                times = inner.args[axis].value
                return Expansion(node, inner.func.value.value, times, axis - 1, len(inner.args) - 1)
    return None


def integer(node: cst.BaseExpression | None) -> int | None:
    if (
        isinstance(node, cst.UnaryOperation)
        and isinstance(node.operator, cst.Minus)
        and isinstance(node.expression, cst.Integer)
    ):
        return -int(node.expression.value)
    return int(node.value) if isinstance(node, cst.Integer) else None


def outwards(
    source: Source, node: cst.BaseExpression, axis: int, rank: int, name: str
) -> tuple[cst.BaseExpression, int, int]:
    """(the outermost view of the tensor, where its head axis is there, the least rank known)."""
    while True:
        parent = source.parents[node]
        if isinstance(parent, cst.Attribute) and parent.value is node:
            outer = source.parents[parent]
            if parent.attr.value == "mT" and axis in (0, 1, -3):
                node = parent
                continue
            if isinstance(outer, cst.Call) and outer.func is parent:
                if (moved := _moved(parent.attr.value, outer, axis, rank)) is not None:
                    (axis, rank), node = moved, outer
                    continue
                if parent.attr.value in ("matmul", "bmm"):
                    raise NotThis(f"{name} is the left side of a product")
        if isinstance(parent, cst.Subscript) and parent.value is node and _prepends(parent):
            axis, rank, node = axis + 1 if axis >= 0 else axis, rank + 1, parent
            continue
        return node, axis, rank


def _moved(method: str, call: cst.Call, axis: int, rank: int) -> tuple[int, int] | None:
    """Where the head axis is after a view, with the least rank known; None where that cannot be told."""
    given = [integer(a.value) for a in call.args]
    if method in ("float", "bfloat16", "half", "to", "contiguous", "type_as"):
        return axis, rank
    numbers = [g for g in given if g is not None]
    if len(numbers) != len(given) or not given:
        return None
    if method == "transpose" and len(numbers) == 2:
        a, b = numbers
        if {a, b} == {-1, -2} and axis in (0, 1, -3):
            return axis, rank
        if (a < 0) != (axis < 0) or (b < 0) != (axis < 0):
            return None  # counted from the other end, and the rank is not known
        return (b if axis == a else a if axis == b else axis), max(rank, a + 1, b + 1, -a, -b)
    if method == "unsqueeze" and len(numbers) == 1 and numbers[0] >= 0 and axis >= 0:
        return (axis + 1 if numbers[0] <= axis else axis), rank + 1
    if method == "permute":
        order = [n % len(numbers) for n in numbers]
        return order.index(axis % len(numbers)), len(numbers)
    return None


def _prepends(node: cst.Subscript) -> bool:
    """`x[None]`: one more axis in front."""
    index = node.slice[0].slice
    return (
        len(node.slice) == 1
        and isinstance(index, cst.Index)
        and isinstance(index.value, cst.Name)
        and index.value.value == "None"
    )
