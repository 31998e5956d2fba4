"""One parsed Python file: nodes, their parents and lines, and what a dotted name means through the file's imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property, lru_cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

_TRIVIA = (
    cst.BaseParenthesizableWhitespace,
    cst.EmptyLine,
    cst.TrailingWhitespace,
    cst.Comment,
    cst.Newline,
    cst.Comma,
    cst.LeftParen,
    cst.RightParen,
    cst.Semicolon,
)


class Unparsable(ValueError):
    """The text is not Python that LibCST can read."""


@lru_cache(maxsize=1 << 18)
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """The node's children that are more than white space, remembered: LibCST collects them anew at every call."""
    return tuple(child for child in node.children if not isinstance(child, _TRIVIA))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all its descendants but white space, in source order."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


def flat(text: str) -> str:
    """An expression's text without comments, line breaks and redundant parentheses, for comparison."""
    return ast.unparse(ast.parse(f"({text.strip()})", mode="eval"))


class Source:
    """A parsed file. Nodes are compared by identity; one text is parsed once per process (`parse`)."""

    def __init__(self, text: str) -> None:
        try:
            self.module = cst.parse_module(text)
        except cst.ParserSyntaxError as error:
            raise Unparsable(f"line {error.raw_line}: {error.message}") from error
        self.text = text

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """Child -> parent, for every node but the module."""
        return {child: node for node in walk(self.module) for child in children(node)}

    @cached_property
    def _ranges(self) -> dict[cst.CSTNode, CodeRange]:
        ranges = MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)
        return {node: found for node, found in ranges.items() if isinstance(found, CodeRange)}

    def line(self, node: cst.CSTNode) -> int:
        """Line on which the node starts, from 1."""
        return self._ranges[node].start.line

    def code(self, node: cst.CSTNode) -> str:
        """The node's text as it stands."""
        return self.module.code_for_node(node)

    def canonical(self, node: cst.BaseExpression) -> str:
        """The expression's text without formatting: equal texts are equal expressions."""
        return flat(self.code(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Parent, grandparent, ... up to the module."""
        while (node := self.parents.get(node, self.module)) is not self.module:
            yield node
        yield self.module

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around the node."""
        return next((n for n in self.ancestors(node) if isinstance(n, cst.FunctionDef)), None)

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name it stands for, from all import statements: `F` -> `torch.nn.functional`."""
        table: dict[str, str] = {}
        for node in walk(self.module):
            if isinstance(node, cst.Import):
                for alias in node.names:
                    dotted = _dotted(alias.name)
                    if alias.asname and isinstance(alias.asname.name, cst.Name):
                        table[alias.asname.name.value] = dotted
                    else:
                        table[dotted.split(".")[0]] = dotted.split(".")[0]
            elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
                origin = "." * len(node.relative) + (_dotted(node.module) if node.module else "")
                for alias in node.names:
                    name = _dotted(alias.name)
                    local = (
                        alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else name
                    )
                    table[local] = f"{origin}.{name}" if not origin.endswith(".") else origin + name
        return table

    def dotted(self, node: cst.BaseExpression) -> str | None:
        """The imported thing an expression names: `F.linear` -> `torch.nn.functional.linear`; None for anything else.

        A name that the enclosing function binds itself is not the imported one.
        """
        parts: list[str] = []
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            parts.append(root.attr.value)
            root = root.value
        if not isinstance(root, cst.Name) or root.value not in self.imports:
            return None
        function = self.function_of(node) if node in self.parents else None
        if function is not None and root.value in bound_names(function):
            return None
        return ".".join([self.imports[root.value], *reversed(parts)])

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """Functions at the top level of the file, by name."""
        return {n.name.value: n for n in self.module.body if isinstance(n, cst.FunctionDef)}

    @cached_property
    def names(self) -> frozenset[str]:
        """Every identifier in the file, so that a new one can be chosen beside them."""
        return frozenset(n.value for n in walk(self.module) if isinstance(n, cst.Name))

    def fresh(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where the file already uses it."""
        name, number = wanted, 2
        while name in self.names:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def symbol(self, node: cst.CSTNode) -> str:
        """`Class.method` around the node."""
        scopes = [node, *self.ancestors(node)]
        names = [n.name.value for n in scopes if isinstance(n, (cst.FunctionDef, cst.ClassDef))]
        return ".".join(reversed(names)) or "module"


@lru_cache(maxsize=1024)
def parse(text: str) -> Source:
    """The parsed file. Raises `Unparsable`."""
    return Source(text)


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def target_names(target: cst.BaseExpression) -> Iterator[str]:
    """Names that an assignment target binds: `a`, `(a, b)`, `[a, *b]`; not `a.x` or `a[i]`."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from target_names(element.value)


_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr, cst.Del)


def bindings(node: cst.CSTNode) -> Iterator[str]:
    """Names that running the node binds or deletes, in nested blocks too. Nested functions bind their own name only."""
    if isinstance(node, _BINDING):
        yield from target_names(node.target)
    elif isinstance(node, cst.AsName):
        yield from target_names(node.name)
    elif isinstance(node, cst.ImportAlias) and not node.asname:
        yield _dotted(node.name).split(".")[0]
    elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        yield node.name.value
        return
    elif isinstance(node, (cst.MatchAs, cst.MatchStar, cst.MatchMapping)):
        captured = node.rest if isinstance(node, cst.MatchMapping) else node.name
        if captured is not None:
            yield captured.value
    for child in children(node):
        yield from bindings(child)


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """All parameters in order, `*args` and `**kwargs` last."""
    listed = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    starred = [p for p in (function.params.star_arg, function.params.star_kwarg) if isinstance(p, cst.Param)]
    return [*listed, *starred]


@lru_cache(maxsize=4096)
def bound_names(function: cst.FunctionDef) -> frozenset[str]:
    """Names local to the function: parameters and whatever its body binds."""
    return frozenset([p.name.value for p in parameters(function)]) | frozenset(bindings(function.body))


@lru_cache(maxsize=4096)
def reads_of(function: cst.FunctionDef) -> frozenset[str]:
    """Every variable that the function's body names (no attribute names, no keywords of calls)."""
    return frozenset(variable_names(function.body))


def variable_names(node: cst.CSTNode) -> Iterator[str]:
    """Every variable that the node names: no attribute names, no keywords of calls, no imports."""
    if isinstance(node, (cst.Import, cst.ImportFrom)):
        return
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Attribute, cst.Arg)):
        yield from variable_names(node.value)
    else:
        for child in children(node):
            yield from variable_names(child)
