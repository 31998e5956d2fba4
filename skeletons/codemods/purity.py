"""Which expressions can be computed once instead of many times: no side effect, no randomness, same operands same
value.

By list for torch and builtins (`pure_names.toml`), by analysis for functions of the same file, by the target's own
declaration for operators (deterministic, nothing in place). Whatever is none of these is impure, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.known import BUFFERS, BUILTINS, FUNCTIONS, METHODS, VIEWS
from skeletons.codemods.source import Source, bindings, children, parameters, walk

Fixed = Callable[[cst.BaseExpression], str | None]
"""Says why a variable or a `self.x` may change, or None when it does not."""


@dataclass
class Purity:
    """The answer for one expression: `problem` (None when pure), whether it costs anything, and what is assumed."""

    problem: str | None = None
    costly: bool = False
    buffer: bool = False  # its value is a fresh tensor of the kind that gets filled in place
    operators: list[str] = field(default_factory=list)  # roles of the operators it calls


class Judge:
    """Judges expressions of one file.

    `operators`: name -> role of operators that are deterministic and write nothing.
    """

    def __init__(self, source: Source, operators: dict[str, str] | None = None) -> None:
        self.source = source
        self.operators = operators or {}
        self._functions: dict[str, bool] = {}

    def judge(self, node: cst.BaseExpression, fixed: Fixed) -> Purity:
        """Whether the expression is pure and made of operands that `fixed` accepts."""
        found = Purity()
        found.problem = self._check(node, fixed, found)
        return found

    def _check(self, node: cst.CSTNode, fixed: Fixed, found: Purity) -> str | None:
        if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString, cst.Ellipsis)):
            return None
        if isinstance(node, cst.Name):
            if node.value in ("True", "False", "None") or self.source.dotted(node) is not None:
                return None
            return fixed(node)
        if isinstance(node, cst.Attribute):
            if self.source.dotted(node) is not None:
                return None
            if isinstance(node.value, cst.Name) and node.value.value == "self":
                return fixed(node)
            return self._check(node.value, fixed, found)
        if isinstance(node, cst.Call):
            return self._call(node, fixed, found)
        if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr, cst.Lambda, cst.BaseComp, cst.FormattedString)):
            return f"{type(node).__name__.lower()} is not followed"
        if isinstance(node, (cst.List, cst.Dict, cst.Set)) and not isinstance(self.source.parents[node], cst.Arg):
            return "a list, dict or set may be changed later"
        parts = [
            child
            for child in children(node)
            if not isinstance(child, (cst.BaseBinaryOp, cst.BaseUnaryOp, cst.BaseCompOp))
        ]
        return next((why for child in parts if (why := self._check(child, fixed, found))), None)

    def _call(self, node: cst.Call, fixed: Fixed, found: Purity) -> str | None:
        for argument in node.args:
            if argument.keyword is not None and argument.keyword.value in ("out", "inplace", "generator"):
                return f"{self.source.code(node.func)} is called with {argument.keyword.value}"
            if why := self._check(argument.value, fixed, found):
                return why
        dotted = self.source.dotted(node.func)
        if dotted is not None:
            return self._imported(dotted, found)
        if isinstance(node.func, cst.Name):
            return self._named(node.func, found)
        if not isinstance(node.func, cst.Attribute):
            return f"{self.source.code(node.func)} is not a known function"
        name = node.func.attr.value
        role = self.operators.get(name)
        if role is not None:
            found.costly = True
            found.operators.append(role)
            return self._check(node.func, fixed, found)
        if name in VIEWS or name in METHODS:
            found.costly |= name not in VIEWS
            found.buffer |= name in BUFFERS
            return self._check(node.func.value, fixed, found)
        return f"nothing is known of {self.source.code(node.func)}"

    def _imported(self, dotted: str, found: Purity) -> str | None:
        root, last = dotted.split(".")[0], dotted.split(".")[-1]
        if root == "math":
            return None
        if root == "torch" and last in FUNCTIONS:
            found.costly = True
            found.buffer |= last in BUFFERS
            return None
        return f"nothing is known of {dotted}"

    def _named(self, name: cst.Name, found: Purity) -> str | None:
        function = self.source.functions.get(name.value)
        if function is not None:
            if self._pure_function(function):
                found.costly = True
                return None
            return f"{name.value} may have side effects"
        return None if name.value in BUILTINS else f"nothing is known of {name.value}"

    def _pure_function(self, function: cst.FunctionDef) -> bool:
        """Whether a function of this file computes its result from its arguments and changes nothing.

        Recursion counts as impure.
        """
        name = function.name.value
        if name not in self._functions:
            self._functions[name] = False
            self._functions[name] = self._scan(function)
        return self._functions[name]

    def _scan(self, function: cst.FunctionDef) -> bool:
        if function.asynchronous is not None or function.decorators:
            return False
        local = {p.name.value for p in parameters(function)} | set(bindings(function.body))

        def is_local(node: cst.BaseExpression) -> str | None:
            return None if isinstance(node, cst.Name) and node.value in local else "not local"

        if any(blocks.writes(function.body)):
            return False
        for node in walk(function.body):
            if isinstance(
                node, (cst.Global, cst.Nonlocal, cst.With, cst.Try, cst.Raise, cst.FunctionDef, cst.ClassDef, cst.While)
            ):
                return False
        return all(self.judge(e, is_local).problem is None for e in _expressions(function.body))


def _expressions(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Outermost expressions that running the node evaluates; assignment targets and docstrings left out."""
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString):
        return
    if isinstance(node, cst.BaseExpression):
        yield node
        return
    if isinstance(node, (cst.AssignTarget, cst.Annotation)):
        return
    for child in children(node):
        if isinstance(node, (cst.For, cst.AnnAssign)) and child is node.target:
            continue
        yield from _expressions(child)


def costly_parts(judge: Judge, node: cst.BaseExpression, fixed: Fixed) -> Iterator[tuple[cst.BaseExpression, Purity]]:
    """The largest pure parts of an expression that cost something, outside in."""
    found = judge.judge(node, fixed)
    if found.problem is None:
        if found.costly:
            yield node, found
        return
    for child in _inner(node):
        yield from costly_parts(judge, child, fixed)


def _inner(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    for child in children(node):
        if isinstance(child, cst.BaseExpression):
            yield child
        else:
            yield from _inner(child)
