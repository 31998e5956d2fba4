"""Resolving names in a module to what they were imported as: `t.perf_counter` -> `time.perf_counter`. Pure."""

from __future__ import annotations

import ast


class Imported:
    """The import aliases of one module; later bindings of the same name are not followed."""

    def __init__(self, tree: ast.Module) -> None:
        self._alias: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    local = alias.asname or alias.name.split(".", 1)[0]
                    self._alias[local] = alias.name if alias.asname else local
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._alias[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def full(self, node: ast.AST) -> str | None:
        """The dotted name of an expression that starts at a name, aliases resolved; None for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            return ".".join([self._alias.get(node.id, node.id), *reversed(parts)])
        return None

    def is_module_attribute(self, node: ast.AST) -> bool:
        """Whether an attribute expression starts at an imported name."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._alias
