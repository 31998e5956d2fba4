"""Imports that resolve to nothing. Nothing is imported to find out: the files of tree and packages are looked at."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from feedback.static.flaws import Flaw
from feedback.static.names import module_names

_SUFFIXES = tuple(importlib.machinery.all_suffixes())


def unresolved_imports(path: str, tree: ast.Module, root: Path) -> list[Flaw]:
    """One flaw per import in `path` that cannot succeed in a worker whose module path starts with `root`.

    Hard: a module that is neither in the tree nor installed, or a name that a module of the tree does not bind. Soft:
    a submodule of an installed package that has no file (packages make modules at run time), and whatever stands in
    `try` or under `TYPE_CHECKING`.
    """
    flaws = []
    guarded = _guarded(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            wanted = [(module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            found = _problem(module, name, root)
            if found:
                text, certain = found
                flaws.append(Flaw(path, node.lineno, "imports", text, hard=certain and id(node) not in guarded))
    return flaws


def _problem(module: str | None, name: str | None, root: Path) -> tuple[str, bool] | None:
    """(what is wrong, whether it is certain), or None."""
    if module is None:
        return "relative import beyond the top of the tree", True
    top = module.split(".", 1)[0]
    if _module_file(root, top) is not None or (root / top).is_dir():
        file = _module_file(root, module)
        if file is None:
            return (f"no module {module} in the tree", True) if not _folder(root, module) else None
        if name and name != "*" and _module_file(root, f"{module}.{name}") is None and not _binds(file, name):
            return f"{module} defines no {name}", True
        return None
    places = _installed(top)
    if places is None:
        return f"no module named {top}", True
    if places and "." in module and not any(_below(Path(place), module.split(".")[1:]) for place in places):
        return f"{module} has no file in the installed package {top}", False
    return None


def _absolute(path: str, node: ast.ImportFrom) -> str | None:
    if not node.level:
        return node.module
    parts = PurePosixPath(path).with_suffix("").parts
    # In `a/b/c.py` and in `a/b/__init__.py` one dot means `a.b`: both drop their last part.
    package = parts[: max(0, len(parts) - node.level)]
    if not package:
        return None
    return ".".join((*package, *(node.module.split(".") if node.module else ())))


def _module_file(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    for candidate in (place / "__init__.py", *(place.with_name(place.name + suffix) for suffix in _SUFFIXES)):
        if candidate.is_file():
            return candidate
    return None


def _folder(root: Path, module: str) -> bool:
    return root.joinpath(*module.split(".")).is_dir()


def _binds(file: Path, name: str) -> bool:
    if file.suffix != ".py":
        return True
    try:
        bound = module_names(file.read_text(encoding="utf-8"), str(file))
    except (SyntaxError, ValueError, OSError):
        return True  # that file has its own flaw
    return name in bound or "__getattr__" in bound or name.startswith("__")


@lru_cache(maxsize=512)
def _installed(top: str) -> tuple[str, ...] | None:
    """Folders of an installed top-level package, empty for a plain module, None when there is none. Runs no code of
    it."""
    if top in sys.builtin_module_names:
        return ()
    try:
        spec = importlib.machinery.PathFinder.find_spec(top) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return tuple(spec.submodule_search_locations or ())


def _below(place: Path, parts: list[str]) -> bool:
    for part in parts[:-1]:
        place = place / part
    return _module_file(place, parts[-1]) is not None or (place / parts[-1]).is_dir()


def _guarded(tree: ast.Module) -> set[int]:
    """Identities of import nodes whose failure the text expects."""

    def under(nodes: list[ast.stmt]) -> Iterator[int]:
        for statement in nodes:
            for node in ast.walk(statement):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield id(node)

    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            found.update(under(node.body))
    return found
