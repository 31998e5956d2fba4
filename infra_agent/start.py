"""Starting states: where a run begins. A folder with `start.toml` and, where files are replaced, `files/`.

    title = "An ordinary, honest first version"
    complaint = "What a person would bring: it is too slow, it answers wrongly, ..."
    profile = "first_run"                 # a launch profile of the target, or a file of this folder ("my.toml")
    leave_out = ["engine/ops/*/*", "!engine/ops/*/plain.py"]   # patterns; "!" takes back
    launch = { threads = 2 }              # launch parameters on top of the profile

    [[replace]]                           # a text that a file holds exactly so many times (1 by default)
    file = "engine/merge.py"
    text = "a * b"
    with = "a + b"

`files/` mirrors the target's tree: what stands there replaces the target's file or is added. The starting tree has one
launch profile, the run's own, so that no candidate can look another one up.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from feedback.errors import UserError
from feedback.globs import matches
from feedback.guard import is_profile
from feedback.verdict import digest_of
from infra_agent import paths, tomltext, validation
from infra_agent.repository import Entry
from infra_agent.wording import did_you_mean


class Replacement(BaseModel):
    """One text of one file that the start replaces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    text: str = Field(min_length=1)
    new: str = Field(alias="with")
    times: int = Field(default=1, ge=1)


class StartFile(BaseModel):
    """`start.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    title: str
    complaint: str
    profile: str
    leave_out: tuple[str, ...] = ()
    launch: dict[str, Any] = Field(default_factory=dict)
    replace: tuple[Replacement, ...] = ()


@dataclass(frozen=True)
class Start:
    """A starting state, read. `files` are the replacements by path in the target, `own_profile` the text of its own."""

    name: str
    folder: Path
    text: str
    spec: StartFile
    files: Mapping[str, Entry]
    own_profile: str | None

    @classmethod
    def load(cls, name: str | Path) -> Start:
        """Read a start by folder or shipped name; `UserError` with file, line and key when it is wrong."""
        folder = Path(name) if isinstance(name, Path) or "/" in name else paths.shipped("starts") / name
        file = folder / "start.toml"
        if not file.is_file():
            hint = did_you_mean(str(name), shipped_starts()) or "; shipped starts: " + ", ".join(shipped_starts())
            raise UserError(f"there is no starting state {name} (no {file}){hint}")
        text = tomltext.read(file)
        spec = validation.validated(StartFile, text, str(file))
        own_profile = None
        if spec.profile.endswith(".toml"):
            if not (folder / spec.profile).is_file():
                raise validation.at(text, str(file), ("profile",), f"there is no file {folder / spec.profile}")
            own_profile = tomltext.read(folder / spec.profile)
            tomltext.parse(own_profile, str(folder / spec.profile))
        return cls(folder.name, folder, text, spec, _files_below(folder / "files"), own_profile)

    @property
    def digest(self) -> str:
        """Identity of the whole folder's content."""
        files = {path: [entry.data.hex(), entry.executable] for path, entry in self.files.items()}
        return digest_of([self.text, self.own_profile, files])

    def copy_to(self, parent: Path) -> Start:
        """A copy of the folder under `parent`, for a run to keep; returns the copy."""
        target = parent / self.name
        if target.exists():
            shutil.rmtree(target)
        paths.make_dir(parent)
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns("__pycache__"))
        return Start.load(target)

    def apply(self, target: Mapping[str, Entry], profile_path: str, launch: Mapping[str, Any]) -> dict[str, Entry]:
        """The starting tree made from the target's files: pure. `launch` overrides the profile and the start's own.

        Raises `UserError` when a pattern fits no file or the profile is unknown: the start was made for another target.
        """
        profile = tomltext.edit(self._profile_text(target, profile_path), nested({**self.spec.launch, **launch}))
        left_out = self._left_out(target)
        tree = {path: entry for path, entry in target.items() if path not in left_out}
        tree |= self.files
        for number, item in enumerate(self.spec.replace):
            tree[item.file] = self._replaced(tree, item, number)
        for path in [path for path in tree if is_profile(path, profile_path)]:
            del tree[path]
        tree[profile_path] = Entry(profile.encode())
        return dict(sorted(tree.items()))

    def _replaced(self, tree: Mapping[str, Entry], item: Replacement, number: int) -> Entry:
        entry = tree.get(item.file)
        count = entry.data.count(item.text.encode()) if entry is not None else 0
        if entry is None or count != item.times:
            what = "the target has no such file" if entry is None else f"it holds {item.text!r} {count} times"
            problem = f"{item.file} is to hold it {item.times} times, but {what}"
            raise validation.at(self.text, str(self.folder / "start.toml"), ("replace", str(number), "text"), problem)
        return Entry(entry.data.replace(item.text.encode(), item.new.encode()), entry.executable)

    def _left_out(self, target: Mapping[str, Entry]) -> set[str]:
        chosen: set[str] = set()
        for pattern in self.spec.leave_out:
            taken_back = pattern.startswith("!")
            found = {path for path in target if matches(path, pattern.removeprefix("!"))}
            if not found:
                what = f"the pattern {pattern!r} fits no file of the target"
                raise validation.at(self.text, str(self.folder / "start.toml"), ("leave_out",), what)
            chosen = chosen - found if taken_back else chosen | found
        return chosen

    def _profile_text(self, target: Mapping[str, Entry], profile_path: str) -> str:
        if self.own_profile is not None:
            return self.own_profile
        path = str(PurePosixPath(profile_path).with_name(f"{self.spec.profile}.toml"))
        if path not in target:
            known = [PurePosixPath(each).stem for each in target if is_profile(each, profile_path)]
            hint = did_you_mean(self.spec.profile, known) or "; it has " + (", ".join(sorted(known)) or "none")
            what = f"the target has no launch profile {self.spec.profile!r} ({path}){hint}"
            raise validation.at(self.text, str(self.folder / "start.toml"), ("profile",), what)
        text = target[path].data.decode("utf-8", "replace")
        tomltext.parse(text, path)
        return text


def shipped_starts() -> list[str]:
    """Names of the shipped starting states."""
    return sorted(path.parent.name for path in paths.shipped("starts").glob("*/start.toml"))


def nested(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Launch parameters with dotted names as tables: `{"operators.rope": "x"}` is `{"operators": {"rope": "x"}}`."""
    out: dict[str, Any] = {}
    for name, item in launch.items():
        *tables, key = name.split(".")
        inner = out
        for table in tables:
            inner = inner.setdefault(table, {})
        if isinstance(item, Mapping) and isinstance(inner.get(key), dict):
            inner[key] |= nested(item)
        else:
            inner[key] = nested(item) if isinstance(item, Mapping) else item
    return out


def _files_below(folder: Path) -> dict[str, Entry]:
    if not folder.is_dir():
        return {}
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {
        path.relative_to(folder).as_posix(): Entry(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in found
    }
