"""The files of a target where it is installed: found without importing it, read, digested and copied."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from feedback.errors import UserError
from feedback.target import FileEntry
from infra_agent.paths import make_dir
from infra_agent.repository import Entry


def root_of(adapter: str) -> Path:
    """The folder that goes on the module path for an adapter module; `UserError` when it cannot be found.

    Only the top-level name is looked up, which imports nothing.
    """
    top, *rest = adapter.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise UserError(f"the adapter {adapter} cannot be looked up: {error}") from error
    if spec is None or (rest and not spec.submodule_search_locations):
        raise UserError(f"there is no module {top} for the adapter {adapter}; install it or put it on PYTHONPATH")
    if not rest:
        if spec.origin is None:
            raise UserError(f"the adapter {adapter} is a folder, not a module")
        origin = Path(spec.origin)
        return origin.parent.parent if origin.name == "__init__.py" else origin.parent
    roots = [Path(location).parent for location in spec.submodule_search_locations or ()]
    for root in roots:
        module = root.joinpath(top, *rest)
        if module.with_suffix(".py").is_file() or (module / "__init__.py").is_file():
            return root
    raise UserError(f"there is no module {adapter} in {', '.join(str(root / top) for root in roots)}")


def read_target(root: Path, files: Sequence[FileEntry]) -> dict[str, Entry]:
    """The target's files by path; `UserError` naming one that cannot be read."""
    tree = {}
    for entry in files:
        path = root / entry.path
        try:
            tree[entry.path] = Entry(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        except OSError as error:
            raise UserError(f"cannot read {path}, a file of the target: {error.strerror or error}") from error
    return tree


def copy_target(root: Path, files: Sequence[FileEntry], destination: Path) -> Path:
    """A copy of the target as found, for the oracle to run from; made whole or not at all, and once."""
    if not destination.is_dir():
        partial = destination.with_name(destination.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for path, entry in read_target(root, files).items():
            file = partial / path
            make_dir(file.parent)
            file.write_bytes(entry.data)
            file.chmod(0o755 if entry.executable else 0o644)
        partial.rename(destination)
    return destination


def file_digests(tree: Mapping[str, Entry]) -> dict[str, str]:
    """Path -> SHA-256 of the content."""
    return {path: sha256(entry.data) for path, entry in tree.items()}


def sha256(data: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()
