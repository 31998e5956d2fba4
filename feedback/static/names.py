"""Syntax and undefined names, from the text alone.

The symbol tables are Python's own (`symtable`), so scoping is what the interpreter would do. A name that is bound
nowhere in the module, in no enclosing function and in no built-in fails when it is reached.
"""

from __future__ import annotations

import ast
import builtins
import symtable

from feedback.static.flaws import Flaw

_MODULE_NAMES = frozenset(dir(builtins)) | {
    "__file__", "__name__", "__doc__", "__package__", "__path__", "__spec__", "__loader__", "__builtins__",
    "__annotations__", "__dict__", "__class__", "__module__", "__qualname__",
}  # fmt: skip


def parse(path: str, text: str) -> ast.Module | Flaw:
    """The syntax tree, or the one flaw that says where the text stops being Python."""
    try:
        return ast.parse(text, filename=path)
    except SyntaxError as error:
        return Flaw(path, error.lineno, "syntax", f"syntax error: {error.msg}")
    except ValueError as error:  # null bytes
        return Flaw(path, None, "syntax", f"not a Python text: {error}")


def undefined_names(path: str, text: str, tree: ast.Module) -> list[Flaw]:
    """One flaw per name that is used and defined nowhere, at its first use, sorted by line.

    A star import could bind anything; with one present nothing is claimed and a soft flaw says so.
    """
    stars = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names)]
    if stars:
        return [Flaw(path, stars[0].lineno, "names", "a star import hides undefined names", hard=False)]
    top = symtable.symtable(text, path, "exec")
    bound = _bound_in_module(top)
    missing = {name for name in _global_references(top) if name not in bound and name not in _MODULE_NAMES}
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in missing:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return sorted(Flaw(path, line, "names", f"undefined name {name}") for name, line in lines.items())


def module_names(text: str, path: str = "<module>") -> set[str]:
    """Names that a module binds at its top level, imports included."""
    return _bound_in_module(symtable.symtable(text, path, "exec"))


def _bound_in_module(top: symtable.SymbolTable) -> set[str]:
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    stack = list(top.get_children())
    while stack:
        table = stack.pop()
        stack.extend(table.get_children())
        bound.update(s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned())
    return bound


def _global_references(top: symtable.SymbolTable) -> set[str]:
    """Names that any scope looks up in the module's globals."""
    found: set[str] = set()
    stack = [top]
    while stack:
        table = stack.pop()
        stack.extend(table.get_children())
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                found.add(symbol.get_name())
    return found
