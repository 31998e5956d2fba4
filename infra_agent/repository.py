"""Git by its plumbing: trees and commits are made without a checkout, so that nobody's branch, index or file moves.

GitPython finds and runs git; it is imported at the first use, since it looks for the executable when it is imported.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedback.errors import UserError

if TYPE_CHECKING:
    import git

NOTHING = "0" * 40
#: No settings but the repository's own.
_DEAF = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Entry:
    """The content of one file in a tree."""

    data: bytes
    executable: bool = False


@dataclass(frozen=True)
class Signature:
    """Who, and when (Unix time, UTC)."""

    name: str
    email: str
    time: int

    def environment(self, role: str) -> dict[str, str]:
        """As git takes it, for AUTHOR or COMMITTER."""
        return {
            f"GIT_{role}_NAME": self.name,
            f"GIT_{role}_EMAIL": self.email,
            f"GIT_{role}_DATE": f"@{self.time} +0000",
        }


def gitpython() -> Any:
    """The `git` package; `UserError` when there is no git executable."""
    if shutil.which("git") is None:
        raise UserError("no `git` executable on the path: a run keeps its candidates in a git repository; install git")
    try:
        import git
    except ImportError as error:
        raise UserError(f"git cannot be used: {str(error).splitlines()[0]}") from error
    return git


class Repository:
    """One repository. Every method that fails because git refuses raises `UserError` with git's own line."""

    def __init__(self, repo: git.Repo) -> None:
        self.repo = repo
        self.git_dir = Path(repo.git_dir)
        # A hook that started us has set GIT_DIR for another repository.
        repo.git.update_environment(GIT_DIR=str(self.git_dir))

    @classmethod
    def create(cls, path: Path) -> Repository:
        """A new bare repository, deaf to the user's settings (hooks, signing, line endings)."""
        library = gitpython()
        partial = path.with_name(path.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        command = ["git", "init", "--quiet", "--bare", "--initial-branch=main", "--template=", str(partial)]
        with _told(path):
            library.Git(partial).execute(command, env={**_DEAF, "GIT_DIR": str(partial)})
        partial.rename(path)  # so that a folder of this name is a whole repository
        repository = cls.open(path)
        # Nothing may vanish: candidates that were not kept have no branch.
        repository.run("config", "gc.auto", "0")
        # Rows in the ledger outlive a power cut, so must the commits that they name.
        repository.run("config", "core.fsync", "committed,loose-object")
        return repository

    @classmethod
    def open(cls, path: Path) -> Repository:
        """A scratch repository made by `create`."""
        with _told(path):
            repository = cls(gitpython().Repo(path))
        repository.repo.git.update_environment(**_DEAF)
        return repository

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The user's repository that holds a folder, with the user's settings; `UserError` outside of one."""
        library = gitpython()
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        try:
            found = cls(library.Repo(folder, search_parent_directories=True))
        except (library.InvalidGitRepositoryError, library.NoSuchPathError) as error:
            raise UserError(
                f"{folder.absolute()} is in no git repository; go to yours, or name it with --repo"
            ) from error
        # Looking must not rewrite the user's index.
        found.repo.git.update_environment(GIT_OPTIONAL_LOCKS="0")
        return found

    def run(self, *command: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """One git command's output, less the last line end. Bytes that are not UTF-8 come as surrogates."""
        return self.run_bytes(*command, stdin=stdin, env=env).decode("utf-8", "surrogateescape").rstrip("\n")

    def run_bytes(self, *command: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """One git command's output as it is."""
        with _told(self.git_dir), tempfile.TemporaryFile() as feed:
            feed.write(stdin or b"")
            feed.seek(0)
            out = self.repo.git.execute(
                ["git", *command],
                istream=feed,
                env=dict(env or {}),
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        return out if isinstance(out, bytes) else str(out).encode()

    def resolve(self, revision: str) -> str | None:
        """The commit that a revision names, or None."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}") or None
        except UserError:
            return None

    def entries(self, tree: str) -> dict[str, tuple[str, str]]:
        """Path -> (mode, object id) of every file in a commit or tree."""
        found: dict[str, tuple[str, str]] = {}
        for record in self.run("ls-tree", "-r", "-z", "--full-tree", tree).split("\0"):
            if record:
                head, path = record.split("\t", 1)
                mode, _, oid = head.split()
                found[path] = (mode, oid)
        return found

    def blobs(self, oids: list[str]) -> list[bytes]:
        """The contents of blobs, in order."""
        out = self.run_bytes("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in oids).encode())
        contents: list[bytes] = []
        at = 0
        for oid in oids:
            end = out.index(b"\n", at)
            header = out[at:end].split()
            if len(header) != 3:
                raise UserError(f"{self.git_dir}: object {oid} is missing; the repository is damaged")
            size = int(header[2])
            contents.append(out[end + 1 : end + 1 + size])
            at = end + 1 + size + 1
        return contents

    def contents(self, tree: str, paths: Iterable[str] | None = None) -> dict[str, Entry]:
        """The files of a commit or tree (those of `paths` that it has); links and submodules are left out."""
        files = {path: where for path, where in self.entries(tree).items() if where[0] in ("100644", "100755")}
        if paths is not None:
            files = {path: files[path] for path in paths if path in files}
        data = self.blobs([oid for _, oid in files.values()])
        return {path: Entry(content, files[path][0] == "100755") for path, content in zip(files, data, strict=True)}

    def edit_tree(self, base: str | None, changes: Mapping[str, Entry | None]) -> str:
        """The tree of `base` (None: empty) with files written, or removed where None. Returns the tree's id."""
        with tempfile.TemporaryDirectory(prefix="infra-agent-") as folder:
            written = [(path, entry) for path, entry in changes.items() if entry is not None]
            names = []
            for number, (_, entry) in enumerate(written):
                name = Path(folder) / str(number)
                name.write_bytes(entry.data)
                names.append(f"{name}\n")
            hashed = self.run("hash-object", "-w", "--no-filters", "--stdin-paths", stdin="".join(names).encode())
            lines = [f"0 {NOTHING}\t{path}\0" for path, entry in changes.items() if entry is None]
            for (path, entry), oid in zip(written, hashed.split(), strict=True):
                lines.append(f"{'100755' if entry.executable else '100644'} {oid}\t{path}\0")
            env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self.run("read-tree", base or "--empty", env=env)
            feed = "".join(lines).encode("utf-8", "surrogateescape")
            self.run("update-index", "-z", "--index-info", stdin=feed, env=env)
            return self.run("write-tree", env=env)

    def commit_tree(
        self, tree: str, parent: str | None, message: str, author: Signature, committer: Signature | None = None
    ) -> str:
        """A commit of a tree, on no branch yet. Equal arguments give the equal id."""
        env = author.environment("AUTHOR") | (committer or author).environment("COMMITTER")
        parents = ["-p", parent] if parent else []
        return self.run("commit-tree", tree, *parents, "-F", "-", stdin=message.encode(), env=env)

    def set_branch(self, branch: str, new: str, old: str | None) -> None:
        """Move a branch from `old` (None: it must not exist yet) to `new`, atomically."""
        self.run("update-ref", f"refs/heads/{branch}", new, old or NOTHING)

    def changed(self, old: str, new: str) -> dict[str, str]:
        """Path -> A, M, D or T for every file that differs."""
        fields = self.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", old, new).split("\0")
        return dict(zip(fields[1::2], fields[0::2], strict=False))

    def merge_text(self, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
        """The three-way merge of one file, None on a conflict."""
        with _told(self.git_dir), tempfile.TemporaryDirectory(prefix="infra-agent-") as folder:
            names = []
            for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
                (Path(folder) / name).write_bytes(data)
                names.append(str(Path(folder) / name))
            status, _, _ = self.repo.git.execute(
                ["git", "merge-file", "--quiet", *names], with_extended_output=True, with_exceptions=False
            )
            return (Path(folder) / "ours").read_bytes() if status == 0 else None

    def diff(self, old: str, new: str) -> str:
        """The unified diff."""
        return self.run("diff-tree", "-p", "--no-color", "--no-ext-diff", "--no-textconv", old, new)


@contextmanager
def _told(where: Path) -> Generator[None]:
    """Turn a failed git command into one line."""
    library = gitpython()
    try:
        yield
    except library.GitCommandError as error:
        told = str(error.stderr or "").strip().removeprefix("stderr:").strip(" '\n").splitlines()
        command = error.command if isinstance(error.command, str) else " ".join(error.command)
        raise UserError(f"git failed in {where}: {told[-1] if told else command}") from error
    except (library.InvalidGitRepositoryError, library.NoSuchPathError) as error:
        raise UserError(f"{where} is not a git repository") from error
