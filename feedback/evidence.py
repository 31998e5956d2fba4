"""Evidence: what it takes to check a verdict again, one folder per probe run, sealed when it is finished.

A folder holds files that the probe wrote (raw samples, arrays, stacks, what workers printed) and `manifest.json`: the
layer, the hypothesis, the command line, seeds, digests, the environment, and the SHA-256 of every file. The manifest is
written last and atomically, so a folder without one is a probe that was cut off, and `EvidenceStore.verify` tells a
damaged folder from a whole one. `Verdict.evidence` names a folder relative to the store.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from feedback.environment import environment
from feedback.errors import UserError
from feedback.verdict import Verdict

__all__ = ["Evidence", "EvidenceStore", "environment"]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_SLUG_CHARACTERS = 40


class Evidence:
    """An open folder. A context manager: leaving it finishes the folder, with the error when there was one.

    Names are plain file names; writing the same name twice is an error, since evidence is not edited.
    """

    def __init__(self, path: Path, id: str, layer: str, hypothesis: str) -> None:
        self.path = path
        self.id = id
        self._files: dict[str, dict[str, Any]] = {}
        self._manifest: dict[str, Any] = {
            "schema": "evidence",
            "version": SCHEMA_VERSION,
            "layer": layer,
            "hypothesis": hypothesis,
            "started": _now(),
            "argv": list(sys.argv),
            "seeds": {},
            "digests": {},
            "environment": environment(),
        }
        self._finished = False

    def record(
        self, *, seeds: Mapping[str, int] | None = None, digests: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        """Add to the manifest: seeds and digests by name, and any other JSON value (`order`, `limits`, ...)."""
        self._manifest["seeds"].update(seeds or {})
        self._manifest["digests"].update(digests or {})
        taken = facts.keys() & {*self._manifest, "files", "finished", "verdict"}
        if taken:
            raise ValueError(f"the manifest already has {', '.join(sorted(taken))}")
        self._manifest.update(facts)

    def write_json(self, name: str, value: Any) -> Path:
        """A JSON file; `.json` is added when the name has no ending. NaN and infinities stay readable by Python
        alone.
        """
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=_plain)
        return self._write(_named(name, ".json"), text.encode())

    def write_text(self, name: str, text: str) -> Path:
        """A text file; `.txt` is added when the name has no ending."""
        return self._write(_named(name, ".txt"), text.encode(errors="replace"))

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> Path:
        """An `.npz` of named arrays, never pickled (`ValueError` for arrays of objects); read it with `numpy.load`."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        return self._write(_named(name, ".npz"), buffer.getvalue())

    def finish(self, verdict: Verdict | None = None, **fields: Any) -> str:
        """Seal the folder and return its id. `verdict`, or `fields` of one, go into the manifest. Once only."""
        if self._finished:
            raise ValueError(f"evidence {self.id} is finished")
        told = {**(verdict.model_dump(mode="json") if verdict else {}), **fields}
        manifest = {**self._manifest, "finished": _now(), "files": self._files, "verdict": told}
        text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False, default=_plain)
        _write_atomically(self.path / MANIFEST, text.encode())
        self._finished = True
        return self.id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._finished:
            self.finish(None, **({"error": f"{kind.__name__}: {error}"} if kind else {}))

    def _write(self, name: str, data: bytes) -> Path:
        if self._finished:
            raise ValueError(f"evidence {self.id} is finished; {name} would not be covered by its manifest")
        if name in self._files or name == MANIFEST:
            raise ValueError(f"evidence {self.id} already has {name}")
        path = self.path / name
        _write_atomically(path, data)
        self._files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        return path


class EvidenceStore:
    """Evidence folders under `root`, as `<layer>/<hypothesis>-<random>`. Made when first written to."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def new(self, layer: str, hypothesis: str) -> Evidence:
        """An empty folder. Raises `UserError` when it cannot be made."""
        id = f"{_slug(layer)}/{_slug(hypothesis)}-{secrets.token_hex(4)}"
        path = self.root / id
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"cannot make the evidence folder {path}: {error.strerror or error}") from error
        return Evidence(path, id, layer, hypothesis)

    def path(self, id: str) -> Path:
        """Where a folder lies. Raises `ValueError` for what is no id of this store."""
        parts = id.split("/")
        if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise ValueError(f"{id!r} is no evidence id: <layer>/<name>")
        return self.root / id

    def ids(self) -> list[str]:
        """All folders, finished or not, sorted."""
        return sorted(f"{path.parent.name}/{path.name}" for path in self.root.glob("*/*") if path.is_dir())

    def manifest(self, id: str) -> dict[str, Any]:
        """What is recorded about a finished folder. Raises `UserError` when there is none or it cannot be read."""
        path = self.path(id) / MANIFEST
        try:
            manifest = json.loads(path.read_text())
        except FileNotFoundError:
            what = "was cut off before it was finished" if path.parent.is_dir() else "does not exist"
            raise UserError(f"evidence {id} {what} ({path.parent})") from None
        except (OSError, ValueError) as error:
            raise UserError(f"evidence {id}: {path} cannot be read: {error}") from error
        if manifest.get("schema") != "evidence" or manifest.get("version") != SCHEMA_VERSION:
            raise UserError(f"evidence {id}: {path} is no evidence manifest of version {SCHEMA_VERSION}")
        return manifest

    def verify(self, id: str) -> list[str]:
        """What is wrong with a folder, one line each; empty when every file is there and unchanged."""
        try:
            listed = self.manifest(id)["files"]
        except UserError as error:
            return [str(error)]
        folder = self.path(id)
        problems = []
        for name, facts in sorted(listed.items()):
            try:
                data = (folder / name).read_bytes()
            except OSError as error:
                problems.append(f"{name} cannot be read: {error.strerror or error}")
                continue
            if hashlib.sha256(data).hexdigest() != facts["sha256"]:
                problems.append(f"{name} was changed after the probe")
        extra = {path.name for path in folder.iterdir()} - {*listed, MANIFEST}
        return problems + [f"{name} is not in the manifest" for name in sorted(extra)]


def _write_atomically(path: Path, data: bytes) -> None:
    """Whole or not at all, also when the machine stops: a new file, synced, then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _named(name: str, ending: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no plain file name")
    return name if Path(name).suffix else name + ending


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:_SLUG_CHARACTERS].rstrip("-._") or "unnamed"


def _plain(value: Any) -> Any:
    """JSON for what numpy and pydantic hand out."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
