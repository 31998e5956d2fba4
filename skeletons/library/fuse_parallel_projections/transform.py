"""Linear applications of one input with several constant weights become one application of the concatenated weight,
split.

Each application streams its weight and is dispatched once; with few rows the fixed part of that is most of it. The
concatenation is made in the constructor, and the separate weights are not kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.classes import ClassView, Store, classes
from skeletons.codemods.construct import localise, unused_attribute
from skeletons.codemods.edits import Edits, joined_name, only
from skeletons.codemods.linear import Application, applications
from skeletons.codemods.search import Unit, edit, fresh_in, search
from skeletons.codemods.source import walk
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("linear", "Linear", "matmul", "@", "mm(")

CONCATENATE = '''\
def NAME(*parts: {linear}) -> {linear}:
    """One linear layer whose output holds the outputs of `parts`, which share their input, side by side."""
    first = parts[0]
    biased = any(part.bias is not None for part in parts)
    width = sum(part.out_features for part in parts)
    joined = {linear}(first.in_features, width, bias=biased, device=first.weight.device, dtype=first.weight.dtype)
    with torch.no_grad():
        joined.weight.copy_(torch.cat([part.weight for part in parts]))
        if biased:
            biases = [part.weight.new_zeros(part.out_features) if part.bias is None else part.bias for part in parts]
            joined.bias.copy_(torch.cat(biases))
    return joined
'''

ON_LOAD = '''\
def NAME(module, joined, parts):
    """Let checkpoints with the separate tensors of `parts` load into the layer `joined` of `module`."""

    def concatenate(_module, state, prefix, *_):
        if not all(f"{prefix}{part}.weight" in state for part in parts):
            return
        weights = [state.pop(f"{prefix}{part}.weight") for part in parts]
        biases = [state.pop(f"{prefix}{part}.bias", None) for part in parts]
        state[f"{prefix}{joined}.weight"] = torch.cat(weights)
        if any(bias is not None for bias in biases):
            filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            state[f"{prefix}{joined}.bias"] = torch.cat(filled)

    module.register_load_state_dict_pre_hook(concatenate)
'''


@dataclass(frozen=True)
class Group:
    """Applications in one block, of one input, that can become one."""

    view: ClassView
    method: str
    input: str
    members: tuple[Application, ...]

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(member.weight for member in self.members)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.view.name, self.method, self.input, *self.weights)


def find(view: TargetView) -> list[Site | Decline]:
    """Groups of at least two applications to the same unmodified input."""
    return search(view, _find, MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Fuse each group."""
    return edit(view, sites, _edit)


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for view in classes(unit.source):
        for found in _groups(unit, view):
            if isinstance(found, Decline):
                yield found
            else:
                detail = f"{len(found.members)} projections of {found.input} ({', '.join(found.weights)}) become one"
                assumes = ("the projections' weights have the same input width and type",)
                yield unit.site(found.members[0].node, detail, assumes=assumes, payload=found.key)
    for function in unit.source.functions.values():
        yield from _free(unit, function)


def _free(unit: Unit, function: cst.FunctionDef) -> Iterator[Decline]:
    """Functions that are handed their weights have no place where the concatenation could be made once."""
    inputs: dict[str, list[cst.Call]] = defaultdict(list)
    for node in walk(function.body):
        if (
            isinstance(node, cst.Call)
            and unit.source.dotted(node.func) == "torch.nn.functional.linear"
            and len(node.args) > 1
        ):
            inputs[unit.source.canonical(node.args[0].value)].append(node)
    for text, calls in inputs.items():
        weights = {unit.source.canonical(call.args[1].value) for call in calls}
        if len(weights) > 1:
            yield unit.decline(
                calls[0], f"the weights applied to {text} are arguments: there is no constructor to join them in"
            )


def _groups(unit: Unit, view: ClassView) -> Iterator[Group | Decline]:
    by_input: dict[tuple[str, str], list[Application]] = defaultdict(list)
    for found in applications(view):
        if isinstance(found.input, cst.Name):
            by_input[found.method, found.input.value].append(found)
    for (method, name), found in by_input.items():
        if len({member.weight for member in found}) < 2:
            continue
        problems: list[Decline] = []
        places: dict[object, list[Application]] = defaultdict(list)
        for member in found:
            problem = _unusable(unit, view, member)
            if problem:
                problems.append(unit.decline(member.node, problem))
                continue
            statement = blocks.statement_of(unit.source, member.node)
            assert statement is not None
            function = unit.source.code(member.node.func) if isinstance(member.node, cst.Call) else ""
            functional = function if member.form == "functional" else member.form
            places[blocks.suite_of(unit.source, statement), functional].append(member)
        groups = [_checked(unit, view, method, name, members) for members in places.values() if len(members) > 1]
        yield from groups
        if not groups and problems:
            yield problems[0]
        elif not groups:
            yield unit.decline(
                found[0].node,
                f"the projections of {name} stand in different blocks or forms: not all of them always run",
            )


def _unusable(unit: Unit, view: ClassView, member: Application) -> str | None:
    """Why an application cannot be part of any group."""
    if member.problem:
        return f"self.{member.weight}: {member.problem}"
    if why := blocks.conditional(unit.source, member.node):
        return f"the application of self.{member.weight} does not always run: {why}"
    for attribute in filter(None, (member.weight, member.bias)):
        kind = view.kind(attribute)
        if kind == "parameter":
            return f"self.{attribute} is an nn.Parameter: it is loaded after construction"
        store = view.constant(attribute)
        if isinstance(store, str):
            return store
        uses = [load for load in view.loads[attribute] if load.method != "__init__"]
        if len(uses) > 1:
            other = next((load.method for load in uses if load.method != member.method), member.method)
            return f"self.{attribute} is read elsewhere: {view.name}.{other}"
        if outside := view.outside_use(attribute, unit.view.sources, unit.path):
            return f"self.{attribute} is read elsewhere: {outside}"
        if kind == "linear" and any(load.method == "__init__" for load in view.loads[attribute]):
            return f"self.{attribute} is used again in the constructor: it may be tied or initialised there"
    return None


def _checked(unit: Unit, view: ClassView, method: str, name: str, members: list[Application]) -> Group | Decline:
    """The group, or why its members cannot be moved together."""
    first = members[0].node
    if len({member.weight for member in members}) < len(members):
        return unit.decline(first, f"the same weight is applied to {name} twice")
    values = [
        unit.source.canonical(s.value)
        for w in members
        if isinstance(s := view.constant(w.weight), Store) and s.value is not None
    ]
    if len(set(values)) < len(values) and members[0].form != "module":
        return unit.decline(first, "two of the weights are the same object: they are tied")
    statements = [blocks.statement_of(unit.source, member.node) for member in members]
    suite = blocks.suite_of(unit.source, statements[0])  # type: ignore[arg-type]
    assert suite is not None
    span = blocks.between(suite, statements[0], statements[-1])  # type: ignore[arg-type]
    if blocks.rebinds(span[:-1], name) or any(isinstance(n, cst.NamedExpr) for s in span for n in walk(s)):
        return unit.decline(first, f"{name} is bound again between the projections")
    aliases = blocks.aliases(view.methods[method], name)
    for node in span:
        for written, how in blocks.writes(node):
            if blocks.root_name(written) in aliases:
                return unit.decline(
                    first, f"{name} may change between the projections: {unit.source.code(written)} {how}"
                )
    for call in blocks.passed_to(unit.source, span, name):
        if call not in [member.node for member in members] and not _harmless(unit, call):
            return unit.decline(
                first,
                f"{name} is passed to {unit.source.code(call.func)} between the projections, which may write to it",
            )
    return Group(view, method, name, tuple(members))


def _harmless(unit: Unit, call: cst.Call) -> bool:
    dotted = unit.source.dotted(call.func)
    if dotted is not None and dotted.startswith("torch."):
        return not blocks.is_inplace_name(dotted.split(".")[-1])
    return isinstance(call.func, cst.Name) and call.func.value in ("len", "isinstance", "type", "id", "print", "repr")


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    groups = [g for view in classes(unit.source) for g in _groups(unit, view) if isinstance(g, Group)]
    chosen = [group for group in groups if group.key in wanted]
    if len(chosen) != len(wanted):
        raise ValueError(f"{unit.path}: a site is not there any more: find the sites again")
    edits.need_import("torch")
    for group in chosen:
        name = joined_name(group.weights)
        joined = unused_attribute(group.view, name, f"joined_{name}")
        _construct(unit, group, joined, edits)
        _apply(unit, group, joined, edits)


def _construct(unit: Unit, group: Group, joined: str, edits: Edits) -> None:
    """In the constructor: the parts become local values, their concatenation the attribute."""
    view, constructor = group.view, group.view.constructor
    assert constructor is not None
    self_name = view.self_name(constructor)
    attributes = [a for m in group.members for a in (m.weight, m.bias) if a is not None]
    local = {attribute: localise(view, attribute, attributes, edits) for attribute in attributes}
    stores = [view.stores[attribute][0].line for attribute in attributes]
    last = blocks.in_order(unit.source, stores)[-1]  # type: ignore[arg-type]
    weights = [local[member.weight] for member in group.members]
    if group.members[0].form == "module":
        made = view.stores[group.members[0].weight][0].value
        linear = unit.source.code(made.func) if isinstance(made, cst.Call) else "torch.nn.Linear"
        concatenate = edits.helper("_side_by_side", CONCATENATE.format(linear=linear), view.node)
        on_load = edits.helper("_join_on_load", ON_LOAD.replace("{linear}", linear), view.node)
        names = ", ".join(repr(w) for w in group.weights).replace("'", '"')
        edits.after(
            last,
            f"{self_name}.{joined}: {linear} = {concatenate}({', '.join(weights)})",
            f"{self_name}.{joined}_sizes = ({', '.join(f'{w}.out_features' for w in weights)})",
            f'{on_load}({self_name}, "{joined}", ({names}))',
        )
        return
    lines = [
        f"{self_name}.{joined} = torch.cat(({', '.join(weights)}))",
        f"{self_name}.{joined}_sizes = ({', '.join(f'{w}.shape[0]' for w in weights)})",
    ]
    if any(member.bias for member in group.members):
        parts = []
        for weight, member in zip(weights, group.members, strict=True):
            zeros = f"{weight}.new_zeros({weight}.shape[0])"
            bias = local[member.bias] if member.bias else None
            parts.append(f"{zeros} if {bias} is None else {bias}" if bias else zeros)
        lines.append(f"{self_name}.{joined}_bias = torch.cat(({', '.join(parts)}))")
    edits.after(last, *lines)


def _apply(unit: Unit, group: Group, joined: str, edits: Edits) -> None:
    """In the method: one application before the first of the old ones, whose places take its parts."""
    method = group.view.methods[group.method]
    self_name, code = group.view.self_name(method), unit.source.code
    first = group.members[0]
    bias = f", {self_name}.{joined}_bias" if any(member.bias for member in group.members) else ""
    match first.form:
        case "module":
            applied = f"{self_name}.{joined}({group.input})"
        case "matmul":
            applied = f"({group.input} @ {self_name}.{joined}.T)"
        case _:
            assert isinstance(first.node, cst.Call)
            applied = f"{code(first.node.func)}({group.input}, {self_name}.{joined}{bias})"
    names: list[str] = []
    start = blocks.statement_of(unit.source, first.node)
    suite = blocks.suite_of(unit.source, start)  # type: ignore[arg-type]
    for member in group.members:
        statement = blocks.statement_of(unit.source, member.node)
        own = _plain_target(statement, member.node)
        before = blocks.between(suite, start, statement)[:-1]  # type: ignore[arg-type]
        if own and own != group.input and own not in names and not _mentions(before, own):
            names.append(own)
            edits.remove(statement)  # type: ignore[arg-type]
        else:
            names.append(fresh_in(method, f"{member.weight.strip('_')}_out", names))
            edits.replace(member.node, cst.Name(names[-1]))
    edits.before(start, f"{', '.join(names)} = {applied}.split({self_name}.{joined}_sizes, dim=-1)")  # type: ignore[arg-type]


def _plain_target(statement: cst.CSTNode | None, node: cst.BaseExpression) -> str | None:
    """`q` where the statement is `q = <node>` and nothing else."""
    small = only(statement) if statement is not None else None
    if isinstance(small, cst.Assign) and small.value is node and len(small.targets) == 1:
        target = small.targets[0].target
        return target.value if isinstance(target, cst.Name) else None
    return None


def _mentions(nodes: Sequence[cst.CSTNode], name: str) -> bool:
    return any(isinstance(n, cst.Name) and n.value == name for node in nodes for n in walk(node))
