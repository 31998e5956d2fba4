"""Recognises a root mean square normalisation that is written out, through any number of intermediate variables.

Squares by pow, `**`, product or square; the inverse root by rsqrt, 1/sqrt, a power of -0.5, or a division by the root;
the mean in float32; the result cast back before or after the weight; weights like `1 + w`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from skeletons.codemods.ssa import Block, same, variables

FLOAT32 = ("torch.float32", "torch.float")


class NotThis(Exception):
    """The expression looks like a normalisation and is not one; the text says why."""


@dataclass
class Match:
    """x, weight and eps as versioned trees; `wide`: x was cast to float32; `cast`: a cast around everything."""

    x: ast.expr
    eps: ast.expr
    wide: bool
    weight: ast.expr | None = None
    rounded_before_weight: bool = False
    cast: ast.Call | None = None
    through: set[str] = field(default_factory=set)


def uses_root(block: Block, tree: ast.expr) -> bool:
    """Whether the expression or a variable in it comes from a square root (a cheap test)."""
    seen: set[str] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr in ("rsqrt", "sqrt"):
                return True
            if isinstance(inner, ast.Constant) and inner.value == 0.5:
                return True
            if isinstance(inner, ast.Name) and inner.id in block.definitions and inner.id not in seen:
                seen.add(inner.id)
                todo.append(block.tree(block.definitions[inner.id]))
    return False


class Reader:
    """Reads one expression against the definitions of its block, remembering the variables it looked through."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.through: set[str] = set()
        self.squared: set[str] = set()  # variables of the normalised tensor

    def open(self, node: ast.expr) -> ast.expr:
        """What a variable stands for, when it is assigned once in the block."""
        while isinstance(node, ast.Name) and node.id in self.block.definitions:
            self.through.add(node.id)
            node = self.block.tree(self.block.definitions[node.id])
        return node

    def method(self, node: ast.expr, *names: str) -> tuple[ast.expr, list[ast.expr], dict[str, ast.expr]] | None:
        """(subject, arguments, keywords) of `subject.name(...)` or `torch.name(subject, ...)`."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in names:
            return None
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        owner = node.func.value
        if isinstance(owner, ast.Name) and self.block.source.imports.get(owner.id.split("@")[0]) == "torch":
            return (node.args[0], node.args[1:], keywords) if node.args else None
        return owner, node.args, keywords

    def cast(self, node: ast.expr) -> tuple[ast.expr, bool] | None:
        """(what is cast, whether to float32) of a cast."""
        if (found := self.method(node, "float")) and not found[1]:
            return found[0], True
        found = self.method(node, "to", "type", "type_as", "bfloat16", "half")
        if found is None or len(found[1]) + len(found[2]) > 1:
            return None
        given = [*found[1], *found[2].values()]
        wide = bool(given) and ast.unparse(self.open(given[0])).replace("@0", "") in FLOAT32
        return found[0], wide

    def square(self, node: ast.expr) -> ast.expr | None:
        node = self.open(node)
        if (found := self.method(node, "square")) and not found[1]:
            return found[0]
        if (found := self.method(node, "pow")) and len(found[1]) == 1 and _number(found[1][0]) == 2:
            return found[0]
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow) and _number(node.right) == 2:
                return node.left
            if isinstance(node.op, ast.Mult) and same(node.left, node.right):
                return node.left
        return None

    def mean_square(self, node: ast.expr) -> ast.expr | None:
        """x of mean(x^2, -1, keepdim=True). Raises `NotThis` when it is a mean of squares over something else."""
        found = self.method(self.open(node), "mean")
        if found is None:
            return None
        squared = self.square(found[0])
        if squared is None:
            return None
        given = dict(zip(("dim", "keepdim"), found[1], strict=False)) | found[2]
        if _axis(given.get("dim")) != -1:
            raise NotThis("the mean of squares is not taken over the last axis alone")
        if _number(given.get("keepdim")) is not True:
            raise NotThis("the mean of squares does not keep its axis")
        return squared

    def root(self, node: ast.expr) -> tuple[ast.expr, ast.expr, bool] | None:
        """(x, eps, inverse) of (mean(x^2) + eps) under a square root, or under an inverse one."""
        node = self.open(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _number(node.left) == 1:
            inner = self.root(node.right)
            return (inner[0], inner[1], True) if inner and not inner[2] else None
        under, inverse = None, False
        if (found := self.method(node, "rsqrt", "sqrt")) and not found[1]:
            assert isinstance(node, ast.Call)
            assert isinstance(node.func, ast.Attribute)
            under, inverse = found[0], node.func.attr == "rsqrt"
        elif (found := self.method(node, "pow")) and len(found[1]) == 1 and abs(_number(found[1][0]) or 0) == 0.5:
            under, inverse = found[0], _number(found[1][0]) == -0.5
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and abs(_number(node.right) or 0) == 0.5:
            under, inverse = node.left, _number(node.right) == -0.5
        if under is None:
            return None
        under = self.open(under)
        if not isinstance(under, ast.BinOp) or not isinstance(under.op, ast.Add):
            if self.mean_square(under) is not None:
                raise NotThis("nothing is added to the mean of squares")
            return None
        for mean, eps in ((under.left, under.right), (under.right, under.left)):
            squared = self.mean_square(mean)
            if squared is not None:
                return squared, eps, inverse
        return None

    def normalised(self, node: ast.expr) -> tuple[ast.expr, ast.expr, bool] | None:
        """(x, eps, wide) of x * rsqrt(mean(x^2) + eps)."""
        node = self.open(node)
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
            return None
        sides = [(node.left, node.right)]
        if isinstance(node.op, ast.Mult):
            sides.append((node.right, node.left))
        for scaled, factor in sides:
            inner = self.open(factor)
            cast = self.cast(inner)
            found = self.root(cast[0] if cast else inner)
            if found is None or found[2] != isinstance(node.op, ast.Mult):
                continue
            squared, eps, _ = found
            x, wide = self._uncast(squared)
            y, wide_too = self._uncast(scaled)
            if not same(x, y):
                raise NotThis("one tensor is squared and another one is scaled")
            self.squared = variables(x)
            return x, eps, wide or wide_too
        return None

    def is_weight(self, node: ast.expr) -> bool:
        """Whether a factor can be a weight of one axis: made of attributes of the instance, or of a function's
        arguments.

        A tensor computed in the block (a gate, say) has the input's axes, which the library's weight may not have.
        """
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                name, _, number = inner.id.partition("@")
                if name not in self.block.source.imports and (number != "0" or inner.id in self.squared):
                    return False
        return True

    def _uncast(self, node: ast.expr) -> tuple[ast.expr, bool]:
        """What stands under casts to float32, opened only as far as there are casts."""
        opened = node
        before = set(self.through)
        if isinstance(node, ast.Name):
            opened = self.open(node)
        cast = self.cast(opened)
        if cast is not None and cast[1]:
            return self._uncast(cast[0])[0], True
        self.through = before
        return node, False


def normalisation(block: Block, tree: ast.expr) -> Match | None:
    """The normalisation an expression is, with weight and casts as far as they are part of it; None when it is none."""
    reader = Reader(block)
    node = reader.open(tree)
    cast = reader.cast(node)
    if cast is not None and not cast[1]:
        inner = _scaled(reader, cast[0])
        if inner is not None:
            assert isinstance(node, ast.Call)
            inner.cast, inner.through = node, reader.through
            return inner
    found = _scaled(reader, node)
    if found is not None:
        found.through = reader.through
    return found


def _scaled(reader: Reader, node: ast.expr) -> Match | None:
    plain_form = reader.normalised(node)
    if plain_form is not None:
        return Match(*plain_form)
    node = reader.open(node)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for inside, weight in ((node.left, node.right), (node.right, node.left)):
        before = set(reader.through)
        inner = reader.open(inside)
        cast = reader.cast(inner)
        rounded = cast is not None and not cast[1]
        found = reader.normalised(cast[0] if cast else inner)
        if found is not None and reader.is_weight(weight):
            return Match(*found, weight=weight, rounded_before_weight=rounded)
        reader.through = before
    return None


def _number(node: ast.expr | None) -> float | bool | None:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return value if isinstance(value, (int, float, bool)) else None


def _axis(node: ast.expr | None) -> float | None:
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == 1:
        node = node.elts[0]
    return _number(node)
