"""Where the engine keeps what it can make again: fetched models and dequantised tensors."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from target_engine.errors import EngineError


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/infra-agent`, by default `~/.cache/infra-agent`. Not created here."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "infra-agent"


def make_folder(path: Path) -> Path:
    """Create a folder with its parents; raises `EngineError` when a file stands in the way or permission lacks."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise EngineError(
            f"cannot create the folder {path}: {reason}; set XDG_CACHE_HOME to a writable place"
        ) from error
    return path


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
