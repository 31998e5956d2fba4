"""Keys and values that are repeated for every query head of their group are used unrepeated.

Repeating writes and then reads H / G times the cache's rows. The products are the same when the queries of a group
are taken as more rows of one product (matmul), as one more index (einsum), or when the library is told that heads are
grouped (scaled_dot_product_attention).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from skeletons.codemods.edits import Edits, only
from skeletons.codemods.repetition import Expansion, NotThis, expansion_at, integer, outwards, repeats
from skeletons.codemods.search import Unit, edit, search
from skeletons.codemods.source import Source, walk
from skeletons.codemods.ssa import Block
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("repeat_interleave", ".expand(", ".repeat(")
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"

GROUPED = '''\


def NAME(a, b):
    """a [..., H, M, K] @ b [..., G, K, N] -> [..., H, M, N]: each of b's heads serves H / G consecutive heads of a."""
    heads, groups, rows = a.shape[-3], b.shape[-3], a.shape[-2]
    if heads == groups:
        return torch.matmul(a, b)
    product = torch.matmul(a.reshape(*a.shape[:-3], groups, heads // groups * rows, a.shape[-1]), b)
    return product.reshape(*product.shape[:-3], heads, rows, product.shape[-1])
'''


@dataclass(frozen=True)
class Use:
    """How the repeated tensor is used. kind: matmul, einsum, attention, shape."""

    kind: str
    node: cst.BaseExpression
    axis: int = 0
    operand: int = 0  # which argument of the einsum, or key (1) and value (2) of the attention


@dataclass(frozen=True)
class Place:
    """An expansion with the uses it has, all of which can do without it."""

    block: Block
    expansion: Expansion
    uses: tuple[Use, ...]
    name: str  # the variable it is assigned to, empty where it stands inside another expression


def find(view: TargetView) -> list[Site | Decline]:
    """Repeated tensors that only enter grouped products."""
    return search(view, _find, MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Use each unrepeated."""
    return edit(view, sites, _edit)


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for item in _places(unit):
        if isinstance(item, Decline):
            yield item
            continue
        text = unit.source.canonical(item.expansion.source)
        kinds = ", ".join(dict.fromkeys(use.kind for use in item.uses if use.kind != "shape"))
        assumes = ("the repeated axis is the head axis, and heads of a group follow each other",)
        detail = f"{text} is repeated over the heads of a group for {kinds}"
        yield unit.site(item.expansion.node, detail, assumes=assumes, payload=_key(unit, item))


def _key(unit: Unit, item: Place) -> tuple[str, ...]:
    node = item.expansion.node
    return (unit.source.symbol(node), unit.source.canonical(node), str(unit.source.line(node)))


def _places(unit: Unit) -> Iterator[Place | Decline]:
    repeating = {name: repeats(function) for name, function in unit.source.functions.items()}
    helpers = {name: axis for name, axis in repeating.items() if axis is not None}
    for function in (n for n in walk(unit.source.module) if isinstance(n, cst.FunctionDef)):
        if function.name.value in helpers:
            continue
        found = [_in_block(unit, function, suite, helpers) for suite in _suites(function)]
        yield from _paired([item for items in found for item in items], unit)


def _suites(function: cst.FunctionDef) -> Iterator[cst.IndentedBlock]:
    for node in walk(function):
        if isinstance(node, cst.IndentedBlock) and not isinstance(node, cst.ClassDef):
            yield node


def _in_block(
    unit: Unit, function: cst.FunctionDef, suite: cst.IndentedBlock, helpers: dict[str, int]
) -> list[Place | Decline]:
    block = Block(unit.source, suite)
    found: list[Place | Decline] = []
    for statement in block.statements:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for node in walk(statement):
            expansion = expansion_at(unit.source, node, helpers)
            if expansion is None:
                continue
            try:
                found.append(_place(block, function, expansion))
            except NotThis as reason:
                found.append(unit.decline(node, str(reason)))
    return found


def _place(block: Block, function: cst.FunctionDef, expansion: Expansion) -> Place:
    """Follow the repeated tensor to its uses. Raises `NotThis` with the first that needs it repeated."""
    source, node = block.source, expansion.node
    name = source.code(expansion.source)
    outer, axis, rank = outwards(source, node, expansion.axis, expansion.rank, name)
    small = only(block.statements[block.index_of(node)])
    if not isinstance(small, (cst.Assign, cst.AnnAssign)) or small.value is not outer:
        return Place(block, expansion, (_consumed(source, outer, axis, rank, name),), "")
    target = small.target if isinstance(small, cst.AnnAssign) else small.targets[0].target
    if not isinstance(target, cst.Name) or (isinstance(small, cst.Assign) and len(small.targets) > 1):
        raise NotThis("the repeated tensor is kept in an object")
    version = f"{target.value}@{block.index_of(node) + 1}"
    if block.escapes(target.value, function):
        raise NotThis(f"{target.value} is used outside this block too")
    followed = [outwards(source, use, axis, rank, target.value) for use in block.uses(version)]
    uses = tuple(_consumed(source, *found, target.value) for found in followed)
    if not any(use.kind != "shape" for use in uses):
        raise NotThis(f"{target.value} enters no product")
    return Place(block, expansion, uses, target.value if outer is node else "")


def _consumed(source: Source, node: cst.BaseExpression, axis: int, rank: int, name: str) -> Use:
    """What takes the tensor. The head axis of a product is the third from the end of three or four."""
    parent = source.parents[node]
    third = axis == -3 or (axis in (0, 1) and rank <= axis + 3)
    if isinstance(parent, cst.Attribute) and parent.value is node:
        return _looked_at(source, parent, axis, rank, name)
    if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.MatrixMultiply):
        if parent.left is node:
            raise NotThis(f"{name} is the left side of a product")
        if not third:
            raise NotThis(f"the repeated axis of {name} is not the third from the end in the product")
        return Use("matmul", parent)
    if isinstance(parent, cst.Arg):
        call = source.parents[parent]
        if isinstance(call, cst.Call):
            return _argument(source, call, parent, axis, third, name)
    raise NotThis(f"{name} is needed repeated: {_shorten(source.code(parent))}")


def _looked_at(source: Source, node: cst.Attribute, axis: int, rank: int, name: str) -> Use:
    """A look at the type, or at a size that repeating does not change."""
    outer = source.parents[node]
    if node.attr.value in ("dtype", "device", "ndim"):
        return Use("shape", node)
    if node.attr.value == "shape" and isinstance(outer, cst.Subscript) and len(outer.slice) == 1:
        index = outer.slice[0].slice
        at = integer(index.value) if isinstance(index, cst.Index) else None
        if at is not None and at not in (axis, axis - max(rank, axis + 3)):
            return Use("shape", outer)
        raise NotThis(f"the number of heads of {name} is read from its shape")
    raise NotThis(f"{name} is needed repeated: {_shorten(source.code(source.parents[node]))}")


def _argument(source: Source, call: cst.Call, argument: cst.Arg, axis: int, third: bool, name: str) -> Use:
    dotted = source.dotted(call.func)
    position = list(call.args).index(argument)
    keyword = argument.keyword.value if argument.keyword else ""
    if dotted == "torch.matmul" and position == 1:
        if third:
            return Use("matmul", call)
        raise NotThis(f"the repeated axis of {name} is not the third from the end in the product")
    if (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "matmul"
        and dotted is None
        and len(call.args) == 1
        and third
    ):
        return Use("matmul", call)
    if dotted == "torch.einsum" and position in (1, 2) and len(call.args) == 3:
        _equation(call, position, axis)
        return Use("einsum", call, axis, position)
    if dotted == ATTENTION and third and (keyword in ("key", "value") or (not keyword and position in (1, 2))):
        if any(a.keyword is not None and a.keyword.value == "enable_gqa" for a in call.args):
            raise NotThis("the attention call already says how heads are grouped")
        return Use("attention", call, axis, {"key": 1, "value": 2}.get(keyword, position))
    raise NotThis(f"{name} is needed repeated: {_shorten(source.code(call))}")


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else text[:67] + "..."


def _equation(call: cst.Call, operand: int, axis: int) -> tuple[str, int, int]:
    """(new equation, axis of the other operand to split, axis of the result to join). Raises `NotThis`."""
    literal = call.args[0].value
    if (
        not isinstance(literal, cst.SimpleString)
        or "->" not in str(literal.evaluated_value)
        or "." in str(literal.evaluated_value)
    ):
        raise NotThis("the equation of the einsum is not written out")
    inputs, output = str(literal.evaluated_value).replace(" ", "").split("->")
    terms = inputs.split(",")
    if len(terms) != 2 or not -len(terms[operand - 1]) <= axis < len(terms[operand - 1]):
        raise NotThis("the equation of the einsum does not have two operands of known rank")
    head = terms[operand - 1][axis]
    other = terms[2 - operand]
    if head not in other or head not in output:
        raise NotThis("the repeated axis is summed over")
    extra = next(letter for letter in "grmnpuvwxyzabcdefhijkloqst" if letter not in inputs)
    split = other.replace(head, head + extra)
    new = [terms[0], terms[1]]
    new[2 - operand] = split
    return f"{','.join(new)}->{output.replace(head, head + extra)}", other.index(head), output.index(head)


def _paired(found: list[Place | Decline], unit: Unit) -> Iterator[Place | Decline]:
    """Attention calls need key and value grouped alike: both expansions of a call, or none."""
    calls: dict[cst.BaseExpression, set[int]] = {}
    for item in found:
        if isinstance(item, Place):
            for use in item.uses:
                if use.kind == "attention":
                    calls.setdefault(use.node, set()).add(use.operand)
    for item in found:
        lonely = isinstance(item, Place) and any(u.kind == "attention" and calls[u.node] != {1, 2} for u in item.uses)
        if lonely and isinstance(item, Place):
            yield unit.decline(item.expansion.node, "only one of key and value is repeated for the attention call")
        else:
            yield item


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    places = [item for item in _places(unit) if isinstance(item, Place) and _key(unit, item) in wanted]
    if len({_key(unit, item) for item in places}) != len(wanted):
        raise ValueError(f"{unit.path}: a site is not there any more: find the sites again")
    done: set[cst.BaseExpression] = set()
    for item in places:
        _unexpand(item, edits)
        for use in item.uses:
            if use.kind == "shape" or use.node in done:
                continue
            done.add(use.node)
            if use.kind == "matmul":
                _group_matmul(unit, use.node, edits)
            elif use.kind == "attention":
                _group_attention(use.node, edits)
            else:
                _group_einsum(unit, item, use, edits)


def _unexpand(item: Place, edits: Edits) -> None:
    """Put the unrepeated tensor where the repeated one was made."""
    source = item.expansion.source
    statement = item.block.statements[item.block.index_of(item.expansion.node)]
    if item.name and isinstance(source, cst.Name) and source.value == item.name:
        edits.remove(statement)
    else:
        edits.replace(item.expansion.node, lambda updated: _inner(updated, item.expansion))


def _inner(updated: cst.CSTNode, expansion: Expansion) -> cst.BaseExpression:
    """The source tensor inside the repetition, as it stands after edits inside it."""
    assert isinstance(updated, cst.Call)
    assert isinstance(expansion.node, cst.Call)
    if any(argument.value is expansion.source for argument in expansion.node.args):
        return updated.args[0].value
    assert isinstance(updated.func, cst.Attribute)
    inner = updated.func.value
    if updated.func.attr.value == "repeat_interleave":
        return inner
    assert isinstance(inner, cst.Call)  # x[:, :, None].expand(...).reshape(...)
    assert isinstance(inner.func, cst.Attribute)
    assert isinstance(inner.func.value, cst.Subscript)
    return inner.func.value.value


def _group_matmul(unit: Unit, node: cst.BaseExpression, edits: Edits) -> None:
    edits.need_import("torch")
    top = next(n for n in [node, *unit.source.ancestors(node)] if unit.source.parents.get(n) is unit.source.module)
    helper = edits.helper("_grouped_matmul", GROUPED, top)

    def call(updated: cst.CSTNode) -> cst.CSTNode:
        if isinstance(updated, cst.BinaryOperation):
            operands = [updated.left, updated.right]
        else:
            assert isinstance(updated, cst.Call)
            operands = [a.value for a in updated.args]
            if len(operands) == 1:
                assert isinstance(updated.func, cst.Attribute)
                operands.insert(0, updated.func.value)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return cst.Call(func=cst.Name(helper), args=[cst.Arg(operands[0], comma=comma), cst.Arg(operands[1])])

    edits.replace(node, call)


def _group_attention(node: cst.BaseExpression, edits: Edits) -> None:
    def grouped(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        added = cst.Arg(cst.Name("True"), keyword=cst.Name("enable_gqa"), equal=equal)
        last = updated.args[-1]
        if isinstance(last.comma, cst.Comma):  # a trailing comma: keep the layout of one argument a line
            return updated.with_changes(
                args=[
                    *updated.args[:-1],
                    last.with_changes(comma=_between(updated)),
                    added.with_changes(comma=last.comma),
                ]
            )
        return updated.with_changes(args=[*updated.args[:-1], last.with_changes(comma=_between(updated)), added])

    edits.replace(node, grouped)


def _between(call: cst.Call) -> cst.Comma:
    """The comma between the first two arguments, which shows how the call is laid out."""
    comma = call.args[0].comma
    return comma if isinstance(comma, cst.Comma) else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _group_einsum(unit: Unit, item: Place, use: Use, edits: Edits) -> None:
    assert isinstance(use.node, cst.Call)
    equation, split, join = _equation(use.node, use.operand, use.axis)
    times = unit.source.code(item.expansion.times).strip()

    def grouped(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        args = list(updated.args)
        other = 3 - use.operand
        method = cst.Attribute(args[other].value, cst.Name("unflatten"))
        text = cst.parse_expression(f"_({split}, (-1, {times}))")
        assert isinstance(text, cst.Call)
        args[0] = args[0].with_changes(value=cst.SimpleString(f'"{equation}"'))
        args[other] = args[other].with_changes(value=cst.Call(func=method, args=text.args))
        joined = cst.Attribute(updated.with_changes(args=args), cst.Name("flatten"))
        tail = cst.parse_expression(f"_({join}, {join + 1})")
        assert isinstance(tail, cst.Call)
        return cst.Call(func=joined, args=tail.args)

    edits.replace(use.node, grouped)
