"""`apply`: kept moves on a new branch, and nothing else of the user's repository changed, whatever goes wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from feedback.errors import UserError
from infra_agent.apply import apply_run
from infra_agent.ledger import Ledger
from infra_agent.paths import RunPaths, new_run
from infra_agent.records import Outcome
from tests.infra_agent.example_run import MOVES, begin, write_run
from tests.infra_agent.target_files import FILES, PROFILE_PATH, write_target
from tests.infra_agent.test_workspace import Edit


def git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


def repository(folder: Path, prefix: str = "") -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    write_target(folder / prefix)
    (folder / "README").write_text("mine\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


def snapshot(folder: Path) -> tuple:
    """Everything that `apply` must not change: refs, HEAD, index and the files of the working tree."""
    status = git(folder, "status", "--porcelain")
    grows = (folder / ".git/objects", folder / ".git/logs/refs")
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(path.is_relative_to(each) for each in grows)
    }
    return git(folder, "for-each-ref"), status, files


def example(repo: Path, prefix: str = "", **options: object) -> RunPaths:
    root = repo / prefix
    entries = write_target(root)
    return write_run(root, entries, repo.parent / "starts", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["", "packages/serving"])
def test_the_branch_has_the_start_each_kept_move_and_what_came_back(tmp_path: Path, prefix: str) -> None:
    repo = repository(tmp_path / "repo", prefix)
    run = example(repo, prefix)
    head, before = git(repo, "rev-parse", "HEAD"), snapshot(repo)
    applied = apply_run(run, repo)
    assert applied.branch == f"infra-agent/{run.id}"
    assert git(repo, "log", "--reverse", "--format=%s|%an|%cn", f"{head}..{applied.branch}").splitlines() == [
        "The state that a run began from: start slow|infra-agent|Ada",
        "Move m01|infra-agent|Ada",
        "Move m03|infra-agent|Ada",
        "Bring back what start slow had left out or replaced|infra-agent|Ada",
    ]
    assert git(repo, "log", "-1", "--format=%(trailers:key=Verdict,valueonly)", applied.commits[1]).strip() == "abc"
    base = prefix + "/" if prefix else ""
    whole = git(repo, "diff", "--name-status", head, applied.branch).splitlines()
    assert sorted(whole) == sorted([f"M\t{base}engine/ops/linear/packed.py", f"A\t{base}{PROFILE_PATH}"])
    assert git(repo, "show", f"{applied.branch}:{base}engine/ops/linear/packed.py") == "my packed"
    assert git(repo, "show", f"{applied.branch}:{base}{PROFILE_PATH}").splitlines() == [
        "# The first version.", "max_batch = 16  # slots", "threads = 1", "", "[operators]", 'linear = "packed"',
    ]  # fmt: skip
    # As it was measured: the first commit is the run's own beginning, file by file.
    first = git(repo, "rev-list", "--reverse", f"{head}..{applied.branch}").splitlines()[0]
    assert git(repo, "diff", "--name-status", head, first).splitlines() == [
        f"D\t{base}engine/ops/linear/packed.py", f"A\t{base}{PROFILE_PATH}", f"M\t{base}engine/scheduler.py",
    ]  # fmt: skip
    refs, status, files = snapshot(repo)
    assert (status, files) == (
        before[1],
        before[2] | {f".git/refs/heads/{applied.branch}": f"{applied.tip}\n".encode()},
    )
    assert set(refs.splitlines()) - set(before[0].splitlines()) == {
        f"{applied.tip} commit\trefs/heads/{applied.branch}"
    }


def test_a_move_that_mends_a_replaced_file_stays(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    mend = ("m01", "code", Edit({"engine/scheduler.py": "mended\n"}), None, Outcome.KEEP)
    applied = apply_run(example(repo, moves=[mend]), repo / "engine", branch="mended")
    assert git(repo, "show", "mended:engine/scheduler.py") == "mended"
    assert git(repo, "show", "mended:engine/ops/linear/packed.py") == FILES["engine/ops/linear/packed.py"].rstrip()
    assert applied.folder == ""


def refused(run: RunPaths, repo: Path, said: str, **options: str) -> None:
    before = snapshot(repo)
    with pytest.raises(UserError, match=said) as caught:
        apply_run(run, repo, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert snapshot(repo) == before


def test_a_dirty_tree_is_refused(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    run = example(repo)
    (repo / "README").write_text("changed\n")
    refused(run, repo, r"changes that are not committed \(README\)")
    git(repo, "add", "README")
    refused(run, repo, r"changes that are not committed \(README\)")
    git(repo, "commit", "--quiet", "--message", "mine")
    (repo / "notes.txt").write_text("not of the target, not tracked\n")
    assert apply_run(run, repo).tip


def test_files_that_are_not_those_of_the_run_are_named(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    run = example(repo)
    (repo / "engine/ops/rope/plain.py").write_text("another\n")
    git(repo, "commit", "--quiet", "--all", "--message", "edit")
    refused(run, repo, r"engine/ops/rope/plain\.py in HEAD is not the file that the run began from")
    git(repo, "rm", "--quiet", "engine/ops/rope/plain.py")
    git(repo, "commit", "--quiet", "--message", "remove")
    refused(run, repo, r"engine/ops/rope/plain\.py is not in HEAD")


def test_a_file_in_the_way_of_a_move_is_named(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    adds = ("m01", "code", Edit({"engine/helper.py": "theirs\n"}), None, Outcome.KEEP)
    run = example(repo, moves=[adds])
    (repo / "engine/helper.py").write_text("mine, not a file of the target\n")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message", "helper")
    refused(run, repo, r"engine/helper\.py exists in HEAD and the move 'Move m01' adds another one")


def test_branches_and_places_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    run = example(repo)
    refused(run, repo, "the branch trunk exists already", branch="trunk")
    refused(run, repo, "not a name for a branch", branch="a..b")
    refused(run, repo, "is not in HEAD", prefix="elsewhere")
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(UserError, match="is in no git repository"):
        apply_run(run, outside)
    with pytest.raises(UserError, match="there is no folder"):
        apply_run(run, tmp_path / "nowhere")
    git(outside, "init", "--quiet")
    with pytest.raises(UserError, match="has no commit yet"):
        apply_run(run, outside)
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    git(other, "-c", "user.name=x", "-c", "user.email=x", "commit", "--quiet", "--allow-empty", "--message", "x")
    with pytest.raises(UserError, match="not the repository of the target"):
        apply_run(run, other)


def test_two_copies_of_the_target_need_a_word(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", "one")
    write_target(repo / "two")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message", "copy")
    run = example(repo, "one")
    refused(run, repo, r"in several folders of this repository \(one, two\)")
    applied = apply_run(run, repo, prefix="two/")
    assert {path.split("/")[0] for path in git(repo, "diff", "--name-only", "HEAD", applied.tip).splitlines()} == {
        "two"
    }


def test_nothing_kept_and_nothing_begun(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    rejected = [move for move in MOVES if move[4] is Outcome.REJECT]
    refused(example(repo, moves=rejected), repo, "kept no move")
    run = new_run("throughput", "20260102-030406")
    Ledger.open(run.ledger).close()
    refused(run, repo, "cut off before it began")


def test_a_user_whom_git_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(tmp_path / "repo")
    run = example(repo)
    for key in ("user.name", "user.email"):
        git(repo, "config", "--unset", key)
    git(repo, "config", "user.useConfigOnly", "true")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    applied = apply_run(run, repo)
    assert git(repo, "log", "-1", "--format=%cn <%ce>", applied.tip) == "infra-agent <infra-agent@localhost>"


def test_the_run_is_made_from_an_installed_copy_too(tmp_path: Path) -> None:
    """The files of the run lie outside of any repository; the user's has the same ones in a folder."""
    repo = repository(tmp_path / "repo", "src")
    installed = tmp_path / "site-packages"
    entries = write_target(installed)
    run = write_run(installed, entries, tmp_path / "starts")
    assert apply_run(run, repo).folder == "src/"


def test_begin_alone_is_a_run_without_moves(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    run, workspace, record = begin(repo, write_target(repo), tmp_path / "starts")
    with Ledger.open(run.ledger) as ledger:
        ledger.note("run", "run", record)
    refused(run, repo, "kept no move")
    assert workspace.kept() == []
