"""The library: skeletons on disk, one folder each. The shipped ones are read-only; a run writes to the user's own.

A folder holds `skeleton.toml`, for code skeletons `transform.py` (`find(view)`, `rewrite(view, sites)`), and
`evidence.jsonl`, to which measurements are appended, a line each. Evidence on shipped skeletons goes to a folder of
the same name in the user's library.
"""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from feedback.errors import UserError
from skeletons.skeleton import Evidence, Skeleton
from skeletons.view import Change, Decline, Site, TargetView

Model = TypeVar("Model", bound=BaseModel)
SHIPPED = Path(__file__).parent / "library"


class Transform(Protocol):
    """What a code skeleton's `transform.py` defines."""

    def find(self, view: TargetView) -> Sequence[Site | Decline]:
        """Places where it applies, and places that look like it and why they are not."""
        ...

    def rewrite(self, view: TargetView, sites: Sequence[Site]) -> Change:
        """The change that applies it at these sites of this view. Deterministic."""
        ...


def user_library() -> Path:
    """`$INFRA_AGENT_HOME/library`; the home is the user's state directory (XDG) when it is not set."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(os.environ.get("INFRA_AGENT_HOME") or Path(state) / "infra-agent") / "library"


@dataclass(frozen=True)
class Library:
    """A snapshot of both libraries, by name. `today` decides expiry, `versions` and `platform` the scope."""

    skeletons: Mapping[str, Skeleton]
    folders: Mapping[str, Path]
    user: Path
    today: datetime.date
    versions: Mapping[str, str] = field(default_factory=dict)
    platform: str = sys.platform

    @classmethod
    def load(cls, shipped: Path | None = None, user: Path | None = None, today: datetime.date | None = None) -> Library:
        """Read both libraries. Raises `UserError` naming file and field of the first thing that is wrong.

        A skeleton of the user replaces the shipped one of its name when its version is higher.
        """
        shipped, user = shipped or SHIPPED, user or user_library()
        found: dict[str, Skeleton] = {}
        folders: dict[str, Path] = {}
        for root in (shipped, user):
            for folder in sorted(root.iterdir()) if root.is_dir() else ():
                if (folder / "skeleton.toml").is_file():
                    skeleton = read_skeleton(folder)
                    if skeleton.name not in found or skeleton.version > found[skeleton.name].version:
                        found[skeleton.name], folders[skeleton.name] = skeleton, folder
        for name, skeleton in found.items():
            evidence = [e for root in (shipped, user) for e in read_evidence(root / name / "evidence.jsonl")]
            found[name] = skeleton.model_copy(update={"evidence": tuple(_once(evidence))})
        needed = {package for s in found.values() for package in (*s.scope.minimum, *s.scope.below)}
        return cls(found, folders, user, today or datetime.date.today(), _installed(needed))

    def __iter__(self) -> Iterator[Skeleton]:
        return iter(self.skeletons[name] for name in sorted(self.skeletons))

    def get(self, name: str) -> Skeleton:
        """One skeleton; `UserError` names the known ones."""
        if name not in self.skeletons:
            raise UserError(f"no skeleton {name!r}; the library has {', '.join(sorted(self.skeletons))}")
        return self.skeletons[name]

    def transform(self, name: str) -> Transform:
        """The transformation of a code skeleton (loaded at first use: it needs LibCST)."""
        return load_transform(self.folders[self.get(name).name])

    def record_evidence(self, name: str, evidence: Evidence) -> Library:
        """Append a measurement to the user's library and return the library that has it.

        The same measurement counts once.
        """
        known = self.get(name)
        if evidence in known.evidence:
            return self
        path = self.user / name / "evidence.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(evidence.model_dump_json(exclude_defaults=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        updated = known.model_copy(update={"evidence": (*known.evidence, evidence)})
        return replace(self, skeletons={**self.skeletons, name: updated})

    def add(self, folder: Path) -> Library:
        """Copy a skeleton's folder into the user's library and return the library that has it.

        Raises `UserError` when it is not a skeleton, or when the library has this version or a later one.
        """
        skeleton = read_skeleton(folder)
        known = self.skeletons.get(skeleton.name)
        if known is not None and known.version >= skeleton.version:
            newer = known.version + 1
            raise UserError(
                f"{skeleton.name}: version {known.version} is in the library: give the new one version {newer}"
            )
        target = self.user / skeleton.name
        target.mkdir(parents=True, exist_ok=True)
        for item in sorted(folder.iterdir()):
            if item.is_file() and item.name != "evidence.jsonl":
                shutil.copy2(item, target / item.name)
        folders = {**self.folders, skeleton.name: target}
        library = replace(self, skeletons={**self.skeletons, skeleton.name: skeleton}, folders=folders)
        for item in read_evidence(folder / "evidence.jsonl"):
            library = library.record_evidence(skeleton.name, item)
        return library


def read_skeleton(folder: Path) -> Skeleton:
    """The skeleton of a folder, without evidence. Raises `UserError` with file, field and what is wrong."""
    path = folder / "skeleton.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    skeleton = _validated(Skeleton, values, str(path))
    if skeleton.name != folder.name:
        raise UserError(f"{path}: name: {skeleton.name!r} is not the folder's name {folder.name!r}")
    if skeleton.kind == "code" and not (folder / "transform.py").is_file():
        raise UserError(f"{folder}: a code skeleton needs a transform.py")
    return skeleton


def read_evidence(path: Path) -> list[Evidence]:
    """The measurements of a file, oldest first; none when there is no file. Raises `UserError` naming the line."""
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}: not JSON: {error.msg}") from error
            found.append(_validated(Evidence, values, f"{path}:{number}"))
    return found


def _validated(model: type[Model], values: Any, where: str) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise UserError(f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}") from error


def _once(evidence: Sequence[Evidence]) -> list[Evidence]:
    return [item for index, item in enumerate(evidence) if item not in evidence[:index]]


def _installed(packages: set[str]) -> dict[str, str]:
    """Versions of installed distributions; importing none of them."""
    found = {}
    for package in sorted(packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def load_transform(folder: Path) -> Any:
    """Import a folder's `transform.py` under a name of its own. Raises `UserError` when it lacks a function."""
    name = f"skeletons_transform_{folder.name}_{abs(hash(str(folder))):x}"
    spec = importlib.util.spec_from_file_location(name, folder / "transform.py")
    if spec is None or spec.loader is None:
        raise UserError(f"{folder}/transform.py cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    for function in ("find", "rewrite"):
        if not callable(getattr(module, function, None)):
            raise UserError(f"{folder}/transform.py: has no function {function}")
    return module
