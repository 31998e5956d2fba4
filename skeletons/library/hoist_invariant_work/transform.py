"""Work whose operands do not change is done once: before the loop that repeats it, or in the constructor for what an
instance fixes.

Two kinds of site. `loop`: a statement or part of one, in the body of a for loop, made of nothing that the loop
changes. `instance`: an expression in a method made of nothing but constants of the instance. Purity is shown by
`codemods.purity`; what is left to assumption (that a called function does not write into its arguments) is said in
the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.classes import ClassView, classes
from skeletons.codemods.construct import unused_attribute
from skeletons.codemods.edits import Edits, only
from skeletons.codemods.purity import Fixed, Judge, Purity, costly_parts
from skeletons.codemods.search import Unit, edit, fresh_in, search
from skeletons.codemods.source import bindings, parameters, target_names, walk
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("torch", "self.")
ASSUMES = "no called function writes into the value that is now shared, or into what it is made of"


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


def find(view: TargetView) -> list[Site | Decline]:
    """Invariant work in loops, and instance-constant work in methods."""
    return search(view, lambda unit: _find(unit), MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Compute each once.

    Moving one thing can show another (out of a loop, then into the constructor), so this repeats.
    """
    symbols = {(site.path, site.symbol) for site in sites}
    change = edit(view, sites, _edit)
    for _ in range(4):
        edited = {path: text for path, text in change.files.items() if text is not None}
        moved = replace(view, sources={**view.sources, **edited})
        more = [s for s in find(moved) if isinstance(s, Site) and (s.path, s.symbol) in symbols]
        if not more:
            break
        change = Change(files={**change.files, **edit(moved, more, _edit).files})
    return change


def _judge(unit: Unit) -> Judge:
    operators = {
        op.name: op.role
        for op in unit.view.operators
        if op.deterministic and all(t.kind != "inout" for t in op.tensors)
    }
    return Judge(unit.source, operators)


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for item in _hoists(unit):
        if isinstance(item, Decline):
            yield item
            continue
        text = unit.source.canonical(item.node)
        short = text if len(text) <= 60 else text[:57] + "..."
        where = "in every iteration" if item.kind == "loop" else "in every call"
        shares = tuple(f"share.op.{role}" for role in dict.fromkeys(item.found.operators))
        yield unit.site(
            item.node, f"{short} is computed {where}", assumes=(ASSUMES,), payload=_key(unit, item), share_facts=shares
        )


def _key(unit: Unit, item: Hoist) -> tuple[str, ...]:
    return (
        item.kind,
        unit.source.symbol(item.node),
        unit.source.canonical(item.node),
        str(unit.source.line(item.node)),
    )


def _hoists(unit: Unit) -> Iterator[Hoist | Decline]:
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
            if _leaves(statement):
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


def _leaves(statement: cst.CSTNode) -> bool:
    """Whether the statement may end the iteration."""
    return any(isinstance(n, (cst.Continue, cst.Break, cst.Return, cst.Raise)) for n in walk(statement))


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
            if (small is None and _leaves(statement)) or isinstance(small, (cst.Raise, cst.Assert)):
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


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    items = [item for item in _hoists(unit) if isinstance(item, Hoist) and _key(unit, item) in wanted]
    if len({_key(unit, item) for item in items}) != len(wanted):
        raise ValueError(f"{unit.path}: a site is not there any more: find the sites again")
    named: dict[tuple[object, str], str] = {}
    taken: list[str] = []
    for item in items:
        text = unit.source.code(item.node).strip()
        if item.statement is not None:
            assert item.place is not None
            edits.move(item.statement, _outermost(unit, item))
        elif item.kind == "loop":
            place = _outermost(unit, item)
            key = (place, unit.source.canonical(item.node))
            if key not in named:
                named[key] = fresh_in(item.function, _name_for(unit, item.node), taken)
                taken.append(named[key])
                edits.before(place, f"{named[key]} = {_one_line(text)}")
            edits.replace(item.node, cst.Name(named[key]))
        else:
            _keep_in_instance(unit, item, _one_line(text), named, edits)


def _one_line(text: str) -> str:
    return cst.parse_module("").code_for_node(cst.parse_expression(text)) if "\n" not in text else f"({text})"


def _outermost(unit: Unit, item: Hoist) -> cst.For:
    """The outermost loop the work can be put before: the loops around it must not change its operands either."""
    assert item.place is not None
    place = item.place
    reads = {name.value for name in blocks.reads(item.node)}
    while True:
        suite = blocks.suite_of(unit.source, place)
        outer = unit.source.parents.get(suite) if suite is not None else None
        if not isinstance(outer, cst.For) or unit.source.function_of(outer) is not item.function:
            return place
        written = {blocks.root_name(target) for target, _ in blocks.writes(outer)}
        touched = set(bindings(outer)) | {a for root in written if root for a in blocks.aliases(item.function, root)}
        earlier = list(outer.body.body)[: list(outer.body.body).index(place)]  # type: ignore[arg-type]
        if reads & touched or any(_leaves(node) for node in earlier):
            return place
        place = outer


def _name_for(unit: Unit, node: cst.BaseExpression) -> str:
    """A name that says what the value is: the keyword it is passed as, else the function it comes from."""
    parent = unit.source.parents[node]
    if isinstance(parent, cst.Arg) and parent.keyword is not None:
        return parent.keyword.value
    call = next((n for n in walk(node) if isinstance(n, cst.Call)), None)
    function = call.func if call is not None else node
    last = function.attr.value if isinstance(function, cst.Attribute) else getattr(function, "value", "value")
    return f"fixed_{last}"


def _keep_in_instance(unit: Unit, item: Hoist, text: str, named: dict[tuple[object, str], str], edits: Edits) -> None:
    view = item.view
    assert view is not None
    assert view.constructor is not None
    key = (view.node, unit.source.canonical(item.node))
    self_name = view.self_name(item.function)
    if key not in named:
        parent = unit.source.parents[item.node]
        target = parent.targets[0].target if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else None
        wanted = target.value if isinstance(target, cst.Name) else _name_for(unit, item.node)
        used = [name for (owner, _), name in named.items() if owner is view.node]
        name = unused_attribute(view, wanted, f"fixed_{wanted}")
        while name in used:
            name = f"{name}_too"
        named[key] = name
        if view.is_module:
            _cached_property(view, item.function, name, text, edits)
        else:
            _in_constructor(unit, view, item, name, text, edits)
    edits.replace(item.node, f"{self_name}.{named[key]}")


def _in_constructor(unit: Unit, view: ClassView, item: Hoist, name: str, text: str, edits: Edits) -> None:
    constructor = view.constructor
    assert constructor is not None
    stores = [view.stores[a][0].line for n in walk(item.node) if (a := view.attribute(n, item.function))]
    last = blocks.in_order(unit.source, [line for line in stores if line is not None])[-1]
    edits.after(last, f"{view.self_name(constructor)}.{name} = {text}")


def _cached_property(view: ClassView, method: cst.FunctionDef, name: str, text: str, edits: Edits) -> None:
    """Modules are moved and filled after construction, so what they fix is computed when it is first asked for."""
    edits.need_import("functools")
    edits.before(method, f"@functools.cached_property\ndef {name}(self):\n    return {text}\n")
