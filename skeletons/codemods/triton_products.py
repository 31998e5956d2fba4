"""Products in Triton kernels: `tl.dot` calls whose float32 operands are rounded to tf32 as nothing else is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from skeletons.codemods.search import Unit
from skeletons.codemods.source import walk
from skeletons.view import Decline

#: What a jitted function is decorated with, and a product, by their imported names.
JIT = frozenset({"triton.jit", "triton.runtime.jit.jit"})
DOT = frozenset({"triton.language.dot", "triton.language.core.dot"})

PRECISION, FORMER = "input_precision", "allow_tf32"

#: Positional arguments before the precision: two operands and what is added to the product.
OPERANDS = 3


@dataclass(frozen=True)
class Product:
    """A product that rounds its operands to tf32. `place` names it within its file: kernel, operands, and which of
    several with the same operands it is.
    """

    node: cst.Call
    place: str


def products(unit: Unit) -> Iterator[Product | Decline]:
    """The products of a file whose precision is left at its default or said to be tf32, and those that cannot be
    told.
    """
    for kernel in walk(unit.source.module):
        if not isinstance(kernel, cst.FunctionDef) or not _jitted(unit, kernel):
            continue
        seen: Counter[str] = Counter()
        for node in walk(kernel.body):
            if not isinstance(node, cst.Call) or unit.source.dotted(node.func) not in DOT:
                continue
            operands = ", ".join(unit.source.canonical(arg.value) for arg in node.args[:2])
            seen[operands] += 1
            said = _said(node)
            if said == "":
                ordinal = f" number {seen[operands]}" if seen[operands] > 1 else ""
                yield Product(node, f"{kernel.name.value}: dot({operands}){ordinal}")
            elif said is None:
                yield unit.decline(node, "the precision of this product is not written as a constant keyword")


def _jitted(unit: Unit, function: cst.FunctionDef) -> bool:
    for decorator in function.decorators:
        called = decorator.decorator
        if unit.source.dotted(called.func if isinstance(called, cst.Call) else called) in JIT:
            return True
    return False


def _said(node: cst.Call) -> str | None:
    """The precision that a product names: empty for tf32, which is the default; None where it cannot be told."""
    positional = [arg for arg in node.args if arg.keyword is None]
    if len(positional) > OPERANDS or any(arg.star for arg in node.args):
        return None
    found = next((arg for arg in node.args if arg.keyword is not None and arg.keyword.value == PRECISION), None)
    former = next((arg for arg in node.args if arg.keyword is not None and arg.keyword.value == FORMER), None)
    if former is not None:
        names = {"True": "", "False": "ieee"}  # a product with both is refused by Triton
        return names.get(former.value.value) if isinstance(former.value, cst.Name) and found is None else None
    if found is None:
        return ""
    if not isinstance(found.value, cst.SimpleString):
        return None
    text = str(found.value.evaluated_value)
    return "" if text == "tf32" else text


def with_precision(call: cst.CSTNode, precision: str) -> cst.CSTNode:
    """The product with its precision said."""
    assert isinstance(call, cst.Call)
    value = cst.SimpleString(f'"{precision}"')
    args = list(call.args)
    for index, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value in (PRECISION, FORMER):
            args[index] = arg.with_changes(keyword=cst.Name(PRECISION), value=value)
            return call.with_changes(args=args)
    last = args[-1]
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    new = cst.Arg(
        keyword=cst.Name(PRECISION),
        value=value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        comma=last.comma,
        whitespace_after_arg=last.whitespace_after_arg,
    )
    args[-1] = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])
