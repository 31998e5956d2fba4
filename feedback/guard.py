"""Protected files stay what they are: their digests before and after every probe, against the trusted tree's.

References, specifications, adapter, span log and workloads decide what "right" means. A candidate that changes one of
them has not improved anything, whatever the numbers say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from feedback.target import FileEntry, Role

ABSENT = "absent"
MISSING = "is missing"


@dataclass(frozen=True)
class Tampering:
    """One protected file that is not what the trusted tree holds; `when` is `before` or `after` the probe ran."""

    path: str
    what: str
    when: str

    @property
    def missing(self) -> bool:
        """Whether the file is not there at all."""
        return self.what == MISSING

    def text(self) -> str:
        """`target_engine/spans.py changed (before the probe)`."""
        return f"{self.path} {self.what} ({self.when} the probe)"


def protected_digests(root: Path, files: Iterable[FileEntry]) -> dict[str, str]:
    """Path -> SHA-256 of every protected file of `files` under `root`.

    A missing file is `absent`; a symbolic link, which could point at anything by the time it is read, is
    `link:<target>`, and so is a file below a linked folder.
    """
    return {entry.path: file_digest(root, entry.path) for entry in files if entry.role is Role.PROTECTED}


def file_digest(root: Path, path: str) -> str:
    """SHA-256 of one file, `absent`, or `link:<target>` when it or a folder above it (below `root`) is a link."""
    current = root
    for part in Path(path).parts:
        current = current / part
        if current.is_symlink():
            return f"link:{current.readlink()}"
    try:
        return hashlib.sha256(current.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ABSENT


def tampering(trusted: Mapping[str, str], seen: Mapping[str, str], when: str) -> list[Tampering]:
    """Every protected file whose digest is not the trusted one, sorted by path."""
    found = []
    for path in sorted(trusted):
        digest = seen.get(path, ABSENT)
        if digest != trusted[path]:
            linked = digest.startswith("link:")
            what = (
                MISSING
                if digest == ABSENT
                else f"is a link to {digest[5:]}"
                if linked
                else "differs from the trusted one"
            )
            found.append(Tampering(path, what, when))
    return found


def is_profile(path: str, profile_path: str) -> bool:
    """Whether a file is a launch profile: a TOML file beside the run's own, unless that is the target's root folder."""
    folder = PurePosixPath(profile_path).parent
    found = PurePosixPath(path)
    return path == profile_path or (folder != PurePosixPath() and found.parent == folder and found.suffix == ".toml")
