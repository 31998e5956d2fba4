"""A small target on disk: enough files for starts, workspaces and `apply`, and none of the engine's weight."""

from __future__ import annotations

from pathlib import Path

from feedback.target import FileEntry, Role

FILES = {
    "engine/__init__.py": "",
    "engine/adapter.py": "def create():\n    raise NotImplementedError\n",
    "engine/ops/linear/plain.py": "def linear(w, x):\n    return x @ w\n",
    "engine/ops/linear/packed.py": "def linear(w, x):\n    return pack(w)(x)\n",
    "engine/ops/rope/plain.py": "def rope(x):\n    return x\n",
    "engine/scheduler.py": "def schedule():\n    return []\n",
    "engine/profiles/slow.toml": '# The first version.\nmax_batch = 4  # slots\n\n[operators]\nlinear = "plain"\n',
    "engine/profiles/fast.toml": 'max_batch = 16\n\n[operators]\nlinear = "packed"\n',
}
PROFILE_PATH = "engine/profiles/run.toml"


def write_target(root: Path, files: dict[str, str] = FILES) -> list[FileEntry]:
    """Write the target under `root`; returns its file list."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return [FileEntry(path=path, role=Role.EDITABLE) for path in sorted(files)]


def write_start(folder: Path, text: str, files: dict[str, str] | None = None) -> Path:
    """Write a starting state; returns its folder."""
    folder.mkdir(parents=True)
    (folder / "start.toml").write_text(text)
    for path, content in (files or {}).items():
        file = folder / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


SLOW_START = """\
title = "A slow start"
complaint = "It is slow."
profile = "slow"
leave_out = ["engine/ops/*/*", "!engine/ops/*/plain.py"]
launch = { threads = 1 }
"""
