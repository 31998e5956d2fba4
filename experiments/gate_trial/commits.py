"""A scratch repository of the target with commits of which it is known what they are: five harmless, two wrong, three
slow by a set amount.

Every commit stands on the base by itself. A commit edits texts; one whose text is not there any more is an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from feedback.errors import UserError
from infra_agent.repository import Entry, Repository, Signature

PACKAGE = "target_engine"
ENGINE, LLAMA = f"{PACKAGE}/engine.py", f"{PACKAGE}/models/llama.py"
SAMPLER, NORM = f"{PACKAGE}/execution/sampler.py", f"{PACKAGE}/ops/rms_norm/native.py"
AUTHOR = Signature("gate trial", "gate-trial@localhost", 946_684_800)

Texts = Mapping[str, str]


@dataclass(frozen=True)
class Commit:
    """One commit on the base. `outcome` is what the gate has to say: `pass` or `regression`."""

    name: str
    kind: str  # harmless, wrong, slow
    edit: Callable[[Texts], dict[str, str]]

    @property
    def outcome(self) -> str:
        """What the gate has to say."""
        return "pass" if self.kind == "harmless" else "regression"


def replaced(texts: Texts, path: str, *edits: tuple[str, str]) -> dict[str, str]:
    """A file with texts replaced; `UserError` when one is not there."""
    text = texts.get(path, "")
    for old, new in edits:
        if old not in text:
            raise UserError(f"{path} does not hold {old!r}: this commit was made for another version of the target")
        text = text.replace(old, new)
    return {path: text}


def slower(percent: int) -> Callable[[Texts], dict[str, str]]:
    """A step that waits, busily, until it has taken `percent` per cent longer."""

    def edit(texts: Texts) -> dict[str, str]:
        end = '            self.spans.add("step", "step", start, time.monotonic_ns(), facts)\n        return outputs\n'
        wait = (
            f"        until = start + (time.monotonic_ns() - start) * {100 + percent} // 100\n"
            "        while time.monotonic_ns() < until:\n            pass\n"
        )
        return replaced(
            texts, ENGINE, (end, end.replace("        return outputs\n", f"{wait}        return outputs\n"))
        )

    return edit


def far_positions(texts: Texts) -> dict[str, str]:
    """Positions beyond 127 all count as 127: short prompts are right, long ones are not."""
    return replaced(texts, LLAMA, ("self.rotary(step.positions)", "self.rotary(step.positions.clamp(max=127))"))


def last_row(texts: Texts) -> dict[str, str]:
    """The last of an odd number of rows is not normalised, as a loop over pairs of rows would forget it."""
    forgotten = "        if rows > 1 and rows % 2:\n            y[-1] = x[-1]\n        return y\n"
    return replaced(texts, NORM, ("        return y\n", forgotten))


def described(texts: Texts) -> dict[str, str]:
    """A longer docstring."""
    old = '"""Whether any request is unfinished."""'
    return replaced(texts, ENGINE, (old, '"""Whether any request is unfinished, waiting or running."""'))


def renamed(texts: Texts) -> dict[str, str]:
    """A local variable under another name."""
    return replaced(texts, SAMPLER, ("params", "wanted"))


def unused(texts: Texts) -> dict[str, str]:
    """One more form of an operator, which nobody selects."""
    form = f"{PACKAGE}/ops/silu_mul/torch.py"
    return {f"{PACKAGE}/ops/silu_mul/plain.py": replaced(texts, form, ("F.silu(gate) * up", "up * F.silu(gate)"))[form]}


def documented(texts: Texts) -> dict[str, str]:
    """A file that is no part of the target."""
    return {"NOTES.md": "# Notes\n\nThe engine answers requests in the order in which they arrive.\n"}


def extracted(texts: Texts) -> dict[str, str]:
    """An expression in a method of its own."""
    old = "return len(self.scheduler.running) + len(self.scheduler.waiting)"
    new = (
        "return self._known()\n\n    def _known(self) -> int:\n"
        '        """Requests that the scheduler knows."""\n'
        "        return len(self.scheduler.running) + len(self.scheduler.waiting)"
    )
    return replaced(texts, ENGINE, (old, new))


COMMITS: tuple[Commit, ...] = (
    Commit("a longer docstring", "harmless", described),
    Commit("slower by 10 %", "slow", slower(10)),
    Commit("a variable renamed", "harmless", renamed),
    Commit("wrong beyond position 127", "wrong", far_positions),
    Commit("one more form of an operator", "harmless", unused),
    Commit("slower by 20 %", "slow", slower(20)),
    Commit("a method extracted", "harmless", extracted),
    Commit("wrong for an odd number of rows", "wrong", last_row),
    Commit("notes beside the code", "harmless", documented),
    Commit("slower by 30 %", "slow", slower(30)),
)


class Scratch:
    """A repository of the installed target, in a folder of its own."""

    def __init__(self, folder: Path, root: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.repository = Repository.create(folder)
        files = (path for path in (root / PACKAGE).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        entries = {path.relative_to(root).as_posix(): Entry(path.read_bytes()) for path in sorted(files)}
        self.texts = {path: entry.data.decode("utf-8", "replace") for path, entry in entries.items()}
        self._tree = self.repository.edit_tree(None, entries)
        self.base = self.repository.commit_tree(self._tree, None, "The target as it is\n", AUTHOR)
        self.repository.set_branch("main", self.base, None)

    def commit(self, commit: Commit) -> str:
        """A commit on the base."""
        writes = {path: Entry(text.encode()) for path, text in commit.edit(self.texts).items()}
        tree = self.repository.edit_tree(self.base, writes)
        return self.repository.commit_tree(tree, self.base, f"{commit.name}\n", AUTHOR)

    def same(self, number: int) -> str:
        """A commit on the base that changes nothing."""
        return self.repository.commit_tree(self._tree, self.base, f"Nothing changed, {number}\n", AUTHOR)
