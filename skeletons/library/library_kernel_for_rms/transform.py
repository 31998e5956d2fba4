"""Textbook x * rsqrt(mean(x^2) + eps) * w becomes one call of torch's rms_norm.

Recognised: squares by pow, `**`, product or square; the inverse root by rsqrt, 1/sqrt, a power of -0.5, or a division
by the root; the mean in float32; the result cast back before or after the weight; weights like `1 + w`; any number of
intermediate variables. torch's kernel computes in float32 and rounds once, at the end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.edits import Edits, only
from skeletons.codemods.normalisation import Match, NotThis, normalisation, uses_root
from skeletons.codemods.search import Unit, edit, search
from skeletons.codemods.source import walk
from skeletons.codemods.ssa import Block, plain, variables
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("rsqrt", "sqrt", "** -0.5", "**-0.5", "-0.5")


@dataclass(frozen=True)
class Place:
    """A match with the expression it stands for."""

    block: Block
    node: cst.BaseExpression
    match: Match


def find(view: TargetView) -> list[Site | Decline]:
    """Root mean square normalisations written out."""
    return search(view, _find, MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Call the library for each."""
    return edit(view, sites, _edit)


def _find(unit: Unit) -> Iterator[Site | Decline]:
    dtype = unit.view.facts.get("launch.dtype") or unit.view.config.get("dtype")
    told: set[tuple[str, str]] = set()
    for item in _places(unit):
        if isinstance(item, Decline):
            if (item.symbol, item.reason) not in told:
                yield item
            told.add((item.symbol, item.reason))
            continue
        detail = f"root mean square normalisation of {plain(item.match.x)}, written out"
        assumes = ("the input and the weight have the same type", "eps is a number")
        narrow = dtype != "float32" and item.match.rounded_before_weight
        yield unit.site(item.node, detail, assumes=assumes, changes_numerics=narrow, payload=_key(unit, item.node))


def _key(unit: Unit, node: cst.CSTNode) -> tuple[str, ...]:
    return (unit.source.symbol(node), str(unit.source.line(node)))


def _places(unit: Unit) -> Iterator[Place | Decline]:
    for function in (n for n in walk(unit.source.module) if isinstance(n, cst.FunctionDef)):
        if not isinstance(function.body, cst.IndentedBlock):
            continue
        block = Block(unit.source, function.body)
        for statement in block.statements:
            small = only(statement)
            value = getattr(small, "value", None)
            if not isinstance(value, cst.BaseExpression) or not isinstance(
                small, (cst.Return, cst.Assign, cst.AnnAssign)
            ):
                continue
            yield from _in_expression(unit, function, block, value)


def _in_expression(
    unit: Unit, function: cst.FunctionDef, block: Block, value: cst.BaseExpression
) -> Iterator[Place | Decline]:
    if not uses_root(block, block.tree(value)):
        return
    stack = [value]
    while stack:
        node = stack.pop(0)
        if isinstance(node, cst.Name):
            continue
        try:
            match = normalisation(block, block.tree(node))
        except NotThis as reason:
            yield unit.decline(node, str(reason))
            return
        if match is not None:
            problem = _blocked(block, function, Place(block, node, match))
            if problem is None and _last_word(block, node):
                yield Place(block, node, match)
            elif problem is not None:
                yield unit.decline(node, problem)
            return
        stack += _subexpressions(node)


def _subexpressions(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    for child in node.children:
        if isinstance(child, cst.BaseExpression):
            yield child
        elif not isinstance(child, cst.Comma):
            yield from _subexpressions(child)


def _last_word(block: Block, node: cst.BaseExpression) -> bool:
    """Whether no later statement completes the same normalisation (by the weight, or by a cast)."""
    statement = block.index_of(node)
    small = only(block.statements[statement])
    if (
        not isinstance(small, cst.Assign)
        or small.value is not node
        or not isinstance(small.targets[0].target, cst.Name)
    ):
        return True
    version = f"{small.targets[0].target.value}@{statement + 1}"
    for use in block.uses(version):
        user = getattr(only(block.statements[block.index_of(use)]), "value", None)
        if isinstance(user, cst.BaseExpression):
            for inner in (n for n in walk(user) if isinstance(n, cst.BaseExpression) and not isinstance(n, cst.Name)):
                try:
                    bigger = normalisation(block, block.tree(inner))
                except NotThis:
                    continue
                if bigger is not None and version in bigger.through:
                    return False
    return True


def _removable(place: Place) -> set[int]:
    """Statements that only served the normalisation."""
    block = place.block
    inside = {n for n in walk(place.node) if isinstance(n, cst.Name)}
    kept = _needed(place)
    removed: set[int] = set()
    while True:
        more = set()
        for version in place.match.through:
            index = int(version.split("@")[1]) - 1
            users = [n for n in block.uses(version) if n not in inside and block.index_of(n) not in removed]
            if index not in removed and not users and version not in kept:
                more.add(index)
        if not more:
            return removed
        removed |= more


def _needed(place: Place) -> set[str]:
    """Versions that the new call reads."""
    match = place.match
    trees = [match.x, match.eps, *([match.weight] if match.weight is not None else [])]
    if match.cast is not None:
        trees += [*match.cast.args, *(k.value for k in match.cast.keywords)]
    return set().union(*(variables(tree) for tree in trees))


def _blocked(block: Block, function: cst.FunctionDef, place: Place) -> str | None:
    """Why the call cannot stand in the place of the expression."""
    removed, index = _removable(place), block.index_of(place.node)
    for version in _needed(place):
        name = version.split("@")[0]
        if "@" in version and block.visible(name, index, removed) != version:
            return f"{name} has another value by the time the result is computed"
    first = min([int(version.split("@")[1]) - 1 for version in place.match.through], default=index)
    for node in block.statements[first : index + 1]:
        for written, how in blocks.writes(node):
            return f"{block.source.code(written)} {how} on the way"
    return None


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    places = [p for p in _places(unit) if isinstance(p, Place) and _key(unit, p.node) in wanted]
    if len(places) != len(wanted):
        raise ValueError(f"{unit.path}: a site is not there any more: find the sites again")
    functional = next((k for k, v in unit.source.imports.items() if v == "torch.nn.functional"), None)
    if functional is None:
        edits.need_import("torch")
    for place in places:
        for index in sorted(_removable(place)):
            edits.remove(place.block.statements[index])
        edits.replace(place.node, _call(place.match, functional or "torch.nn.functional"))


def _call(match: Match, functional: str) -> str:
    x, eps = plain(match.x), plain(match.eps)
    weight = plain(match.weight) if match.weight is not None else "None"
    back = match.rounded_before_weight or (match.cast is not None and match.weight is None)
    if match.wide and not back:  # the caller sees the float32 result, or casts it after the weight
        call = f"{functional}.rms_norm({x}.float(), ({x}.shape[-1],), {weight}, {eps})"
    else:
        call = f"{functional}.rms_norm({x}, ({x}.shape[-1],), {weight}, {eps})"
    if match.cast is not None and not back:
        assert isinstance(match.cast.func, ast.Attribute)
        arguments = [plain(a) for a in match.cast.args] + [f"{k.arg}={plain(k.value)}" for k in match.cast.keywords]
        call += f".{match.cast.func.attr}({', '.join(arguments)})"
    return call
