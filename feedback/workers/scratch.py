"""A worker's own folder and environment: the only place it can write to, and all that it is told of the machine."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from feedback.sandbox.policy import Rule

#: This product's folder in the user's cache.
CACHE_NAME = "infra-agent"

#: The kind of cache entry that holds compiled code. No candidate sees the user's: it could hold an answer that the
#: candidate's tree was made without.
BUILT = "native"

#: Environment variables that reach a worker. Everything else, API keys first of all, stays here.
PASSED = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CC", "CUDA_VISIBLE_DEVICES", "CUDA_HOME"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)


def environment(home: Path) -> dict[str, str]:
    """A worker's environment. OpenMP reads its part when it is loaded, that is in the warm parent already."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    fixed = {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        # Threads that spin while they wait cost 15x as soon as two processes share the cores.
        "OMP_WAIT_POLICY": "passive",
        # numpy's BLAS starts threads when it is loaded, and threads do not survive a fork; torch has its own.
        "OPENBLAS_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return {"PATH": os.defpath, **passed, **fixed}


@dataclass(frozen=True)
class Scratch:
    """`folder` with `home`, `tmp` below; the environment that points there; the grants that go with it."""

    folder: Path
    environment: dict[str, str]
    rules: tuple[Rule, ...]


def prepare(folder: Path, built: Path | None) -> Scratch:
    """Make a worker's folder.

    The user's cache holds fetched weights, which every worker reads. A trusted worker (`built` None) uses the cache
    itself and may add to it. Any other gets a private one in its folder whose entries link to the user's, so that what
    it adds stays with it; only code that it compiles goes to `built`, which workers of the same tree share.
    """
    home = folder / "home"
    for path in (home / "tmp", home / ".cache" / CACHE_NAME):
        path.mkdir(parents=True)
    shared = user_cache() / CACHE_NAME
    rules = [Rule(str(folder), "write")]
    variables = environment(home)
    if built is None:
        shared.mkdir(parents=True, exist_ok=True)
        rules.append(Rule(str(shared), "write"))
        variables["XDG_CACHE_HOME"] = str(shared.parent)
    else:
        private = home / ".cache" / CACHE_NAME
        rules += _link(shared, private)
        built.mkdir(parents=True, exist_ok=True)
        (private / BUILT).symlink_to(built)
        rules.append(Rule(str(built), "write"))
        variables["XDG_CACHE_HOME"] = str(home / ".cache")
    return Scratch(folder, variables, tuple(rules))


def tree_key(root: Path, top: str) -> str:
    """A name for the content of the target's package in a tree: the same for the same files, and for no others."""
    digest = hashlib.sha256()
    places = [root / f"{top}.py"] if not (root / top).is_dir() else sorted((root / top).rglob("*"))
    for path in places:
        if path.is_symlink():  # not followed: it may lead to anything
            digest.update(f"{path.relative_to(root)}\0->{path.readlink()}\0".encode())
        elif path.is_file() and path.suffix != ".pyc":
            data = path.read_bytes()
            digest.update(f"{path.relative_to(root)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:32]


def copy_built(source: Path, built: Path) -> None:
    """What workers of one tree compiled, as a start for another's; plain files alone. Nothing where nothing is."""
    built.mkdir(parents=True)
    for path in source.iterdir() if source.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            shutil.copy2(path, built / path.name)


def user_cache() -> Path:
    """`$XDG_CACHE_HOME`, by default `~/.cache`, resolved."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache").resolve()


def _link(shared: Path, private: Path) -> list[Rule]:
    """Links to every entry of every kind (`models/<digest>` and so on); the folders themselves are private and
    writable.
    """
    rules = []
    for kind in sorted(shared.iterdir()) if shared.is_dir() else []:
        if kind.name == BUILT or kind.is_symlink() or not kind.is_dir():
            continue
        (private / kind.name).mkdir()
        for entry in kind.iterdir():
            (private / kind.name / entry.name).symlink_to(entry)
        rules.append(Rule(str(kind), "read"))
    return rules
