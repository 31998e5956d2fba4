"""What a linear application looks like: y = x W^T (+ b) with a weight that the instance holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from skeletons.codemods.classes import ClassView
from skeletons.codemods.source import walk

FUNCTIONAL = ("torch.nn.functional.linear", "torch._C._nn.linear")
_MATMULS = ("torch.matmul", "torch.mm")
_TRANSPOSES = {"t": ((),), "transpose": (("0", "1"), ("1", "0"), ("-1", "-2"), ("-2", "-1")), "permute": (("1", "0"),)}


@dataclass(frozen=True)
class Application:
    """One application. `form`: `functional` (F.linear), `matmul` (x @ self.w.T) or `module` (self.proj(x), an
    nn.Linear).

    `weight` and `bias` are attribute names. `problem`: why its pieces cannot be taken apart, empty when they can.
    """

    node: cst.BaseExpression
    method: str
    form: str
    input: cst.BaseExpression
    weight: str
    bias: str | None = None
    problem: str = ""


def applications(view: ClassView) -> Iterator[Application]:
    """Every linear application in the methods of a class, except in its constructor, in source order."""
    for name, method in view.methods.items():
        if name == "__init__":
            continue
        for node in walk(method.body):
            found = None
            if isinstance(node, cst.Call):
                found = _call(view, name, method, node)
            elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
                found = _matmul(view, name, method, node, node.left, node.right)
            if found is not None:
                yield found


def _call(view: ClassView, name: str, method: cst.FunctionDef, node: cst.Call) -> Application | None:
    attribute = view.attribute(node.func, method)
    if attribute is not None:
        if view.kind(attribute) != "linear":
            return None
        if len(node.args) == 1 and not node.args[0].star:
            return Application(node, name, "module", node.args[0].value, attribute)
        problem = "it is called with other arguments than the input"
        return Application(node, name, "module", cst.Name("_"), attribute, problem=problem)
    dotted = view.source.dotted(node.func)
    if dotted in FUNCTIONAL:
        return _functional(view, name, method, node)
    if dotted in _MATMULS and len(node.args) == 2 and not any(a.keyword or a.star for a in node.args):
        return _matmul(view, name, method, node, node.args[0].value, node.args[1].value)
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("matmul", "mm") and len(node.args) == 1:
        return _matmul(view, name, method, node, node.func.value, node.args[0].value)
    return None


def _functional(view: ClassView, name: str, method: cst.FunctionDef, node: cst.Call) -> Application | None:
    given: dict[str, cst.BaseExpression] = {}
    problem = ""
    for position, argument in enumerate(node.args):
        key = argument.keyword.value if argument.keyword else ("input", "weight", "bias", "?")[min(position, 3)]
        if argument.star or key not in ("input", "weight", "bias"):
            problem = "it is called with arguments that are not input, weight and bias"
        else:
            given[key] = argument.value
    if "input" not in given or "weight" not in given:
        return None
    weight = view.attribute(given["weight"], method)
    if weight is None:
        return None
    bias_node = given.get("bias")
    bias = None
    if bias_node is not None and not (isinstance(bias_node, cst.Name) and bias_node.value == "None"):
        bias = view.attribute(bias_node, method)
        if bias is None and not problem:
            problem = "its bias is not an attribute of the instance"
    return Application(node, name, "functional", given["input"], weight, bias, problem)


def _matmul(
    view: ClassView,
    name: str,
    method: cst.FunctionDef,
    node: cst.BaseExpression,
    left: cst.BaseExpression,
    right: cst.BaseExpression,
) -> Application | None:
    base = _transposed(view, right)
    weight = view.attribute(base, method) if base is not None else None
    return Application(node, name, "matmul", left, weight) if weight is not None else None


def _transposed(view: ClassView, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`w` where the node is `w.T`, `w.mT`, `w.t()`, `w.transpose(0, 1)`."""
    if isinstance(node, cst.Attribute) and node.attr.value in ("T", "mT"):
        return node.value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _TRANSPOSES:
        given = tuple(view.source.canonical(a.value) for a in node.args)
        if given in _TRANSPOSES[node.func.attr.value]:
            return node.func.value
    return None
