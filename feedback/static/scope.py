"""Edit scope: which files a candidate may touch, and what a new file may be. Pure, except for reading the two trees."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from feedback.globs import matches_any
from feedback.guard import ABSENT, file_digest
from feedback.static.flaws import Flaw
from feedback.target import FileEntry, Role

#: What a reviewer can read. A compiled file cannot be judged by its text, so it cannot be part of a patch.
TEXT_SUFFIXES = frozenset(
    {".py", ".pyi", ".c", ".h", ".cpp", ".cc", ".hpp", ".cu", ".cuh", ".toml", ".json", ".md", ".txt"}
)

#: Files that interpreters and test runners load by themselves.
AUTOLOADED = frozenset(
    {"sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "pyproject.toml", "pyrefly.toml"}
)

_IGNORED_FOLDERS = frozenset({"__pycache__", ".git"})


def changed_files(base: Path, candidate: Path, entries: Iterable[FileEntry], stated: Iterable[str]) -> tuple[str, ...]:
    """Paths that differ between two trees: the stated ones and whatever else differs, sorted.

    Looks through the top folders that the target's files stand in, so that an edit which the caller did not state is
    judged too, and beside them for anything that an import would find in place of another module.
    """
    found = {path for path in stated if file_digest(base, path) != file_digest(candidate, path)}
    if base.resolve() == candidate.resolve():
        return tuple(sorted(found))
    tops = top_folders(entry.path for entry in entries)
    seen = {path for top in tops for root in (base, candidate) for path in _listing(root, top)}
    found.update(path for path in seen - found if file_digest(base, path) != file_digest(candidate, path))
    beside = set(os.listdir(candidate)) - set(os.listdir(base)) - set(tops)
    found.update(name for name in beside if not name.startswith(".") and _shadows(name.split(".")[0], candidate))
    return tuple(sorted(found))


def top_folders(paths: Iterable[str]) -> tuple[str, ...]:
    """The first folders of relative paths, sorted."""
    return tuple(sorted({parts[0] for path in paths if len(parts := PurePosixPath(path).parts) > 1}))


def _listing(root: Path, top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root / top):
        folders[:] = [name for name in folders if name not in _IGNORED_FOLDERS]
        here = Path(folder).relative_to(root).as_posix()
        yield from (f"{here}/{name}" for name in names if not name.endswith(".pyc"))
        yield from (f"{here}/{name}" for name in folders if (Path(folder) / name).is_symlink())


def _shadows(name: str, root: Path) -> bool:
    """Whether `import name` would mean something else if `root` were not first on the module path."""
    if name in sys.stdlib_module_names or f"{name}.py" in AUTOLOADED:
        return True
    spec = importlib.machinery.PathFinder.find_spec(name)
    return spec is not None and root.resolve() not in Path(spec.origin or "/").resolve().parents


def scope_flaws(
    changed: Sequence[str], root: Path, entries: Sequence[FileEntry], globs: Sequence[str] = (), kind: str = "code"
) -> list[Flaw]:
    """Every changed path that a candidate of this kind may not change, with the reason."""
    roles = {entry.path: entry.role for entry in entries}
    flaws = []
    for path in changed:
        reason = _reason(path, root, roles, globs, kind)
        if reason:
            flaws.append(Flaw(path, None, "scope", reason))
    return flaws


def _reason(path: str, root: Path, roles: Mapping[str, Role], globs: Sequence[str], kind: str) -> str | None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        return f"{path} lies outside the target"
    digest = file_digest(root, path)
    if digest.startswith("link:"):
        return f"{path} is a symbolic link to {digest[5:]}"
    role = roles.get(path)
    if role is Role.PROTECTED:
        return f"{path} is protected: it defines what right means"
    if role is Role.PROFILE:
        return None
    if kind == "launch":
        return f"a launch move may edit the launch profile alone, not {path}"
    if role is None:
        problem = _new_file_problem(pure, roles, digest)
        if problem:
            return problem
    if globs and not matches_any(path, globs):
        return f"{path} is outside the edit scope {', '.join(globs)}"
    return None


def _new_file_problem(path: PurePosixPath, roles: Mapping[str, Role], digest: str) -> str | None:
    if path.parts[0] not in top_folders(roles):
        shadowed = path.parts[0].split(".")[0] in sys.stdlib_module_names
        return f"{path} " + ("shadows a standard-library module" if shadowed else "lies beside the target, not in it")
    if digest == ABSENT:
        return None  # a file that the target never listed is gone: nothing was added
    if path.name in AUTOLOADED or path.suffix == ".pth":
        return f"{path} would be loaded by the interpreter or a tool by itself"
    if path.suffix not in TEXT_SUFFIXES:
        return f"{path} is not a text file that can be reviewed ({path.suffix or 'no suffix'})"
    siblings: list[Role] = []
    for parent in path.parents:
        siblings = [role for entry, role in roles.items() if PurePosixPath(entry).is_relative_to(parent)]
        if siblings:
            break
    if Role.EDITABLE not in siblings:
        return f"{path} is a new file in a folder where nothing may be edited"
    return None
