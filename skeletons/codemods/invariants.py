"""Finds work that is repeated with the same operands: in a loop, or in the calls of an instance's method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.classes import ClassView, classes
from skeletons.codemods.edits import only
from skeletons.codemods.purity import Fixed, Judge, Purity, costly_parts
from skeletons.codemods.search import Unit
from skeletons.codemods.source import bindings, parameters, target_names, walk
from skeletons.view import Decline


@dataclass(frozen=True)
class Hoist:
    """One thing to compute earlier. `place`: the loop to put it before (kind loop), or None (kind instance)."""

    kind: str
    function: cst.FunctionDef
    node: cst.BaseExpression
    found: Purity
    statement: cst.SimpleStatementLine | None = None  # the whole statement moves
    place: cst.For | None = None
    view: ClassView | None = None


def _judge(unit: Unit) -> Judge:
    operators = {
        op.name: op.role
        for op in unit.view.operators
        if op.deterministic and all(t.kind != "inout" for t in op.tensors)
    }
    return Judge(unit.source, operators)


def repeated_work(unit: Unit) -> Iterator[Hoist | Decline]:
    judge = _judge(unit)
    owners = {method: view for view in classes(unit.source) for method in view.methods.values()}
    for node in walk(unit.source.module):
        if isinstance(node, cst.FunctionDef):
            yield from _in_loops(unit, judge, node, owners.get(node))
    for view in classes(unit.source):
        yield from _in_methods(unit, judge, view)


def _loops(function: cst.FunctionDef) -> list[cst.For]:
    """For loops of the function itself, outer ones first."""
    found: list[cst.For] = []
    stack: list[cst.CSTNode] = [function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.For) and node.asynchronous is None:
            found.append(node)
        if not isinstance(node, (cst.FunctionDef, cst.ClassDef)) or node is function:
            stack.extend(
                c for c in reversed(node.children) if isinstance(c, (cst.BaseStatement, cst.BaseSuite, cst.Else))
            )
    return found


def _in_loops(unit: Unit, judge: Judge, function: cst.FunctionDef, view: ClassView | None) -> Iterator[Hoist | Decline]:
    moved: dict[str, cst.For] = {}  # names whose statement is hoisted before a loop
    for loop in _loops(function):
        if not isinstance(loop.body, cst.IndentedBlock):
            continue
        for statement in loop.body.body:
            if leaves(statement):
                break  # what follows does not always run
            if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
                continue
            fixed = _fixed_in(unit, function, loop, view, moved)
            whole = _whole(unit, judge, function, loop, statement, fixed)
            if isinstance(whole, Hoist):
                targets = set(_bound(statement))
                moved |= dict.fromkeys(targets, loop)
                yield whole
                continue
            if isinstance(whole, Decline):
                yield whole
                continue
            yield from _parts(unit, judge, function, loop, statement, fixed)


def leaves(statement: cst.CSTNode) -> bool:
    """Whether the statement may end the iteration."""
    return any(isinstance(n, (cst.Continue, cst.Break, cst.Return, cst.Raise)) for n in walk(statement))


@lru_cache(maxsize=64)
def _declared_elsewhere(module: cst.Module) -> frozenset[str]:
    """Names that some function of the file declares global or nonlocal."""
    declared = (n for n in walk(module) if isinstance(n, (cst.Global, cst.Nonlocal)))
    return frozenset(item.name.value for statement in declared for item in statement.names)


def _fixed_in(
    unit: Unit, function: cst.FunctionDef, loop: cst.For, view: ClassView | None, moved: dict[str, cst.For]
) -> Fixed:
    """Says why a name or `self.x` may change in the loop."""
    bound = set(bindings(loop)) - {name for name, place in moved.items() if place is loop}
    written: dict[str, str] = {}
    for target, how in blocks.writes(loop):
        root = blocks.root_name(target)
        if root is not None and root != "self":
            written |= {name: f"{unit.source.code(target)} {how}" for name in blocks.aliases(function, root)}

    def fixed(node: cst.BaseExpression) -> str | None:
        if isinstance(node, cst.Attribute):
            if view is None:
                return f"{unit.source.code(node)} may change"
            store = view.constant(node.attr.value)
            return store if isinstance(store, str) else None
        assert isinstance(node, cst.Name)
        if node.value in bound:
            return f"{node.value} changes with the loop"
        if node.value in _declared_elsewhere(unit.source.module):
            return f"{node.value} is global or nonlocal in some function: a call may bind it"
        return f"in the loop {written[node.value]}" if node.value in written else None

    return fixed


def _bound(statement: cst.SimpleStatementLine) -> list[str]:
    small = only(statement)
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        return list(target_names(small.targets[0].target))
    if isinstance(small, cst.AnnAssign) and small.value is not None:
        return list(target_names(small.target))
    return []


def _whole(
    unit: Unit,
    judge: Judge,
    function: cst.FunctionDef,
    loop: cst.For,
    statement: cst.SimpleStatementLine,
    fixed: Fixed,
) -> Hoist | Decline | None:
    """The statement as a thing to move, a refusal where only its targets forbid it, or None."""
    small = only(statement)
    names = _bound(statement)
    if not names or not isinstance(small, (cst.Assign, cst.AnnAssign)) or small.value is None:
        return None
    if isinstance(small, cst.Assign) and not _only_names(small.targets[0].target):
        return None
    found = judge.judge(small.value, fixed)
    if found.problem is not None or not found.costly:
        return None
    problem = _targets(unit, function, loop, statement, names, found)
    if problem:
        return unit.decline(statement, f"{', '.join(names)} is the same in every iteration, but {problem}")
    return Hoist("loop", function, small.value, found, statement=statement, place=loop)


def _only_names(target: cst.BaseExpression) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(isinstance(e, cst.Element) and _only_names(e.value) for e in target.elements)
    return isinstance(target, cst.Name)


def _targets(
    unit: Unit, function: cst.FunctionDef, loop: cst.For, statement: cst.CSTNode, names: Sequence[str], found: Purity
) -> str | None:
    """Why the assigned variables cannot keep one value for the whole loop."""
    body = list(loop.body.body)
    for name in names:
        if sum(bound == name for bound in bindings(function.body)) > 1 or name in (
            p.name.value for p in parameters(function)
        ):
            return f"{name} is bound elsewhere too"
        earlier = body[: body.index(statement)]  # type: ignore[arg-type]
        if any(read.value == name for node in earlier for read in blocks.reads(node)):
            return f"{name} is read before it is assigned"
        shared = blocks.aliases(function, name)
        for target, how in blocks.writes(loop):
            if blocks.root_name(target) in shared:
                return f"{unit.source.code(target)} {how} afterwards"
        if found.buffer and (call := next(blocks.passed_to(unit.source, [loop], name), None)) is not None:
            return f"it is a fresh buffer that {unit.source.code(call.func)} may fill"
    return None


def _parts(
    unit: Unit,
    judge: Judge,
    function: cst.FunctionDef,
    loop: cst.For,
    statement: cst.SimpleStatementLine,
    fixed: Fixed,
) -> Iterator[Hoist]:
    """Invariant parts of a statement that itself is not invariant."""
    for expression in _values(statement.body[0]):
        for node, found in costly_parts(judge, expression, fixed):
            stays = blocks.conditional(unit.source, node) is None and not found.buffer
            if stays and any(isinstance(n, (cst.Name, cst.Attribute)) for n in walk(node)):
                yield Hoist("loop", function, node, found, place=loop)


def _values(small: cst.CSTNode | None) -> list[cst.BaseExpression]:
    if isinstance(small, (cst.Assign, cst.AugAssign, cst.Expr)):
        return [small.value]
    return [small.value] if isinstance(small, cst.AnnAssign) and small.value is not None else []


def _in_methods(unit: Unit, judge: Judge, view: ClassView) -> Iterator[Hoist | Decline]:
    if view.constructor is None:
        return

    def fixed(node: cst.BaseExpression) -> str | None:
        if not isinstance(node, cst.Attribute):
            return "it depends on the call"
        attribute = node.attr.value
        if view.is_module and view.kind(attribute) != "plain":
            return f"self.{attribute} is loaded after construction"
        store = view.constant(attribute)
        return store if isinstance(store, str) else None

    for name, method in view.methods.items():
        if name == "__init__" or not _repeated(view, name, method):
            continue
        for statement in method.body.body:
            small = only(statement) if isinstance(statement, cst.SimpleStatementLine) else None
            if (small is None and leaves(statement)) or isinstance(small, (cst.Raise, cst.Assert)):
                break  # what follows does not always run
            values = [small.value] if isinstance(small, cst.Return) and small.value is not None else _values(small)
            for expression in values:
                for node, found in costly_parts(judge, expression, fixed):
                    item = _instance(unit, view, method, small, node, found)
                    if item is not None:
                        yield item


def _repeated(view: ClassView, name: str, method: cst.FunctionDef) -> bool:
    """Whether a method may run more than once an instance, as far as its class tells."""
    only_in_constructor = {load.method for load in view.loads.get(name, ())} == {"__init__"}
    plain = not method.decorators and method.asynchronous is None and isinstance(method.body, cst.IndentedBlock)
    return plain and not only_in_constructor


def _instance(
    unit: Unit,
    view: ClassView,
    method: cst.FunctionDef,
    small: cst.CSTNode | None,
    node: cst.BaseExpression,
    found: Purity,
) -> Hoist | Decline | None:
    if not any(view.attribute(n, method) for n in walk(node)) or blocks.conditional(unit.source, node) is not None:
        return None
    if isinstance(small, cst.Return) and small.value is node:
        return unit.decline(
            node, "it depends on the instance alone, but it is returned, and the caller may write to it"
        )
    if found.operators:
        return None  # the operator may not exist yet when the constructor runs
    if isinstance(small, cst.Assign) and small.value is node:
        for name in target_names(small.targets[0].target):
            shared = blocks.aliases(method, name)
            for target, how in blocks.writes(method.body):
                if blocks.root_name(target) in shared:
                    return unit.decline(
                        node, f"it depends on the instance alone, but {unit.source.code(target)} {how} afterwards"
                    )
    if found.buffer:
        return unit.decline(
            node, "it depends on the instance alone, but it is a fresh buffer that may be filled afterwards"
        )
    if view.is_module and view.self_name(method) != "self":
        return None
    return Hoist("instance", method, node, found, view=view)
