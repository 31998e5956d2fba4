"""Work whose operands do not change is done once: before the loop that repeats it, or in the constructor for what an
instance fixes.

Two kinds of site. `loop`: a statement or part of one, in the body of a for loop, made of nothing that the loop
changes. `instance`: an expression in a method made of nothing but constants of the instance. Purity is shown by
`codemods.purity`; what is left to assumption (that a called function does not write into its arguments) is said in
the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.classes import ClassView
from skeletons.codemods.construct import unused_attribute
from skeletons.codemods.edits import Edits
from skeletons.codemods.invariants import Hoist, leaves, repeated_work
from skeletons.codemods.search import Unit, edit, fresh_in, search
from skeletons.codemods.source import bindings, walk
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("torch", "self.")
ASSUMES = "no called function writes into the value that is now shared, or into what it is made of"


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


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for item in repeated_work(unit):
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


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    items = [item for item in repeated_work(unit) if isinstance(item, Hoist) and _key(unit, item) in wanted]
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
        if reads & touched or any(leaves(node) for node in earlier):
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
