"""Taking kept moves out: what is left is what would be there without them, or a reason why that cannot be said."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra_agent.without import CannotTakeOut, without
from infra_agent.workspace import Workspace
from tests.infra_agent.target_files import PROFILE_PATH
from tests.infra_agent.test_workspace import Edit, make


def keep(workspace: Workspace, change: Edit, name: str) -> str:
    candidate = workspace.commit(workspace.kept_tip, change)
    return workspace.keep(candidate.commit, name, {"Verdict": name})


def test_each_of_three_moves_can_be_taken_out(tmp_path: Path) -> None:
    workspace, _ = make(tmp_path)
    slots = keep(workspace, Edit(launch={"max_batch": 16}), "slots")
    packed = keep(workspace, Edit({"engine/ops/linear/packed.py": "p\n"}, {"operators.linear": "packed"}), "packed")
    threads = keep(workspace, Edit(launch={"threads": 2}), "threads")
    tip = workspace.kept_tip

    def state(*commits: str) -> tuple[dict, bool]:
        commit = without(workspace, tip, commits, "ablation")
        return workspace.config(commit), "engine/ops/linear/packed.py" in workspace.sources(commit)

    assert state(slots) == ({"max_batch": 4, "threads": 2, "operators": {"linear": "packed"}}, True)
    assert state(packed) == ({"max_batch": 16, "threads": 2, "operators": {"linear": "plain"}}, False)
    assert state(threads) == ({"max_batch": 16, "threads": 1, "operators": {"linear": "packed"}}, True)
    all_out = without(workspace, tip, [slots, packed, threads], "ablation")
    assert workspace.tree_digest(all_out) == workspace.tree_digest(workspace.base)
    assert workspace.kept_tip == tip
    assert without(workspace, tip, [slots], "ablation") == without(workspace, tip, [slots], "ablation")


def test_separate_edits_of_one_file_come_apart_and_nested_ones_do_not(tmp_path: Path) -> None:
    workspace, _ = make(tmp_path)
    lines = [f"line {i}\n" for i in range(30)]
    first = keep(workspace, Edit({"engine/scheduler.py": "".join(lines)}), "rewrite")
    lines[3] = "three\n"
    third = keep(workspace, Edit({"engine/scheduler.py": "".join(lines)}), "line 3")
    lines[25] = "twenty-five\n"
    keep(workspace, Edit({"engine/scheduler.py": "".join(lines)}), "line 25")
    left = without(workspace, workspace.kept_tip, [third], "ablation")
    assert workspace.read(left, "engine/scheduler.py") == "".join(lines).replace("three", "line 3")
    with pytest.raises(CannotTakeOut, match=r"same lines of engine/scheduler\.py"):
        without(workspace, workspace.kept_tip, [first], "ablation")


def test_a_parameter_that_was_set_again_is_named(tmp_path: Path) -> None:
    workspace, _ = make(tmp_path)
    first = keep(workspace, Edit(launch={"max_batch": 8}), "8")
    second = keep(workspace, Edit(launch={"max_batch": 16}), "16")
    with pytest.raises(CannotTakeOut, match="sets max_batch again"):
        without(workspace, workspace.kept_tip, [first], "ablation")
    assert workspace.config(without(workspace, workspace.kept_tip, [first, second], "x"))["max_batch"] == 4
    with pytest.raises(ValueError, match="not a kept move"):
        without(workspace, workspace.kept_tip, [workspace.base], "x")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=4, unique=True), st.data())
def test_independent_moves_commute(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], data: st.DataObject
) -> None:
    """Moves that touch different files and parameters: taking some out leaves the state that the others alone make."""
    out = data.draw(st.sets(st.sampled_from(names)))
    edits = {name: Edit({f"engine/{name}.py": f"{name}\n"}, {f"operators.{name}": name}) for name in names}
    workspace, _ = make(tmp_path_factory.mktemp("all"))
    commits = {name: keep(workspace, edits[name], name) for name in names}
    left = without(workspace, workspace.kept_tip, [commits[name] for name in out], "x")
    others, _ = make(tmp_path_factory.mktemp("others"))
    for name in itertools.filterfalse(out.__contains__, names):
        keep(others, edits[name], name)
    mine, theirs = workspace.sources(left), others.sources(others.kept_tip)
    assert workspace.config(left) == others.config(others.kept_tip)
    assert {p: t for p, t in mine.items() if p != PROFILE_PATH} == {
        p: t for p, t in theirs.items() if p != PROFILE_PATH
    }
