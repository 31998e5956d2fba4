"""Put a run's kept moves on a new branch of the user's repository, ready to review.

The branch begins at HEAD less the start's changes (the state that the run began from), then has one commit per kept
move with its trailers. Files that the start had left out or replaced and no kept move has touched come back in a last
commit, so that the whole branch against HEAD is what the moves did and nothing else.

Everything is made by plumbing in the object store: no checkout, index or branch of the user's changes, and the new
branch appears in one step at the end or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from feedback.errors import UserError
from feedback.guard import is_profile
from infra_agent.ledger import Ledger
from infra_agent.paths import RunPaths
from infra_agent.records import RunRecord
from infra_agent.repository import Entry, Repository, Signature
from infra_agent.targetfiles import sha256
from infra_agent.workspace import AUTHOR, NEEDS, KeptMove, Workspace


@dataclass(frozen=True)
class Applied:
    """The new branch: `commits` are the kept moves on it, `head` what it began from. `needs`: what a person has to
    approve before it is merged, a phrase each.
    """

    branch: str
    head: str
    tip: str
    folder: str
    commits: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Site:
    """Where the target stands in the user's repository; `prefix` is empty or ends with a slash."""

    repository: Repository
    head: str
    prefix: str
    files: Mapping[str, Entry]  # the target's files in HEAD, by path in the target
    others: frozenset[str]  # every other path of HEAD below the prefix, by path in the target


def apply_run(run: RunPaths, folder: Path, branch: str | None = None, prefix: str | None = None) -> Applied:
    """Make the branch (`infra-agent/<run>` by default) in the repository that holds `folder`.

    `UserError` when there is nothing to apply, outside of a repository, for a dirty tree, an existing branch, or files
    in HEAD that are not those the run began from.
    """
    with Ledger.read(run.ledger) as ledger:
        if not ledger.has("run", "run"):
            raise UserError(f"the run {run.id} was cut off before it began: there is nothing to apply")
        record = RunRecord.model_validate(ledger.result("run", "run"))
    workspace = Workspace.open(run)
    moves = workspace.kept()
    if not moves:
        raise UserError(f"the run {run.id} kept no move: there is nothing to apply")
    repository = Repository.around(folder)
    name = _branch(repository, branch or f"infra-agent/{run.id}")
    site = _site(repository, record, workspace, prefix)
    author = Signature(*AUTHOR, int(time.time()))
    committer = _committer(repository, author)

    tree = {**site.files}
    begun = workspace.repository.contents(workspace.base)
    start = _start_changes(site, begun, workspace.profile_path)
    tip, tree = _step(site, site.head, tree, start, _start_message(record), author, committer)
    commits = []
    for move in moves:
        changes = _move_changes(site, workspace, move)
        tip, tree = _step(site, tip, tree, changes, move.message, author, committer)
        commits.append(tip)
    back = {
        path: site.files.get(path)
        for path, entry in start.items()
        if path != workspace.profile_path and tree.get(path) == entry
    }
    tip, tree = _step(site, tip, tree, back, _back_message(record), author, committer)
    repository.set_branch(name, tip, None)
    needs = tuple(f"{move.subject}: {move.trailers[NEEDS]}" for move in moves if NEEDS in move.trailers)
    return Applied(name, site.head, tip, site.prefix, tuple(commits), needs)


def _branch(repository: Repository, name: str) -> str:
    try:
        repository.run("check-ref-format", "--branch", name)
    except UserError as error:
        raise UserError(f"{name!r} is not a name for a branch") from error
    if repository.resolve(f"refs/heads/{name}") is not None:
        raise UserError(f"the branch {name} exists already; name another one with --branch, or delete it")
    return name


def _site(repository: Repository, record: RunRecord, workspace: Workspace, prefix: str | None) -> _Site:
    if repository.repo.working_tree_dir is None:
        raise UserError(f"{repository.git_dir} is a bare repository; apply in one that has a working tree")
    head = repository.resolve("HEAD")
    if head is None:
        raise UserError(f"{repository.repo.working_tree_dir} has no commit yet: commit the target's files first")
    changed = [line[3:] for line in repository.run("status", "--porcelain", "-z", "--untracked-files=no").split("\0")]
    if any(changed):
        more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
        raise UserError(
            f"the working tree has changes that are not committed ({changed[0]}{more}): commit or stash them"
        )
    paths = set(repository.entries(head))
    prefix = _prefix(paths, record, prefix)
    contents = repository.contents(head, [prefix + path for path in record.files])
    files: dict[str, Entry] = {}
    for path, digest in sorted(record.files.items()):
        if is_profile(path, workspace.profile_path) and prefix + path not in contents:
            continue
        found = contents.get(prefix + path)
        if found is None:
            raise UserError(f"{prefix}{path} is not in HEAD, and the run began from it: apply where the run was made")
        if sha256(found.data) != digest and path != workspace.profile_path:
            raise UserError(f"{prefix}{path} in HEAD is not the file that the run began from: apply on that commit")
        files[path] = found
    others = {path[len(prefix) :] for path in paths if path.startswith(prefix)} - files.keys()
    return _Site(repository, head, prefix, files, frozenset(others))


def _prefix(paths: set[str], record: RunRecord, wanted: str | None) -> str:
    if wanted is not None:
        return "" if wanted in ("", ".") else PurePosixPath(wanted).as_posix().strip("/") + "/"
    anchor = max(record.files, key=lambda path: (path.count("/"), len(path)))
    found = [path[: -len(anchor)] for path in paths if path == anchor or path.endswith("/" + anchor)]
    best = max((sum(p + path in paths for path in record.files) for p in found), default=0)
    likely = sorted(p for p in found if sum(p + path in paths for path in record.files) == best)
    if not likely:
        raise UserError(f"HEAD has no {anchor}: this is not the repository of the target that the run was about")
    if len(likely) > 1:
        named = ", ".join(each.rstrip("/") or "." for each in likely)
        raise UserError(f"the target stands in several folders of this repository ({named}): name one with --prefix")
    return likely[0]


def _start_changes(site: _Site, begun: Mapping[str, Entry], profile_path: str) -> dict[str, Entry | None]:
    """What turns HEAD into the state that the run began from; launch profiles other than the run's stay."""
    changes: dict[str, Entry | None] = {
        path: None for path in site.files if path not in begun and not is_profile(path, profile_path)
    }
    for path, entry in begun.items():
        if path in site.others:
            raise UserError(
                f"{site.prefix}{path} exists in HEAD and the run's start adds another one: move it away first"
            )
        if site.files.get(path) != entry:
            changes[path] = entry
    return changes


def _move_changes(site: _Site, workspace: Workspace, move: KeptMove) -> dict[str, Entry | None]:
    after = workspace.repository.contents(move.commit)
    paths = workspace.changed(move.parent, move.commit)
    for path in paths:
        if path in site.others:
            raise UserError(f"{site.prefix}{path} exists in HEAD and the move {move.subject!r} adds another one")
    return {path: after.get(path) for path in paths}


def _step(
    site: _Site,
    parent: str,
    tree: dict[str, Entry],
    changes: Mapping[str, Entry | None],
    message: str,
    author: Signature,
    committer: Signature,
) -> tuple[str, dict[str, Entry]]:
    """One commit, or the parent when there is nothing to change; with the target's files after it."""
    if not changes:
        return parent, tree
    edited = site.repository.edit_tree(parent, {site.prefix + path: entry for path, entry in changes.items()})
    after = {path: entry for path, entry in tree.items() if path not in changes}
    after |= {path: entry for path, entry in changes.items() if entry is not None}
    return site.repository.commit_tree(edited, parent, message, author, committer), after


def _committer(repository: Repository, otherwise: Signature) -> Signature:
    """The user, when git knows who that is."""
    try:
        name, rest = repository.run("var", "GIT_COMMITTER_IDENT").split(" <", 1)
        email = rest.split(">", 1)[0]
    except (UserError, ValueError):
        return otherwise
    return Signature(name, email, otherwise.time)


def _start_message(record: RunRecord) -> str:
    return (
        f"The state that a run began from: start {record.start}\n\n"
        "What the start leaves out is taken out, what it replaces is replaced, and the launch profile\n"
        "of the run is added, so that each commit after this one is one kept move as it was measured.\n\n"
        f"Run: {record.run}\nGoal: {record.goal}\n"
    )


def _back_message(record: RunRecord) -> str:
    return (
        f"Bring back what start {record.start} had left out or replaced\n\n"
        "Only files that no kept move has touched: the branch as a whole is what the moves did.\n\n"
        f"Run: {record.run}\n"
    )
