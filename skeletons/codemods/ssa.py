"""Versions of the variables of one block: which assignment a read sees.

Statements of the block are numbered from 0. `x@0` is what `x` was when the block began, `x@k` what statement k - 1
assigned. A compound statement that binds `x` somewhere inside gives it a version without a definition.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from skeletons.codemods import blocks
from skeletons.codemods.edits import only
from skeletons.codemods.source import Source, bindings, walk


class Block:
    """One indented block, in static single assignment form."""

    def __init__(self, source: Source, suite: cst.IndentedBlock) -> None:
        self.source, self.suite = source, suite
        self.statements = list(suite.body)
        self.definitions: dict[str, cst.BaseExpression] = {}
        self.version: dict[cst.Name, str] = {}
        self._visible: list[dict[str, str]] = []
        current: dict[str, str] = {}
        for index, statement in enumerate(self.statements):
            self._visible.append(dict(current))
            for read in blocks.reads(statement):
                self.version[read] = current.get(read.value, f"{read.value}@0")
            for name in bindings(statement):
                current[name] = f"{name}@{index + 1}"
            small = only(statement)
            if isinstance(small, (cst.Assign, cst.AnnAssign)) and small.value is not None:
                targets = [small.target] if isinstance(small, cst.AnnAssign) else [t.target for t in small.targets]
                if len(targets) == 1 and isinstance(targets[0], cst.Name):
                    self.definitions[current[targets[0].value]] = small.value

    def index_of(self, node: cst.CSTNode) -> int:
        """The statement of the block that the node stands in."""
        while self.source.parents.get(node) is not self.suite:
            node = self.source.parents[node]
        return self.statements.index(node)  # type: ignore[arg-type]

    def visible(self, name: str, index: int, removed: set[int]) -> str:
        """The version that statement `index` sees when the statements in `removed` are gone."""
        for earlier in range(index - 1, -1, -1):
            if earlier not in removed and name in set(bindings(self.statements[earlier])):
                return f"{name}@{earlier + 1}"
        return f"{name}@0"

    def uses(self, version: str) -> list[cst.Name]:
        """Reads of a version in the block. A read inside a compound statement that binds the variable too counts."""
        return self._uses.get(version, [])

    @cached_property
    def _uses(self) -> dict[str, list[cst.Name]]:
        table: dict[str, list[cst.Name]] = defaultdict(list)
        for node, version in self.version.items():
            table[version].append(node)
            index = self.index_of(node)
            if node.value in set(bindings(self.statements[index])) and only(self.statements[index]) is None:
                table[f"{node.value}@{index + 1}"].append(node)
        return table

    def escapes(self, name: str, function: cst.FunctionDef) -> bool:
        """Whether the variable is read outside the block, or by a later round of a loop around it."""
        inside = set(walk(self.suite))
        if any(read.value == name and read not in inside for read in blocks.reads(function.body)):
            return True
        looped = isinstance(self.source.parents[self.suite], (cst.For, cst.While))
        return looped and any(version == f"{name}@0" for version in self.version.values())

    def tree(self, node: cst.BaseExpression) -> ast.expr:
        """The expression as a Python syntax tree whose variables carry their version in their name."""
        parsed = ast.parse(f"({self.source.code(node).strip()})", mode="eval").body
        names = [n for n in walk(node) if isinstance(n, cst.Name) and n in self.version]
        versions = iter(self.version[n] for n in names)
        for found in _names_in_order(parsed):
            found.id = next(versions, found.id)
        return parsed


def _names_in_order(tree: ast.expr) -> Iterator[ast.Name]:
    yield from sorted((n for n in ast.walk(tree) if isinstance(n, ast.Name)), key=lambda n: (n.lineno, n.col_offset))


class _Strip(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(node.id.split("@")[0], node.ctx), node)


def plain(tree: ast.expr) -> str:
    """The expression's text, versions left out."""
    return ast.unparse(_Strip().visit(copy.deepcopy(tree)))


def variables(tree: ast.expr) -> set[str]:
    """Versioned variables of an expression."""
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def same(one: ast.expr, other: ast.expr) -> bool:
    """Whether two expressions are equal, versions included."""
    return ast.dump(one) == ast.dump(other)
