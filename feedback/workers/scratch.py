"""A worker's own folder and environment: the only place it can write to, and all that it is told of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from feedback.sandbox.policy import Rule

#: This product's folder in the user's cache.
CACHE_NAME = "infra-agent"

#: Kinds of cache entries that no candidate sees: built code could hold an answer that its tree was made without.
HIDDEN_CACHES = frozenset({"native"})

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


def prepare(folder: Path, trusted: bool) -> Scratch:
    """Make a worker's folder.

    The user's cache holds fetched weights, which every worker reads. A trusted worker uses the cache itself and may add
    to it; any other gets a private one in its folder whose entries link to the user's, so that what it adds stays with
    it: nothing that candidate code wrote is ever read by another worker.
    """
    home = folder / "home"
    for path in (home / "tmp", home / ".cache" / CACHE_NAME):
        path.mkdir(parents=True)
    shared = user_cache() / CACHE_NAME
    rules = [Rule(str(folder), "write")]
    variables = environment(home)
    if trusted:
        shared.mkdir(parents=True, exist_ok=True)
        rules.append(Rule(str(shared), "write"))
        variables["XDG_CACHE_HOME"] = str(shared.parent)
    else:
        rules += _link(shared, home / ".cache" / CACHE_NAME)
        variables["XDG_CACHE_HOME"] = str(home / ".cache")
    return Scratch(folder, variables, tuple(rules))


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
        if kind.name in HIDDEN_CACHES or kind.is_symlink() or not kind.is_dir():
            continue
        (private / kind.name).mkdir()
        for entry in kind.iterdir():
            (private / kind.name / entry.name).symlink_to(entry)
        rules.append(Rule(str(kind), "read"))
    return rules
