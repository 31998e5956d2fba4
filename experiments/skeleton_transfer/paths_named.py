"""Does a skeleton's folder name a path of the target? The texts are searched for whatever identifies a file of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath


def marks(package: str, files: Iterable[str]) -> set[str]:
    """Texts that would name a file of the target: the package, and of each path every tail of at least two parts, as a
    path and as a module.
    """
    found = {package}
    for path in files:
        parts = PurePosixPath(path).parts
        for begin in range(len(parts) - 1):
            tail = parts[begin:]
            if tail[-1] == "__init__.py":
                continue
            found.add("/".join(tail))
            if tail[-1].endswith(".py") and len(tail) > 1:
                found.add(".".join(tail).removesuffix(".py"))
    return found


def named(texts: Mapping[str, str], wanted: Iterable[str]) -> dict[str, list[str]]:
    """Text -> the marks in it, as whole words; texts without any are left out. A tail counts where it begins: with more
    of a path before it, it is the end of another one, or a longer mark stands there.
    """
    marked = [
        rf"(?<![\w./]){re.escape(mark)}(?!\w)" if "/" in mark or "." in mark else rf"(?<!\w){re.escape(mark)}(?!\w)"
        for mark in sorted(wanted, key=len, reverse=True)
    ]
    pattern = re.compile("|".join(marked))
    return {name: sorted(set(hits)) for name, text in texts.items() if (hits := pattern.findall(text))}


def texts_below(folder: Path) -> dict[str, str]:
    """All texts of a folder by relative path; compiled and measured things left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace") for path in files}


def target_files(root: Path, package: str) -> list[str]:
    """The files of the target, relative to its root."""
    files = (path for path in (root / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [path.relative_to(root).as_posix() for path in sorted(files)]
