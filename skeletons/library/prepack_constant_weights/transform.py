"""Constant weights of linear applications are laid out once the way oneDNN's kernels read them.

With a plain weight oneDNN copies it into its blocked layout in every call, which for few rows costs as much as the
product. A weight that the constructor stores is packed there and the plain one is not kept where nothing else uses
it. The weight of an `nn.Linear` is loaded after construction, so it is packed at its first use without gradients, and
again when it was replaced or written to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import libcst as cst

from skeletons.codemods.classes import ClassView, Store, classes
from skeletons.codemods.construct import localise, unused_attribute
from skeletons.codemods.edits import Edits
from skeletons.codemods.linear import Application, applications
from skeletons.codemods.search import Unit, edit, search
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("linear", "Linear", "matmul", "@", "mm(")

PACK = '''\
def NAME(weight):
    """`weight` [out, in] in the blocked layout of oneDNN's kernels; as it is where oneDNN does not serve it."""
    served = weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    plain = weight.device.type == "cpu" and weight.dim() == 2 and not weight.requires_grad
    if not (served and plain and torch.backends.mkldnn.is_available()):
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
'''

APPLY = '''\
def NAME(x, weight, bias=None):
    """x [..., in] -> [..., out], with a weight that may be packed. Inference only: a packed weight has no gradient."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)
'''

APPLY_MODULE = '''\
def NAME(linear, x):
    """`linear(x)`, without gradients through a packed copy of the weight, made anew when the weight has changed."""
    weight = linear.weight
    served = weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    plain = type(linear) is torch.nn.Linear and weight.device.type == "cpu" and weight.dtype == x.dtype
    plain = plain and not torch.is_grad_enabled() and not weight.is_inference()
    if not (served and plain and torch.backends.mkldnn.is_available()):
        return linear(x)
    state = (weight.data_ptr(), weight._version)
    kept = linear.__dict__.get("_packed_weight")
    if kept is None or kept[0] != state:
        kept = (state, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS))
        linear.__dict__["_packed_weight"] = kept
    return torch.ops.mkldnn._linear_pointwise(x, kept[1], linear.bias, "none", [], "")
'''


def find(view: TargetView) -> list[Site | Decline]:
    """Weights that are constant and only applied."""
    return search(view, _find, MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Pack each weight where it is made and apply the packed one."""
    return edit(view, sites, _edit)


def _by_weight(view: ClassView) -> dict[str, list[Application]]:
    found: dict[str, list[Application]] = defaultdict(list)
    for application in applications(view):
        found[application.weight].append(application)
    return found


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for view in classes(unit.source):
        for weight, members in _by_weight(view).items():
            first = members[0].node
            problem = _problem(view, weight, members)
            if problem:
                yield unit.decline(first, problem)
                continue
            kept = _other_use(unit, view, weight, members)
            detail = f"self.{weight} is laid out for oneDNN once"
            if members[0].form == "module":
                detail += "; the plain weight stays in memory beside it"
            elif kept:
                detail += f"; the plain weight stays too, it is used in {kept}"
            assumes = ("no gradient flows through the application",)
            yield unit.site(first, detail, assumes=assumes, payload=(view.name, weight))


def _problem(view: ClassView, weight: str, members: Sequence[Application]) -> str | None:
    if wrong := next((m.problem for m in members if m.problem), None):
        return f"self.{weight}: {wrong}"
    if members[0].form == "module":
        return None  # packed at first use and checked there: it need not be constant
    if view.kind(weight) == "parameter":
        return f"self.{weight} is an nn.Parameter applied directly: it is loaded after construction"
    store = view.constant(weight)
    return store if isinstance(store, str) else None


def _other_use(unit: Unit, view: ClassView, weight: str, members: Sequence[Application]) -> str | None:
    """Where the plain weight is needed besides the applications (the constructor aside), or None."""
    uses = [load for load in view.loads[weight] if load.method != "__init__"]
    if len(uses) > len(members):
        applied = {member.method for member in members}
        other = next((load.method for load in uses if load.method not in applied), uses[0].method)
        return f"{view.name}.{other}"
    return view.outside_use(weight, unit.view.sources, unit.path)


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    done = set()
    for view in classes(unit.source):
        for weight, members in _by_weight(view).items():
            if (view.name, weight) not in wanted or _problem(view, weight, members):
                continue
            done.add((view.name, weight))
            if members[0].form == "module":
                _use_module(unit, view, members, edits)
            else:
                _use_packed(unit, view, weight, members, edits)
    if done != wanted:
        raise ValueError(f"{unit.path}: a site is not there any more: find the sites again")
    edits.need_import("torch")


def _rows(unit: Unit) -> str:
    """The usual number of rows, for which oneDNN chooses the layout."""
    rows = unit.view.facts.get("launch.max_batch") or unit.view.config.get("max_batch") or 16
    return str(max(int(rows), 4))  # below 4 oneDNN picks a layout that is slow for every larger batch


def _use_module(unit: Unit, view: ClassView, members: Sequence[Application], edits: Edits) -> None:
    helper = edits.helper("_apply_packed", APPLY_MODULE.replace("ROWS", _rows(unit)), view.node)
    for member in members:
        assert isinstance(member.node, cst.Call)
        function = member.node.func

        def call(updated: cst.CSTNode, function: cst.BaseExpression = function) -> cst.CSTNode:
            assert isinstance(updated, cst.Call)
            return updated.with_changes(func=cst.Name(helper), args=[cst.Arg(function), *updated.args])

        edits.replace(member.node, _spaced(call))


def _use_packed(unit: Unit, view: ClassView, weight: str, members: Sequence[Application], edits: Edits) -> None:
    pack = edits.helper("_packed", PACK.replace("ROWS", _rows(unit)), view.node)
    apply = edits.helper("_linear", APPLY, view.node)
    packed = unused_attribute(view, f"packed_{weight.strip('_')}")
    _store_packed(unit, view, weight, packed, pack, _other_use(unit, view, weight, members), edits)
    for member in members:
        self_name = view.self_name(view.methods[member.method])
        bias = f", {self_name}.{member.bias}" if member.bias else ""
        tail = cst.parse_expression(f"_({self_name}.{packed}{bias})")
        assert isinstance(tail, cst.Call)
        source = member.input

        def call(
            updated: cst.CSTNode, tail: cst.Call = tail, form: str = member.form, source: cst.BaseExpression = source
        ) -> cst.CSTNode:
            return cst.Call(func=cst.Name(apply), args=[cst.Arg(_input(updated, form)), *tail.args])

        edits.replace(member.node, _spaced(call))


def _input(updated: cst.CSTNode, form: str) -> cst.BaseExpression:
    """The applied input, as it stands after edits inside it."""
    if isinstance(updated, cst.BinaryOperation):
        return updated.left
    assert isinstance(updated, cst.Call)
    if form == "matmul" and isinstance(updated.func, cst.Attribute) and len(updated.args) == 1:
        return updated.func.value
    named = [a.value for a in updated.args if a.keyword and a.keyword.value == "input"]
    return named[0] if named else updated.args[0].value


def _spaced(make):  # type: ignore[no-untyped-def]
    """Arguments of a new call are set apart by a comma and a space, on one line."""

    def made(updated: cst.CSTNode) -> cst.CSTNode:
        call = make(updated)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        args = [a.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")) for a in call.args[:-1]]
        last = call.args[-1].with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
        )
        return call.with_changes(args=[*args, last], whitespace_before_args=cst.SimpleWhitespace(""))

    return made


def _store_packed(
    unit: Unit, view: ClassView, weight: str, packed: str, pack: str, kept: str | None, edits: Edits
) -> None:
    """In the constructor: the packed weight beside the plain one when that is still used, else in its place."""
    store = view.stores[weight][0]
    constructor = view.constructor
    assert constructor is not None
    assert store.line is not None
    self_name = view.self_name(constructor)
    if kept:
        edits.after(store.line, f"{self_name}.{packed} = {pack}({self_name}.{weight})")
        return
    read_again = any(load.method == "__init__" for load in view.loads[weight])
    if store.value is None or read_again or (store.shared and not _own_value(store)):
        local = localise(view, weight, (weight,), edits)
        line = f"{self_name}.{packed} = {pack}({local})"
        if store.line in edits._removed:
            edits.before(store.line, line)
        else:
            edits.after(store.line, line)
        return
    edits.replace(store.target, store.target.with_changes(attr=cst.Name(packed)))
    edits.replace(
        store.value, cst.Call(func=cst.Name(pack), args=[cst.Arg(store.value.with_changes(lpar=(), rpar=()))])
    )


def _own_value(store: Store) -> bool:
    """Whether a statement with several targets gives each its own value, as `a, b = x, y` does."""
    return (
        isinstance(store.line, cst.SimpleStatementLine)
        and isinstance(store.line.body[0], cst.Assign)
        and len(store.line.body[0].targets) == 1
    )
