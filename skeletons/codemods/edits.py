"""Edits to a parsed file: nodes replaced, statements put before or after others, helpers and imports added.

The rest keeps its formatting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from skeletons.codemods.source import Source, variable_names

Replacement = cst.CSTNode | Callable[[cst.CSTNode], cst.CSTNode]


class Edits:
    """Collects edits to one file; `text()` applies them all. Nodes are those of `source`, by identity."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._replaced: dict[cst.CSTNode, Replacement] = {}
        self._removed: set[cst.CSTNode] = set()
        self._before: dict[cst.CSTNode, list[cst.BaseStatement]] = defaultdict(list)
        self._after: dict[cst.CSTNode, list[cst.BaseStatement]] = defaultdict(list)
        self._helpers: dict[str, tuple[cst.CSTNode, str]] = {}
        self._imports: list[str] = []

    def replace(self, node: cst.CSTNode, new: Replacement | str) -> None:
        """Put `new` in the place of an expression or statement: a node, an expression's text, or a function of the
        node as edited inside."""
        self._replaced[node] = cst.parse_expression(new) if isinstance(new, str) else new

    def remove(self, statement: cst.CSTNode) -> None:
        """Take a statement out. Its leading comments go with it, unless something is put before it."""
        self._removed.add(statement)

    def before(self, statement: cst.CSTNode, *texts: str) -> None:
        """Statements to run just before `statement`, in the same block."""
        self._before[statement] += [cst.parse_statement(text, self.source.module.config_for_parsing) for text in texts]

    def move(self, statement: cst.BaseStatement, place: cst.CSTNode) -> None:
        """Put a statement, with its comments, just before another one."""
        self.remove(statement)
        self._before[place].append(statement)

    def after(self, statement: cst.CSTNode, *texts: str) -> None:
        """Statements to run just after `statement`, in the same block."""
        self._after[statement] += [cst.parse_statement(text, self.source.module.config_for_parsing) for text in texts]

    def helper(self, name: str, text: str, before: cst.CSTNode) -> str:
        """A module-level function put before the top-level statement around `before`; returns the name it got.

        `text` has `NAME` where its own name stands. A helper with the same text that the file already has is used
        again.
        """
        for existing, function in self.source.functions.items():
            if _same(self.source.code(function), text.replace("NAME", existing)):
                return existing
        chosen = self.source.fresh(name)
        top = before
        for node in self.source.ancestors(before):
            if node is self.source.module:
                break
            top = node
        if chosen in self._helpers:
            order = list(self.source.module.body)
            top = min(top, self._helpers[chosen][0], key=order.index)  # type: ignore[arg-type]
        self._helpers[chosen] = (top, text.replace("NAME", chosen))
        return chosen

    def need_import(self, module: str) -> None:
        """`import module`, unless the file has it."""
        if self.source.imports.get(module) != module and module not in self._imports:
            self._imports.append(module)

    def text(self) -> str:
        """The edited file."""
        module = self.source.module.visit(_Apply(self))
        assert isinstance(module, cst.Module)
        edited = self._without_idle_imports(self._with_imports(module)).code
        return folded(edited, set(self.source.text.split("\n")))

    def _without_idle_imports(self, module: cst.Module) -> cst.Module:
        """Imports that were used before the edits and are not any more go out."""
        before, after = set(variable_names(self.source.module)), set(variable_names(module))
        body: list[Any] = []
        lines: Any = ()
        for statement in module.body:
            if lines and _is_import(statement):
                statement = statement.with_changes(leading_lines=[*lines, *statement.leading_lines])  # type: ignore
            lines = ()
            if (name := _imported_as(statement)) and name in before and name not in after:
                lines = statement.leading_lines  # type: ignore[union-attr]
            else:
                body.append(statement)
        return module.with_changes(body=body)

    def _with_imports(self, module: cst.Module) -> cst.Module:
        body = list(module.body)
        for name in self._imports:
            place = next((i for i, s in enumerate(body) if _imports_from(s, name)), None)
            if place is None:
                kept = [i for i, s in enumerate(body) if _is_docstring(s, i) or _is_future(s)]
                place = kept[-1] + 1 if kept else 0
            new = cst.parse_statement(f"import {name}")
            if place < len(body):
                follower = body[place]
                if place and _is_import(follower):
                    new = new.with_changes(leading_lines=follower.leading_lines)  # type: ignore[union-attr]
                    body[place] = follower.with_changes(leading_lines=())
                elif place:
                    new = new.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            body.insert(place, new)
        return module.with_changes(body=body)


class _Apply(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self.e = edits
        self.helpers: dict[cst.CSTNode, list[str]] = defaultdict(list)
        for top, text in edits._helpers.values():
            self.helpers[top].append(text)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated: Any = super().on_leave(original_node, updated_node)
        if original_node in self.e._replaced:
            new = self.e._replaced[original_node]
            updated = new(updated) if callable(new) else _parenthesised(new, updated)
        before: list[Any] = list(self.e._before.get(original_node, ()))
        after = list(self.e._after.get(original_node, ()))
        keep = [] if original_node in self.e._removed else [updated]
        if before and hasattr(updated, "leading_lines"):
            lines = list(updated.leading_lines)
            # Blank lines stay on top. Comments stay with their statement, or go to what takes its place.
            split = next((i for i, line in enumerate(lines) if line.comment), len(lines)) if keep else len(lines)
            own = [line for line in before[0].leading_lines if line.comment]
            before[0] = before[0].with_changes(leading_lines=[*lines[:split], *own])
            keep = [node.with_changes(leading_lines=lines[split:]) for node in keep]
        if original_node in self.helpers:
            blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
            helpers = [
                cst.parse_statement(text).with_changes(leading_lines=blank) for text in self.helpers[original_node]
            ]
            kept = keep[0]
            if sum(line.comment is None for line in kept.leading_lines) < 2:
                kept = kept.with_changes(leading_lines=[*blank, *(n for n in kept.leading_lines if n.comment)])
            return cst.FlattenSentinel([*helpers, *before, kept, *after])
        if before or after or not keep:
            return cst.FlattenSentinel([*before, *keep, *after]) if before or keep or after else cst.RemoveFromParent()
        return updated


def _parenthesised(new: cst.CSTNode, old: cst.CSTNode) -> cst.CSTNode:
    """Keep the parentheses that stood around the replaced expression, which may hold it together over lines."""
    if isinstance(new, cst.BaseExpression) and isinstance(old, cst.BaseExpression) and old.lpar and not new.lpar:
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return new


def _same(one: str, other: str) -> bool:
    return one.strip() == other.strip()


def _is_docstring(statement: cst.CSTNode, index: int) -> bool:
    if index or not isinstance(statement, cst.SimpleStatementLine):
        return False
    return isinstance(statement.body[0], cst.Expr) and isinstance(statement.body[0].value, cst.SimpleString)


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], (cst.Import, cst.ImportFrom)
    )


def _imports_from(statement: cst.CSTNode, package: str) -> bool:
    """Whether a statement imports something of the package: `import package` belongs just before it."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    if isinstance(first, cst.Import):
        return any(_first_part(alias.name) == package for alias in first.names)
    return (
        isinstance(first, cst.ImportFrom)
        and not first.relative
        and first.module is not None
        and _first_part(first.module) == package
    )


def _imported_as(statement: cst.CSTNode) -> str:
    """The variable that `import a.b` or `import a as b` binds; empty for anything else."""
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Import):
        return ""
    names = statement.body[0].names
    local = names[0].asname.name if names[0].asname else names[0].name
    return _first_part(local) if len(names) == 1 and isinstance(local, cst.BaseExpression) else ""


def _first_part(name: cst.BaseExpression) -> str:
    while isinstance(name, cst.Attribute):
        name = name.value
    return name.value if isinstance(name, cst.Name) else ""


def _is_future(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.ImportFrom):
        return False
    module = statement.body[0].module
    return isinstance(module, cst.Name) and module.value == "__future__"


def only(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The single small statement on a line, None for compound statements and lines with several."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def joined_name(names: Sequence[str]) -> str:
    """One name for things that belong together: `q_proj, k_proj` -> `qk_proj`, `w_gate, w_up` -> `w_gate_up`."""
    parts = [name.strip("_").split("_") for name in names]
    shortest = min(len(p) for p in parts)
    head = next((i for i in range(shortest) if len({tuple(p[: i + 1]) for p in parts}) > 1), shortest)
    tail = next(
        (i for i in range(shortest - head) if len({tuple(p[len(p) - i - 1 :]) for p in parts}) > 1), shortest - head
    )
    middles = ["_".join(p[head : len(p) - tail]) for p in parts]
    if not all(middles):
        return "_".join(n.strip("_") for n in names)
    middle = "".join(middles) if all(len(m) == 1 for m in middles) else "_".join(middles)
    return "_".join(
        [*parts[0][:head], middle, *parts[0][len(parts[0]) - tail :]] if tail else [*parts[0][:head], middle]
    )


def folded(text: str, known: set[str], width: int = 120) -> str:
    """Lines that are too long and were not there before are broken at their last bracket, as formatters do."""
    lines = []
    for line in text.split("\n"):
        opening = _opening(line) if len(line) > width and line not in known else None
        if opening is None:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += [line[: opening + 1], f"{indent}    {line[opening + 1 : -1].strip()}", indent + line[-1]]
    return "\n".join(lines)


def _opening(line: str) -> int | None:
    """Where the bracket opens that the line's last character closes; None when there are quotes or comments to mind."""
    if not line or line[-1] not in ")]}" or any(mark in line for mark in "'\"#"):
        return None
    depth = 0
    for at in range(len(line) - 1, -1, -1):
        depth += (line[at] in ")]}") - (line[at] in "([{")
        if depth == 0:
            return at
    return None
