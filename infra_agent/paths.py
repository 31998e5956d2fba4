"""Where things live: the user's home for runs and learnt skeletons, and the shipped goals and starts.

Nothing here imports anything heavy, and nothing is created by looking.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from feedback.errors import UserError


def home() -> Path:
    """`$INFRA_AGENT_HOME`, else `infra-agent` in the XDG state directory. Not created."""
    explicit = os.environ.get("INFRA_AGENT_HOME")
    if explicit:
        return Path(explicit).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME")
    # The XDG specification: a relative path there is invalid and to be ignored.
    root = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return root / "infra-agent"


def runs_dir() -> Path:
    """The folder that holds one folder per run."""
    return home() / "runs"


def library_dir() -> Path:
    """The user's own skeleton library; the shipped one is read-only."""
    return home() / "library"


def shipped(kind: str) -> Path:
    """The shipped `goals` or `starts` folder (package data beside this package, in a checkout and in a wheel alike)."""
    return Path(__file__).resolve().parent.parent / "experiments" / kind


def make_dir(path: Path) -> Path:
    """Create a folder and its parents; `UserError` naming the part that is in the way."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        blocker = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)
        raise UserError(f"cannot make the folder {path}: {blocker} is a file; choose another place") from error
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror or error}") from error
    return path


def output_file(path: Path) -> Path:
    """A path that can be written to, its parents made; `UserError` when it cannot."""
    path = path.expanduser()
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file")
    make_dir(path.absolute().parent)
    return path


@dataclass(frozen=True)
class RunPaths:
    """The files of one run."""

    root: Path

    @property
    def id(self) -> str:
        """The run's name, which is its folder's name."""
        return self.root.name

    @property
    def ledger(self) -> Path:
        """SQLite."""
        return self.root / "ledger.sqlite"

    @property
    def goal(self) -> Path:
        """The goal as resolved when the run began."""
        return self.root / "goal.toml"

    @property
    def starts(self) -> Path:
        """The run's own copy of its starting state is the folder in here that has the start's name."""
        return self.root / "starts"

    @property
    def trusted(self) -> Path:
        """The run's own copy of the target as found, which the oracle runs from; hidden from candidates."""
        return self.root / "trusted"

    @property
    def repository(self) -> Path:
        """The scratch repository (bare)."""
        return self.root / "workspace.git"

    @property
    def worktrees(self) -> Path:
        """One folder per candidate that is checked out."""
        return self.root / "worktrees"

    @property
    def evidence(self) -> Path:
        """Evidence folders of the verdicts."""
        return self.root / "evidence"

    @property
    def report(self) -> Path:
        """Where `report` writes when it is not told otherwise."""
        return self.root / "report.html"


def new_run(label: str, stamp: str) -> RunPaths:
    """Make the folder of a new run, named `<stamp>-<label>` so that names sort by time; never an existing one."""
    stem = f"{stamp}-{re.sub(r'[^A-Za-z0-9_-]+', '-', label).strip('-') or 'run'}"
    parent = make_dir(runs_dir())
    for attempt in range(1, 1000):
        path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot make the run folder {path}: {error.strerror or error}") from error
        return RunPaths(path)
    raise UserError(f"cannot find a free run name like {stem} in {parent}")


def list_runs() -> list[RunPaths]:
    """Runs that have a ledger, oldest first."""
    folder = runs_dir()
    if not folder.is_dir():
        return []
    return [RunPaths(path) for path in sorted(folder.iterdir()) if (path / "ledger.sqlite").is_file()]


def find_run(name: str) -> RunPaths:
    """A run by id, unique beginning of an id, folder, or `latest`; `UserError` when none or several fit."""
    as_path = Path(name).expanduser()
    if ("/" in name or name.startswith((".", "~"))) and (as_path / "ledger.sqlite").is_file():
        return RunPaths(as_path.absolute())
    found = list_runs()
    if not found:
        raise UserError(f"there are no runs in {runs_dir()}; start one with `infra-agent run throughput`")
    if name == "latest":
        return found[-1]
    matches = [run for run in found if run.id == name] or [run for run in found if run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        from infra_agent.wording import did_you_mean

        hint = did_you_mean(name, [run.id for run in found]) or f"; the latest is {found[-1].id}"
        raise UserError(f"no run is called {name!r} in {runs_dir()}{hint}")
    raise UserError(f"{name!r} is the beginning of {len(matches)} runs: {', '.join(run.id for run in matches[:5])}")
