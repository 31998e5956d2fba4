"""A tensor that grows by concatenation is allocated with room to grow.

Concatenating copies everything that is there already, so n rounds copy n^2 / 2 pieces. Three forms. `collect`:
nothing in the loop reads the growing tensor, so the pieces are collected and joined once, whatever their sizes.
`slice`: the loop reads it, and the number of rounds and the size of a piece are known: the final size is allocated
before the loop, and each round writes its piece and looks at the part filled so far. `spare`: no bound is in sight (a
while loop, pieces of any size, an attribute that grows
from call to call): room is doubled whenever it is used up, so that n rounds copy fewer than 2 n pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.edits import Edits, only
from skeletons.codemods.purity import Judge
from skeletons.codemods.search import Unit, edit, fresh_in, search
from skeletons.codemods.source import bindings, target_names, walk
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = ("torch.cat", "torch.concat", "cat(")
SPARE = '''\
def NAME(grown, piece, axis):
    """`torch.cat((grown, piece), axis)` in the room that an earlier result left behind itself.

    The result is a view. Room is used once: only the latest result may grow in place, every other tensor is copied.
    """
    plain = grown.dim() == piece.dim() and grown.dtype == piece.dtype and grown.device == piece.device
    if not plain or (torch.is_grad_enabled() and (grown.requires_grad or piece.requires_grad)):
        return torch.cat((grown, piece), axis)
    filled, wanted = grown.shape[axis], grown.shape[axis] + piece.shape[axis]
    room = getattr(grown, "_room", None)
    if room is None or room._filled != filled or room.shape[axis] < wanted:
        shape = list(grown.shape)
        shape[axis] = 2 * wanted
        room = grown.new_empty(shape)
        room.narrow(axis, 0, filled).copy_(grown)
    room.narrow(axis, filled, wanted - filled).copy_(piece)
    room._filled = wanted
    grown = room.narrow(axis, 0, wanted)
    grown._room = room
    return grown
'''
CONCATENATES = ("torch.cat", "torch.concat", "torch.concatenate")


@dataclass(frozen=True)
class Growth:
    """`name = cat((name, *pieces), dim)` at `line`, in a function."""

    function: cst.FunctionDef
    line: cst.SimpleStatementLine
    call: cst.Call
    name: str
    pieces: tuple[cst.BaseExpression, ...]
    dim: cst.BaseExpression | None


@dataclass(frozen=True)
class Place:
    """A growth with the loop it happens in and how it is cured."""

    growth: Growth
    form: str
    loop: cst.For | cst.While | None = None
    rounds: cst.BaseExpression | None = None
    axis: int = 0


HOW = {
    "collect": "the pieces are joined once",
    "slice": "its final size is known before the loop",
    "spare": "room to grow is doubled when it is used up",
}


class NotThis(Exception):
    """Why a growth has to stay."""


def find(view: TargetView) -> list[Site | Decline]:
    """Tensors that grow by concatenation in a loop."""
    return search(view, _find, MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Allocate each once."""
    return edit(view, sites, _edit)


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for item in _places(unit):
        if isinstance(item, Decline):
            yield item
            continue
        assumes = (
            () if item.form == "collect" else ("nothing needs the grown tensor to be contiguous, or its own copy",)
        )
        if item.form == "slice":
            assumes = (*assumes, "the pieces have the type of the tensor they are appended to")
        yield unit.site(
            item.growth.line,
            f"{item.growth.name} grows by concatenation; {HOW[item.form]}",
            assumes=assumes,
            payload=_key(unit, item),
        )


def _key(unit: Unit, item: Place) -> tuple[str, ...]:
    return (unit.source.symbol(item.growth.line), item.growth.name, str(unit.source.line(item.growth.line)))


def _places(unit: Unit) -> Iterator[Place | Decline]:
    for function in (n for n in walk(unit.source.module) if isinstance(n, cst.FunctionDef)):
        for node in walk(function.body):
            growth = _growth(unit, function, node)
            if isinstance(growth, Decline):
                yield growth
            elif growth is not None and unit.source.function_of(node) is function:
                try:
                    yield _place(unit, growth)
                except NotThis as reason:
                    yield unit.decline(node, str(reason))


def _growth(unit: Unit, function: cst.FunctionDef, node: cst.CSTNode) -> Growth | Decline | None:
    if not isinstance(node, cst.SimpleStatementLine):
        return None
    small = only(node)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1 or not isinstance(small.value, cst.Call):
        return None
    call, target = small.value, small.targets[0].target
    if unit.source.dotted(call.func) not in CONCATENATES or not call.args:
        return None
    given = {
        ("tensors", "dim")[i] if a.keyword is None else a.keyword.value: a.value for i, a in enumerate(call.args[:2])
    }
    parts = given.get("tensors")
    if not isinstance(parts, (cst.Tuple, cst.List)) or len(parts.elements) < 2:
        return None
    values = [e.value for e in parts.elements if isinstance(e, cst.Element)]
    mine = unit.source.canonical(target) if isinstance(target, (cst.Name, cst.Attribute)) else None
    grown = [i for i, value in enumerate(values) if mine is not None and unit.source.canonical(value) == mine]
    if not grown or len(values) != len(parts.elements):
        return None
    looped = any(isinstance(n, (cst.For, cst.While)) for n in unit.source.ancestors(node))
    if not looped and isinstance(target, cst.Name):
        return None
    if grown != [0]:
        return unit.decline(node, f"{mine} is not at the front of what is joined")
    assert mine is not None
    return Growth(function, node, call, mine, tuple(values[1:]), given.get("dim"))


def _place(unit: Unit, growth: Growth) -> Place:
    """The loop and the form of the cure. Raises `NotThis`."""
    source, name = unit.source, growth.name
    if "." in name:
        return _spare(unit, growth, "")
    loops = [n for n in source.ancestors(growth.line) if isinstance(n, (cst.For, cst.While))]
    if _bound(loops[0], name) > 1:
        raise NotThis(f"{name} is bound more than once in the loop")
    shared = blocks.aliases(growth.function, name)
    for written, how in blocks.writes(loops[0]):
        if blocks.root_name(written) in shared:
            raise NotThis(f"{source.code(written)} {how} in the loop")
    collecting = None
    for loop in loops:  # the outermost in which nothing else concerns the tensor
        if _bound(loop, name) > 1 or _read(unit, growth, loop):
            break
        collecting = loop
    if collecting is not None:
        return Place(growth, "collect", collecting)
    try:
        return _sliced(unit, growth, loops[0])
    except NotThis as reason:
        return _spare(unit, growth, str(reason))


def _bound(loop: cst.CSTNode, name: str) -> int:
    return sum(bound == name for bound in bindings(loop))


def _read(unit: Unit, growth: Growth, loop: cst.CSTNode) -> bool:
    """Whether anything in the loop but the concatenation reads the growing tensor."""
    if any(read.value == growth.name for piece in growth.pieces for read in blocks.reads(piece)):
        return True
    readers = (read for read in blocks.reads(loop) if read.value == growth.name)
    return any(growth.call not in unit.source.ancestors(read) for read in readers)


def _sliced(unit: Unit, growth: Growth, loop: cst.For | cst.While) -> Place:
    source, name = unit.source, growth.name
    if blocks.suite_of(source, growth.line) is not loop.body:
        raise NotThis(f"the loop reads {name}, and it does not grow exactly once a round")
    if not isinstance(loop, cst.For):
        raise NotThis(f"the loop reads {name}, and a while loop has no known number of rounds")
    rounds = _rounds(unit, growth.function, loop)
    axis = _axis(growth.dim)
    if axis is None or len(growth.pieces) != 1 or not _one_long(unit, growth, loop, growth.pieces[0], axis):
        raise NotThis(f"the loop reads {name}, and the size of a piece is not known")
    _looked_at(unit, growth)
    return Place(growth, "slice", loop, rounds, axis)


def _spare(unit: Unit, growth: Growth, no_bound: str) -> Place:
    """The form that needs no bound.

    Raises `NotThis`, with the reason why there is no bound where the place itself is fit.
    """
    axis = _axis(growth.dim)
    if axis is None or len(growth.pieces) != 1:
        raise NotThis(no_bound or f"the axis or the pieces by which {growth.name} grows are not written out")
    _looked_at(unit, growth)
    if "." in growth.name:
        attribute = growth.name.rpartition(".")[2]
        for written, how in blocks.writes(unit.source.module):
            text = unit.source.code(written)
            if f".{attribute}" in text:
                raise NotThis(f"{text} {how} elsewhere: an older part of it may be looked at")
    return Place(growth, "spare", axis=axis)


def _looked_at(unit: Unit, growth: Growth) -> None:
    """Raises `NotThis` when the file needs the tensor contiguous."""
    for node in walk(unit.source.module if "." in growth.name else growth.function.body):
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            continue
        if node.func.attr.value in ("view", "data_ptr") and unit.source.code(node.func.value) == growth.name:
            raise NotThis(f"{growth.name} has to be contiguous for {unit.source.code(node)}")


def _rounds(unit: Unit, function: cst.FunctionDef, loop: cst.For) -> cst.BaseExpression:
    """The n of `for ... in range(n)`. Raises `NotThis`."""
    call = loop.iter
    if (
        not isinstance(call, cst.Call)
        or not isinstance(call.func, cst.Name)
        or call.func.value != "range"
        or len(call.args) != 1
    ):
        raise NotThis("the loop reads the growing tensor, and its number of rounds is not known: it is no range(n)")
    rounds = call.args[0].value

    def fixed(node: cst.BaseExpression) -> str | None:
        return None

    if (problem := Judge(unit.source).judge(rounds, fixed).problem) is not None:
        raise NotThis(f"the number of rounds cannot be computed twice: {problem}")
    return rounds


def _axis(dim: cst.BaseExpression | None) -> int | None:
    if dim is None:
        return 0
    if (
        isinstance(dim, cst.UnaryOperation)
        and isinstance(dim.operator, cst.Minus)
        and isinstance(dim.expression, cst.Integer)
    ):
        return -int(dim.expression.value)
    return int(dim.value) if isinstance(dim, cst.Integer) else None


def _one_long(unit: Unit, growth: Growth, loop: cst.For, piece: cst.BaseExpression, axis: int) -> bool:
    """Whether the piece is one long along the axis: it was given that axis by unsqueeze or by None."""
    if isinstance(piece, cst.Name):
        made = [
            s.value
            for n in walk(loop.body)
            if isinstance(n, cst.SimpleStatementLine) and isinstance(s := only(n), cst.Assign)
            if piece.value in set(target_names(s.targets[0].target))
        ]
        return len(made) == 1 and not isinstance(made[0], cst.Name) and _one_long(unit, growth, loop, made[0], axis)
    if isinstance(piece, cst.Call) and isinstance(piece.func, cst.Attribute):
        if piece.func.attr.value == "unsqueeze" and len(piece.args) == 1:
            return _axis(piece.args[0].value) == axis
        if piece.func.attr.value in ("argmax", "argmin", "amax", "sum", "mean"):
            given = {
                a.keyword.value if a.keyword else ("dim", "keepdim")[min(i, 1)]: a.value
                for i, a in enumerate(piece.args)
            }
            keeps = isinstance(given.get("keepdim"), cst.Name) and unit.source.code(given["keepdim"]) == "True"
            return keeps and "dim" in given and _axis(given["dim"]) == axis
    if isinstance(piece, cst.Subscript):
        new = [
            i
            for i, e in enumerate(piece.slice)
            if isinstance(e.slice, cst.Index) and isinstance(e.slice.value, cst.Name) and e.slice.value.value == "None"
        ]
        whole = all(isinstance(e.slice, cst.Slice) for i, e in enumerate(piece.slice) if i not in new)
        return whole and new == [axis]
    return False


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    wanted = {site.payload for site in sites}
    places = [item for item in _places(unit) if isinstance(item, Place) and _key(unit, item) in wanted]
    if len(places) != len(wanted):
        raise ValueError(f"{unit.path}: a site is not there any more: find the sites again")
    for item in places:
        {"collect": _collect, "slice": _slice, "spare": _leave_room}[item.form](unit, item, edits)


def _leave_room(unit: Unit, item: Place, edits: Edits) -> None:
    growth, code = item.growth, unit.source.code
    edits.need_import("torch")
    ancestors = [growth.line, *unit.source.ancestors(growth.line)]
    top = next(n for n in ancestors if unit.source.parents.get(n) is unit.source.module)
    helper = edits.helper("_append", SPARE, top)
    edits.replace(growth.call, f"{helper}({growth.name}, {code(growth.pieces[0]).strip()}, {item.axis})")


def _collect(unit: Unit, item: Place, edits: Edits) -> None:
    growth, code = item.growth, unit.source.code
    pieces = fresh_in(growth.function, f"{growth.name}_pieces")
    joined = growth.call.with_changes(
        args=[growth.call.args[0].with_changes(value=cst.Name(pieces)), *growth.call.args[1:]]
    )
    small = only(growth.line)
    assert small is not None
    added = ", ".join(code(piece).strip() for piece in growth.pieces)
    append = f"{pieces}.append({added})" if len(growth.pieces) == 1 else f"{pieces}.extend(({added}))"
    edits.replace(small, cst.Expr(cst.parse_expression(append)))
    assert item.loop is not None
    edits.before(item.loop, f"{pieces} = [{growth.name}]")
    edits.after(item.loop, f"{growth.name} = {code(joined)}")


def _slice(unit: Unit, item: Place, edits: Edits) -> None:
    growth, code, name, axis = item.growth, unit.source.code, item.growth.name, item.axis
    buffer = fresh_in(growth.function, f"{name}_buffer")
    filled = fresh_in(growth.function, f"{name}_filled")
    size = fresh_in(growth.function, f"{name}_size")
    assert item.rounds is not None
    assert item.loop is not None
    rounds = code(item.rounds).strip()
    edits.before(
        item.loop,
        f"{filled} = {name}.shape[{axis}]",
        f"{size} = list({name}.shape)",
        f"{size}[{axis}] += {rounds}",
        f"{buffer} = {name}.new_empty({size})",
        f"{buffer}.narrow({axis}, 0, {filled}).copy_({name})",
        f"{name} = {buffer}.narrow({axis}, 0, {filled})",
    )
    edits.before(
        growth.line,
        f"{buffer}.narrow({axis}, {filled}, 1).copy_({code(growth.pieces[0]).strip()})",
        f"{filled} += 1",
        f"{name} = {buffer}.narrow({axis}, 0, {filled})",
    )
    edits.remove(growth.line)
