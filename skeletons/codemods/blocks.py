"""Order of evaluation and writes: where an expression runs, whether it always runs, and what happens in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from skeletons.codemods.known import FRESH
from skeletons.codemods.source import Source, bindings, children, target_names, walk

Suite = cst.IndentedBlock | cst.Module


def statement_of(source: Source, node: cst.CSTNode) -> cst.BaseStatement | None:
    """The innermost statement that evaluates the expression."""
    return next((n for n in source.ancestors(node) if isinstance(n, cst.BaseStatement)), None)


def suite_of(source: Source, statement: cst.CSTNode) -> Suite | None:
    """The block a statement stands in."""
    parent = source.parents.get(statement)
    return parent if isinstance(parent, (cst.IndentedBlock, cst.Module)) else None


def conditional(source: Source, node: cst.CSTNode) -> str | None:
    """Why the expression may not be evaluated exactly once when its statement runs, or None."""
    child = node
    for parent in source.ancestors(node):
        if isinstance(parent, cst.IfExp) and child is not parent.test:
            return "it stands in a conditional expression"
        if isinstance(parent, cst.BooleanOperation) and child is parent.right:
            return "it stands behind and/or"
        if isinstance(parent, cst.Lambda):
            return "it stands in a lambda"
        if isinstance(parent, (cst.BaseComp, cst.CompFor)):
            return "it stands in a comprehension"
        if isinstance(parent, cst.While):
            return "it stands in the test of a while loop"
        if isinstance(parent, cst.Assert):
            return "it stands in an assertion"
        if isinstance(parent, cst.BaseStatement):
            if isinstance(parent, (cst.If, cst.For, cst.With, cst.SimpleStatementLine)):
                return None
            return f"it stands in the header of a {type(parent).__name__.lower()} block"
        child = parent
    return None


def between(suite: Suite, first: cst.CSTNode, last: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """Statements of the block from `first` up to `last`, both included."""
    body = list(suite.body)
    return body[body.index(first) : body.index(last) + 1]  # type: ignore[arg-type]


def rebinds(nodes: Sequence[cst.CSTNode], name: str) -> bool:
    """Whether running the statements binds or deletes the name."""
    return any(bound == name for node in nodes for bound in bindings(node))


def root_name(node: cst.BaseExpression) -> str | None:
    """The variable an access path starts from: `x.data[0].view(3)` -> `x`."""
    while True:
        if isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        elif isinstance(node, cst.Call):
            node = node.func
        else:
            return node.value if isinstance(node, cst.Name) else None


def makes_fresh(node: cst.BaseExpression) -> bool:
    """Whether an access path goes through a method whose result shares no memory: `x.view(3).cos()[0]`."""
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in FRESH:
                return True
            node = node.func
        else:
            node = node.value
    return False


def is_inplace_name(name: str) -> bool:
    """torch's convention: a method whose name ends in one underscore writes to its tensor."""
    return name.endswith("_") and not name.endswith("__") and name != "_"


#: Methods of lists, dicts and sets that change them.
_MUTATORS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "discard",
    ]
)


def writes(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, str]]:
    """(object, how) for every visible write into an object, in nested blocks too: `x[i] = `, `x.a = `, `x += `,
    `x.add_()`, `out=x`.

    `x += 1` counts as a write into `x`: for a tensor it is one.
    """
    for inner in walk(node):
        if isinstance(inner, (cst.AssignTarget, cst.AnnAssign, cst.Del)):
            for target in _leaves(inner.target):
                if isinstance(target, (cst.Subscript, cst.Attribute)):
                    yield target.value, "is written to"
        elif isinstance(inner, cst.AugAssign):
            target = inner.target
            yield (
                (target.value if isinstance(target, (cst.Subscript, cst.Attribute)) else target),
                "is changed in place",
            )
        elif isinstance(inner, cst.Call):
            if isinstance(inner.func, cst.Attribute):
                name = inner.func.attr.value
                if is_inplace_name(name) or name in _MUTATORS:
                    yield inner.func.value, f"is changed in place by {name}"
            for argument in inner.args:
                if argument.keyword is not None and argument.keyword.value in ("out", "inplace"):
                    written = argument.value if argument.keyword.value == "out" else None
                    if written is None:
                        written = inner.args[0].value
                    yield written, f"is the {argument.keyword.value} argument of a call"


def _leaves(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _leaves(element.value)
    else:
        yield target


def reads(node: cst.CSTNode) -> Iterator[cst.Name]:
    """Every `Name` node that is read (not an attribute's name, a keyword, or a plain assignment target)."""
    if isinstance(node, cst.Attribute):
        yield from reads(node.value)
        return
    if isinstance(node, cst.Arg):
        yield from reads(node.value)
        return
    if isinstance(node, cst.AssignTarget):
        if not isinstance(node.target, cst.Name):
            for leaf in _leaves(node.target):
                if not isinstance(leaf, cst.Name):
                    yield from reads(leaf)
        return
    if isinstance(node, cst.Name):
        if node.value not in ("True", "False", "None"):
            yield node
        return
    if isinstance(node, cst.AnnAssign):
        for part in (None if isinstance(node.target, cst.Name) else node.target, node.value):
            if part is not None:
                yield from reads(part)
        return
    if isinstance(node, (cst.For, cst.CompFor)):
        for part in children(node):
            if part is not node.target:
                yield from reads(part)
        return
    if isinstance(node, cst.Param):
        if node.default is not None:
            yield from reads(node.default)
        return
    for child in children(node):
        yield from reads(child)


def passed_to(source: Source, nodes: Sequence[cst.CSTNode], name: str) -> Iterator[cst.Call]:
    """Calls that get the variable itself as an argument."""
    for node in nodes:
        for inner in walk(node):
            if isinstance(inner, cst.Call) and any(
                isinstance(a.value, cst.Name) and a.value.value == name for a in inner.args
            ):
                yield inner


def in_order(source: Source, nodes: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
    """The nodes sorted by where they stand in the text."""
    wanted = set(nodes)
    return [node for node in walk(source.module) if node in wanted]


def aliases(method: cst.FunctionDef, name: str) -> set[str]:
    """Variables that may share memory with `name`: connected by assignments of one access path to another."""
    links: list[set[str]] = []
    for node in walk(method.body):
        if isinstance(node, cst.Assign):
            root = None if makes_fresh(node.value) else root_name(node.value)
            for target in node.targets:
                links += [{root, bound} for bound in target_names(target.target) if root is not None]
    found = {name}
    while grown := [link for link in links if link & found and not link <= found]:
        for link in grown:
            found |= link
    return found - {"self"}
