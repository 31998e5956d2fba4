"""The workspace: equal ids for equal input, candidates side by side, kept moves with trailers, the target untouched."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback.errors import UserError
from feedback.target import FileEntry, Role
from infra_agent.paths import RunPaths
from infra_agent.start import Start
from infra_agent.targetfiles import copy_target, file_digests, read_target, root_of
from infra_agent.workspace import EmptyChange, Workspace
from tests.infra_agent.target_files import FILES, PROFILE_PATH, SLOW_START, write_start, write_target


@dataclass(frozen=True)
class Edit:
    files: dict[str, str | None] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)


def make(folder: Path, **options: Any) -> tuple[Workspace, RunPaths]:
    root = folder / "target"
    entries = write_target(root)
    if not (folder / "slow").exists():
        write_start(folder / "slow", SLOW_START, {"engine/scheduler.py": "def schedule():\n    return [1]\n"})
    run = RunPaths(folder / "run")
    run.root.mkdir(exist_ok=True)
    return Workspace.create(run, root, entries, PROFILE_PATH, Start.load(folder / "slow"), **options), run


def test_the_base_is_the_start_alone(tmp_path: Path) -> None:
    workspace, run = make(tmp_path, launch={"model": "x.gguf"})
    assert sorted(workspace.sources(workspace.base)) == [
        "engine/__init__.py",
        "engine/adapter.py",
        "engine/ops/linear/plain.py",
        "engine/ops/rope/plain.py",
        "engine/profiles/run.toml",
        "engine/scheduler.py",
    ]
    assert workspace.read(workspace.base, "engine/scheduler.py").endswith("[1]\n")
    assert workspace.read(workspace.base, PROFILE_PATH) == (
        '# The first version.\nmax_batch = 4  # slots\nthreads = 1\nmodel = "x.gguf"\n\n[operators]\nlinear = "plain"\n'
    )
    history = subprocess.run(
        ["git", "rev-list", "--all"], cwd=run.repository, capture_output=True, text=True, check=True
    ).stdout.split()
    assert history == [workspace.base]
    assert not any(b"pack(w)" in path.read_bytes() for path in run.root.rglob("*") if path.is_file())


def test_equal_input_gives_equal_ids_in_another_folder_whatever_the_user_has_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = make(tmp_path / "a")
    one = first.commit(first.base, Edit({"engine/scheduler.py": "x = 1\r\n"}, {"max_batch": 8}))
    config = tmp_path / "gitconfig"
    config.write_text(
        "[user]\nname = A\nemail = a@b\n[core]\nautocrlf = true\nhooksPath = /nowhere\n[commit]\ngpgSign = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2020-01-01T00:00:00")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    second, _ = make(tmp_path / "b")
    two = second.commit(second.base, Edit({"engine/scheduler.py": "x = 1\r\n"}, {"max_batch": 8}))
    assert (first.base, one.commit) == (second.base, two.commit)
    assert (two.path / "engine/scheduler.py").read_bytes() == b"x = 1\r\n"
    assert not (tmp_path / "elsewhere").exists()


def test_candidates_are_side_by_side_and_the_target_is_untouched(tmp_path: Path) -> None:
    workspace, run = make(tmp_path)
    before = {path: (tmp_path / "target" / path).read_bytes() for path in FILES}
    one = workspace.commit(
        workspace.base, Edit({"engine/ops/linear/fused.py": "new\n", "engine/ops/rope/plain.py": None})
    )
    two = workspace.commit(workspace.base, Edit(launch={"max_batch": 16, "operators.rope": "native"}))
    assert one.changed == ("engine/ops/linear/fused.py", "engine/ops/rope/plain.py")
    assert (one.path / "engine/ops/linear/fused.py").read_text() == "new\n"
    assert not (one.path / "engine/ops/rope/plain.py").exists()
    assert (two.path / "engine/ops/rope/plain.py").exists()
    assert two.changed == (PROFILE_PATH,)
    assert workspace.config(two.commit) == {
        "max_batch": 16, "threads": 1, "operators": {"linear": "plain", "rope": "native"},
    }  # fmt: skip
    assert "-max_batch = 4  # slots\n+max_batch = 16  # slots\n" in workspace.diff(workspace.base, two.commit)
    assert {path: (tmp_path / "target" / path).read_bytes() for path in FILES} == before
    workspace.prune(keep=[two.commit])
    assert [path.name for path in run.worktrees.iterdir()] == [two.path.name]
    assert (workspace.worktree(one.commit) / "engine/ops/linear/fused.py").exists()


def test_a_worktree_left_by_a_killed_process_is_made_again(tmp_path: Path) -> None:
    workspace, run = make(tmp_path)
    candidate = workspace.commit(workspace.base, Edit({"engine/scheduler.py": "x\n"}))
    (candidate.path / "engine/scheduler.py").write_text("tampered\n")
    (candidate.path / "left_over.py").write_text("")
    (run.repository / "refs/heads/kept.lock").write_text("")
    again = make(tmp_path)[0]
    assert (again.worktree(candidate.commit) / "engine/scheduler.py").read_text() == "x\n"
    assert not (candidate.path / "left_over.py").exists()
    assert again.keep(candidate.commit, "m1", {"Verdict": "v"}) == again.kept_tip


def test_kept_moves_carry_trailers_and_keeping_twice_is_keeping_once(tmp_path: Path) -> None:
    workspace, run = make(tmp_path)
    one = workspace.commit(workspace.base, Edit(launch={"max_batch": 8}))
    first = workspace.keep(one.commit, "More slots", {"Hypothesis": "because\nqueued", "Measured": "1.9x [1.8, 2.0]"})
    two = workspace.commit(first, Edit({"engine/scheduler.py": "faster\n"}))
    second = workspace.keep(two.commit, "Faster: scheduling", {"Hypothesis": "b", "Verdict": "abc"})
    assert (
        workspace.keep(one.commit, "More slots", {"Hypothesis": "because\nqueued", "Measured": "1.9x [1.8, 2.0]"})
        == first
    )
    assert [(move.commit, move.parent, move.subject) for move in Workspace.open(run).kept()] == [
        (first, workspace.base, "More slots"),
        (second, first, "Faster: scheduling"),
    ]
    assert workspace.kept()[0].trailers == {"Hypothesis": "because queued", "Measured": "1.9x [1.8, 2.0]"}
    assert workspace.tree_digest(second) == workspace.tree_digest(two.commit)
    other = workspace.commit(workspace.base, Edit({"engine/scheduler.py": "other\n"}))
    with pytest.raises(ValueError, match="is based on"):
        workspace.keep(other.commit, "Not on the tip", {"Verdict": "x"})


@pytest.mark.parametrize(
    "path", ["../outside.py", "/etc/x", "engine/../../x", ".git/config", "engine/./x.py", "", "a\nb"]
)
def test_a_change_stays_inside(tmp_path: Path, path: str) -> None:
    workspace, _ = make(tmp_path)
    with pytest.raises(ValueError, match="not a path inside the target"):
        workspace.commit(workspace.base, Edit({path: "x"}))


def test_an_empty_change_and_a_wrong_delete_are_refused(tmp_path: Path) -> None:
    workspace, _ = make(tmp_path)
    with pytest.raises(EmptyChange):
        workspace.commit(
            workspace.base, Edit({"engine/scheduler.py": workspace.read(workspace.base, "engine/scheduler.py")})
        )
    with pytest.raises(ValueError, match=r"cannot delete engine/none\.py"):
        workspace.commit(workspace.base, Edit({"engine/none.py": None}))


def test_digests_and_the_trusted_copy(tmp_path: Path) -> None:
    workspace, run = make(tmp_path)
    entries = [FileEntry(path=path, role=Role.EDITABLE) for path in FILES]
    copy = copy_target(tmp_path / "target", entries, run.trusted)
    assert file_digests(read_target(copy, entries)) == file_digests(read_target(tmp_path / "target", entries))
    assert (
        workspace.digests(workspace.base)["engine/ops/rope/plain.py"]
        == (file_digests(read_target(copy, entries))["engine/ops/rope/plain.py"])
    )
    (tmp_path / "target/engine/adapter.py").unlink()
    with pytest.raises(UserError, match=r"cannot read .*engine/adapter\.py"):
        read_target(tmp_path / "target", entries)


def test_another_state_of_the_target_does_not_fit_an_old_workspace(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "slow/start.toml").write_text(SLOW_START.replace("threads = 1", "threads = 2"))
    with pytest.raises(UserError, match="another state of the target"):
        make(tmp_path)


def test_no_git_executable_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no `git` executable"):
        make(tmp_path)


def test_a_run_cut_off_before_its_workspace_says_so(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    with pytest.raises(UserError, match="has no workspace"):
        Workspace.open(run)
    shutil.copytree(make(tmp_path / "x")[1].repository, run.repository)
    os.unlink(run.repository / "refs/heads/main")
    with pytest.raises(UserError, match="no starting state"):
        Workspace.open(run)


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["engine/scheduler.py", "engine/new.py", "engine/ops/linear/plain.py"]), texts, min_size=1
    )
)
def test_what_is_committed_is_what_is_read_and_checked_out(tmp_path: Path, files: dict[str, str | None]) -> None:
    workspace, _ = make(tmp_path)
    try:
        candidate = workspace.commit(workspace.base, Edit(files))
    except EmptyChange:
        return
    for path, text in files.items():
        assert workspace.read(candidate.commit, path) == text
        assert (candidate.path / path).read_bytes() == (text or "").encode()
    assert set(candidate.changed) <= set(files)


def test_the_adapter_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "an_engine" / "serving"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py", package / "adapter.py"):
        file.write_text("raise RuntimeError('imported')\n")
    (tmp_path / "one_file_engine.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert root_of("an_engine.serving.adapter") == root_of("an_engine") == root_of("one_file_engine") == tmp_path
    with pytest.raises(UserError, match=r"there is no module an_engine\.serving\.other in"):
        root_of("an_engine.serving.other")
    with pytest.raises(UserError, match="there is no module nowhere_at_all"):
        root_of("nowhere_at_all.adapter")
