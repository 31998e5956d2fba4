"""The workspace: a scratch git repository of the target's files, where candidates live.

Its first commit is the starting state, without history, so that no answer can be looked up in it. A candidate is a
commit (base + move) checked out in a worktree of its own; the branch `kept` holds the moves that were kept, with
trailers. The user's tree is read once and never written. Ids are deterministic: author, committer and dates come from
the first commit, so a replay makes the same commits again.

    workspace.git/     the bare repository          worktrees/<commit>/     one checkout per candidate
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from feedback.errors import UserError
from feedback.target import FileEntry
from infra_agent import tomltext
from infra_agent.paths import RunPaths, make_dir
from infra_agent.repository import Entry, Repository, Signature
from infra_agent.start import Start, nested
from infra_agent.targetfiles import read_target, sha256

AUTHOR = ("infra-agent", "infra-agent@localhost")
#: 2000-01-01: the date of a workspace that is not told one.
EPOCH = 946_684_800
KEPT = "kept"
#: The trailer of a commit that names what a person has to approve.
NEEDS = "Needs-A-Person"


class Change(Protocol):
    """What a move does: new texts of files (None deletes), and launch parameters (dotted names for table entries)."""

    @property
    def files(self) -> Mapping[str, str | None]: ...
    @property
    def launch(self) -> Mapping[str, Any]: ...


class EmptyChange(ValueError):
    """The change leaves the tree as it was: there is nothing to measure."""


@dataclass(frozen=True)
class Candidate:
    """A commit, checked out. `changed` are the paths that differ from `base`."""

    commit: str
    base: str
    path: Path
    changed: tuple[str, ...]


@dataclass(frozen=True)
class KeptMove:
    """One commit of the kept branch."""

    commit: str
    parent: str
    subject: str
    message: str
    trailers: Mapping[str, str]


class Workspace:
    """One run's workspace. The process that holds the run's ledger is the only one that writes it."""

    def __init__(self, run: RunPaths, repository: Repository, base: str, profile_path: str, time: int) -> None:
        self.base = base
        self.profile_path = profile_path
        self._run = run
        self._git = repository
        self._signature = Signature(*AUTHOR, time)
        self._made: set[str] = set()

    @classmethod
    def create(
        cls,
        run: RunPaths,
        root: Path,
        files: Sequence[FileEntry],
        profile_path: str,
        start: Start,
        launch: Mapping[str, Any] | None = None,
        time: int = EPOCH,
    ) -> Workspace:
        """Make the workspace from the target's files under the trusted `root`, with the start applied.

        `launch` overrides the start's profile (the goal's model). Doing it again with equal input gives the equal base.
        `UserError` when a file is missing or the start does not fit the target.
        """
        tree = start.apply(read_target(root, files), profile_path, launch or {})
        repository = Repository.open(run.repository) if run.repository.exists() else Repository.create(run.repository)
        _break_stale_locks(run.repository)
        trailers = f"Start: {start.name}\nProfile-Path: {profile_path}\n"
        message = f"{start.spec.title}\n\n{start.spec.complaint}\n\n{trailers}"
        base = repository.commit_tree(repository.edit_tree(None, tree), None, message, Signature(*AUTHOR, time))
        main = repository.resolve("refs/heads/main")
        if main not in (None, base):
            raise UserError(f"{run.repository} was made from another state of the target; start a new run")
        if main is None:
            repository.set_branch("main", base, None)
        if repository.resolve(f"refs/heads/{KEPT}") is None:
            repository.set_branch(KEPT, base, None)
        return cls(run, repository, base, profile_path, time)

    @classmethod
    def open(cls, run: RunPaths) -> Workspace:
        """A workspace made before: everything may be read, and candidates may be checked out and made."""
        if not (run.repository / "HEAD").is_file():
            raise UserError(f"the run {run.id} has no workspace ({run.repository}): it was cut off before it began")
        repository = Repository.open(run.repository)
        base = repository.resolve("refs/heads/main")
        if base is None:
            raise UserError(f"the workspace {run.repository} has no starting state: it was cut off before it began")
        message = repository.run("log", "-1", "--format=%B", base)
        time = int(repository.run("log", "-1", "--format=%at", base))
        return cls(run, repository, base, trailers_of(message)["Profile-Path"], time)

    # -- candidates

    def commit(self, base: str, change: Change, message: str = "Candidate") -> Candidate:
        """The candidate `base` + `change`, checked out.

        `EmptyChange` when nothing changes; `ValueError` for a path that is not inside the target or cannot be deleted.
        Whether a path may be edited is the static probe's question, not this one's.
        """
        writes = self._writes(base, change)
        tree = self._git.edit_tree(base, writes)
        if tree == self._git.run("rev-parse", f"{base}^{{tree}}"):
            raise EmptyChange("the change leaves every file as it was")
        commit = self._git.commit_tree(tree, base, message.rstrip("\n") + "\n", self._signature)
        return Candidate(commit, base, self.worktree(commit), self.changed(base, commit))

    def _writes(self, base: str, change: Change) -> dict[str, Entry | None]:
        modes = self._git.entries(base)
        writes: dict[str, Entry | None] = {}
        for path, text in change.files.items():
            parts = PurePosixPath(path).parts
            inside = path and "\n" not in path and not path.startswith("/") and PurePosixPath(path).as_posix() == path
            if not inside or ".." in parts or ".git" in parts:
                raise ValueError(f"{path!r} is not a path inside the target")
            if text is None and path not in modes:
                raise ValueError(f"cannot delete {path}: there is no such file")
            executable = modes.get(path, ("100644", ""))[0] == "100755"
            writes[path] = None if text is None else Entry(text.encode(), executable)
        if change.launch:
            written = writes.get(self.profile_path)
            profile = written.data.decode() if written else self.read(base, self.profile_path)
            writes[self.profile_path] = Entry(tomltext.edit(profile, nested(change.launch)).encode())
        return writes

    def commit_tree(self, parent: str, tree: Mapping[str, Entry], message: str) -> str:
        """A commit with exactly these files; on no branch and not checked out."""
        return self._git.commit_tree(self._git.edit_tree(None, tree), parent, message, self._signature)

    def worktree(self, commit: str) -> Path:
        """The checkout of a commit, made when this process has not made it yet."""
        path = self._run.worktrees / commit[:16]
        if commit not in self._made:
            # One that an earlier process left may be half written, or written to since.
            self._remove(path)
            make_dir(self._run.worktrees)
            self._git.run("worktree", "prune")
            self._git.run("worktree", "add", "--quiet", "--force", "--detach", str(path), commit)
            self._made.add(commit)
        return path

    def prune(self, keep: Iterable[str] = ()) -> None:
        """Remove every checkout but those of `keep`; the commits stay."""
        wanted = {commit[:16] for commit in keep}
        if self._run.worktrees.is_dir():
            for path in self._run.worktrees.iterdir():
                if path.name not in wanted:
                    self._remove(path)
        self._made = {commit for commit in self._made if commit[:16] in wanted}
        self._git.run("worktree", "prune")

    def _remove(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    # -- what was kept

    @property
    def kept_tip(self) -> str:
        """The best state so far: the tip of the kept branch."""
        return self._git.run("rev-parse", "--verify", f"refs/heads/{KEPT}")

    def keep(self, candidate: str, subject: str, trailers: Mapping[str, str]) -> str:
        """Put a candidate on the kept branch with its message and trailers; returns the kept commit.

        The candidate must be based on the tip; `ValueError` otherwise. Keeping the same thing again is no change, also
        when more was kept since: a run that was cut off after this may do it again.
        """
        base = self._git.run("rev-parse", "--verify", f"{candidate}^")
        message = f"{' '.join(subject.split())}\n\n" + "".join(
            f"{key}: {' '.join(item.split())}\n" for key, item in trailers.items()
        )
        tree = self._git.run("rev-parse", f"{candidate}^{{tree}}")
        kept = self._git.commit_tree(tree, base, message, self._signature)
        if kept in {move.commit for move in self.kept()}:
            return kept
        if base != self.kept_tip:
            raise ValueError(
                f"candidate {candidate[:12]} is based on {base[:12]}, the kept branch is at {self.kept_tip[:12]}"
            )
        self._git.set_branch(KEPT, kept, base)
        return kept

    def kept(self) -> list[KeptMove]:
        """The kept moves, oldest first."""
        commits = self._git.run("rev-list", "--reverse", f"{self.base}..refs/heads/{KEPT}").split()
        moves = []
        for commit in commits:
            message = self._git.run("log", "-1", "--format=%B", commit)
            parent = self._git.run("rev-parse", f"{commit}^")
            moves.append(KeptMove(commit, parent, message.splitlines()[0], message, trailers_of(message)))
        return moves

    # -- reading

    def read(self, commit: str, path: str) -> str:
        """The text of a file in a commit; `KeyError` when it is not there."""
        where = self._git.entries(commit)
        return self._git.blobs([where[path][1]])[0].decode("utf-8")

    def sources(self, commit: str) -> dict[str, str]:
        """Path -> text of every file of a commit that is text."""
        texts = {}
        for path, entry in self._git.contents(commit).items():
            try:
                texts[path] = entry.data.decode("utf-8")
            except UnicodeDecodeError:
                continue
        return texts

    def config(self, commit: str) -> dict[str, Any]:
        """The launch configuration of a commit."""
        return tomltext.parse(self.read(commit, self.profile_path), self.profile_path)

    def digests(self, commit: str) -> dict[str, str]:
        """Path -> SHA-256 of every file of a commit: what a worker's imports are checked against."""
        return {path: sha256(entry.data) for path, entry in self._git.contents(commit).items()}

    def tree_digest(self, commit: str) -> str:
        """Identity of the whole tree of a commit (git's own): equal trees, equal digest, whatever led there."""
        return self._git.run("rev-parse", "--verify", f"{commit}^{{tree}}")

    def changed(self, old: str, new: str) -> tuple[str, ...]:
        """Paths that differ between two commits, sorted."""
        return tuple(sorted(self._git.changed(old, new)))

    def diff(self, old: str, new: str) -> str:
        """The unified diff between two commits."""
        return self._git.diff(old, new)

    @property
    def repository(self) -> Repository:
        """The repository underneath, for `apply`."""
        return self._git


def trailers_of(message: str) -> dict[str, str]:
    """The `Key: value` lines of a message's last paragraph."""
    paragraphs = message.strip().split("\n\n")
    last = paragraphs[-1].splitlines() if len(paragraphs) > 1 else []
    pairs = (line.split(": ", 1) for line in last if ": " in line)
    return {key: item for key, item in pairs if " " not in key}


def _break_stale_locks(repository: Path) -> None:
    """Locks that a killed git left; the ledger's lock says that nobody else writes here."""
    for lock in repository.rglob("*.lock"):
        lock.unlink(missing_ok=True)
