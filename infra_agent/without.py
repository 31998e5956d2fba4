"""A state with some of its kept moves taken out, for ablation: each removed move is undone by a three-way merge.

The launch profile is merged parameter by parameter, since two moves that set neighbouring lines do not contradict each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra_agent import tomltext
from infra_agent.repository import Entry
from infra_agent.workspace import Workspace


class CannotTakeOut(ValueError):
    """A later move builds on one that is to be taken out; the text says where."""


def without(workspace: Workspace, tip: str, commits: Sequence[str], message: str) -> str:
    """A commit of `tip` with kept commits undone, newest first; on no branch. `CannotTakeOut` on a conflict."""
    kept = {move.commit: (position, move) for position, move in enumerate(workspace.kept())}
    unknown = [commit for commit in commits if commit not in kept]
    if unknown:
        raise ValueError(f"{unknown[0][:12]} is not a kept move")
    git = workspace.repository
    tree = git.contents(tip)
    for _, move in sorted((kept[commit] for commit in commits), key=lambda item: -item[0]):
        before, after = git.contents(move.parent), git.contents(move.commit)
        for path in git.changed(move.parent, move.commit):
            undo = _undone_profile if path == workspace.profile_path else _undone_file
            entry = undo(workspace, path, before.get(path), after.get(path), tree.get(path))
            tree = {other: each for other, each in tree.items() if other != path}
            if entry is not None:
                tree[path] = entry
    return workspace.commit_tree(tip, tree, message)


def _undone_file(
    workspace: Workspace, path: str, before: Entry | None, after: Entry | None, now: Entry | None
) -> Entry | None:
    if now == after:
        return before
    if now == before:
        return now
    if before is None or after is None or now is None:
        raise CannotTakeOut(f"{path} was added or removed by it and changed again by a later move")
    merged = workspace.repository.merge_text(after.data, now.data, before.data)
    if merged is None:
        raise CannotTakeOut(f"a later move changes the same lines of {path}")
    return Entry(merged, now.executable)


def _undone_profile(
    workspace: Workspace, path: str, before: Entry | None, after: Entry | None, now: Entry | None
) -> Entry | None:
    if before is None or after is None or now is None:
        return _undone_file(workspace, path, before, after, now)
    old, new, current = (dict(_parameters(entry, path)) for entry in (before, after, now))
    changes: dict[str, Any] = {}
    for keys in sorted(old.keys() | new.keys()):
        if old.get(keys) == new.get(keys) or current.get(keys) == old.get(keys):
            continue
        if current.get(keys) != new.get(keys):
            raise CannotTakeOut(f"a later move sets {'.'.join(keys)} again")
        table = changes
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = old.get(keys)
    return Entry(tomltext.edit(now.data.decode(), changes).encode(), now.executable)


def _parameters(entry: Entry, path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    def walk(table: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        for key, item in table.items():
            if isinstance(item, Mapping):
                yield from walk(item, (*prefix, key))
            else:
                yield (*prefix, key), item

    return walk(tomltext.parse(entry.data.decode(), path), ())
