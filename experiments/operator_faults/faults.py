"""What a planted fault is, and how a recorded one is put into the engine's text. Pure.

An edit names its text exactly. A text that is not there, or there twice, is an error of the record, which was made for
another version of the engine: it is never skipped, and never planted somewhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Sources = Mapping[str, str]
Group = Literal["parallel", "shapes and masks", "hybrid state", "prefix cache", "kv lifetime", "scheduler", "lecture"]

OPS = "target_engine/ops"


class NotThere(ValueError):
    """The text that a record edits is not in the file just once."""


@dataclass(frozen=True)
class Edit:
    """`old`, which stands in the file once, becomes `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Record:
    """A fault that somebody has met.

    `source` is `repository#number` or `lecture`. `operators` and `steps` are what may be named as its place: an
    operator and a step of its combination (`output` where it has none), or, for faults outside operators, the feature
    of a schedule. `layer` is the one that must see it at the latest. `about` says what happens there, in a phrase.
    """

    name: str
    source: str
    group: Group
    about: str
    edits: tuple[Edit, ...]
    operators: tuple[str, ...]
    steps: tuple[str, ...]
    layer: str

    def planted(self, sources: Sources) -> Fault:
        """The fault on these sources. Raises `NotThere`."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            text = texts.get(edit.path, sources.get(edit.path, ""))
            found = text.count(edit.old)
            if found != 1:
                raise NotThere(
                    f"{self.name}: {edit.path} holds {edit.old!r} {found} times, not once: the record was made for "
                    "another version of the engine"
                )
            texts[edit.path] = text.replace(edit.old, edit.new)
        first = self.edits[0]
        line = sources[first.path][: sources[first.path].index(first.old)].count("\n") + 1
        change = f"{_short(first.old)} -> {_short(first.new)}"
        return Fault(
            self.name, self.group, self.source, texts, self.operators, self.steps, self.layer, first.path, line, change
        )


@dataclass(frozen=True)
class Fault:
    """A fault as it is planted: new texts of `files`, by path.

    `kind` is a record's group or a mutant's kind; `path`, `line` and `change` say what was changed.
    """

    name: str
    kind: str
    source: str
    files: Mapping[str, str]
    operators: tuple[str, ...]
    steps: tuple[str, ...]
    layer: str
    path: str
    line: int
    change: str

    @property
    def mutant(self) -> bool:
        """Whether it was generated."""
        return self.source == "mutant"

    @property
    def digest(self) -> str:
        """Of the planted texts: the same edit of the same engine has the same one."""
        return digest_of(self.files)


def digest_of(texts: Sources) -> str:
    """SHA-256 of some files, first 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(texts):
        digest.update(f"{path}\0{len(texts[path])}\0{texts[path]}".encode())
    return digest.hexdigest()[:16]


def _short(text: str, most: int = 60) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."
