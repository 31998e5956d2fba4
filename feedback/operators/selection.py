"""Which operators a candidate may have changed, and in which order they are worth a look."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from feedback.target import OperatorInfo


def touched(
    stated: Iterable[str],
    changed: Sequence[str],
    before: Sequence[OperatorInfo],
    after: Sequence[OperatorInfo],
) -> tuple[tuple[str, ...], str]:
    """(operator names in order, why these): the stated ones and those whose file or selection differs; all when none is
    known.

    A changed file that stands beside the operators' folders (shared helpers, the registry) may change any of them.
    """
    names = [info.name for info in after]
    folders = {info.name: {PurePosixPath(file).parent for file in info.files.values()} for info in after}
    parents = {folder.parent for found in folders.values() for folder in found}
    paths = [PurePosixPath(path) for path in changed]
    if any(path.parent in parents for path in paths):
        return tuple(names), "a file shared by all operators changed"
    selected = {info.name: info.selected for info in before}
    hit = set(stated) & set(names)
    for info in after:
        if info.selected != selected.get(info.name, info.selected):
            hit.add(info.name)
        if any(path.is_relative_to(folder) for path in paths for folder in folders[info.name]):
            hit.add(info.name)
    if hit:
        return tuple(name for name in names if name in hit), "stated or changed"
    return tuple(names), "none known to be touched"


def reached_first(
    names: Sequence[str], changed: Sequence[str], infos: Sequence[OperatorInfo], root: Path
) -> tuple[tuple[str, ...], int]:
    """(names, those first that the changed files can reach by what the texts of their folders import; how many these
    are).

    The text may import in ways that this does not see: what it does not find comes later, and is not left out.
    """
    folders = {info.name: {PurePosixPath(file).parent for file in info.files.values()} for info in infos}
    paths = [PurePosixPath(path) for path in changed]
    reached = [name for name in names if any(_reaches(folder, paths, root) for folder in folders[name])]
    return (*reached, *(name for name in names if name not in reached)), len(reached)


def _reaches(folder: PurePosixPath, changed: Sequence[PurePosixPath], root: Path) -> bool:
    if any(path.is_relative_to(folder) for path in changed):
        return True
    modules = [".".join(path.with_suffix("").parts) for path in changed if path.suffix == ".py"]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in sorted((root / folder).glob("*.py"))]
    return any(re.search(rf"\b{re.escape(module)}\b", text) for module in modules for text in texts)
