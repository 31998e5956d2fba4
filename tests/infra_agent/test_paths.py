"""Where runs live, and what patterns fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.globs import matches, matches_any
from infra_agent import paths

names = st.text(st.characters(codec="ascii", exclude_characters="/*?\0"), min_size=1, max_size=6)
files = st.lists(names, min_size=1, max_size=4).map("/".join)


def test_the_home_is_the_users_choice_then_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "own"))
    assert paths.runs_dir() == tmp_path / "own/runs"
    monkeypatch.delenv("INFRA_AGENT_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert paths.library_dir() == tmp_path / "state/infra-agent/library"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert paths.home() == tmp_path / ".local/state/infra-agent"


def test_runs_of_the_same_second_are_two_runs() -> None:
    one, two = paths.new_run("a goal", "20260101-000000"), paths.new_run("a goal", "20260101-000000")
    assert (one.id, two.id) == ("20260101-000000-a-goal", "20260101-000000-a-goal-2")
    assert paths.list_runs() == []  # without a ledger a folder is no run yet


@given(files)
def test_a_path_fits_itself_and_the_two_wide_patterns(path: str) -> None:
    assert matches(path, path)
    assert matches(path, "**")
    assert matches(path, "**/" + path.rsplit("/", 1)[-1])
    assert matches(path, "*") == ("/" not in path)


@given(files, names)
def test_one_star_stays_in_its_folder(path: str, folder: str) -> None:
    assert matches(f"{folder}/{path}", f"{folder}/*") == ("/" not in path)
    assert matches(f"{folder}/{path}", folder)
    assert matches(f"{folder}/{path}", f"{folder}/**")
    assert not matches(path, f"{path}?")


def test_patterns_are_not_regular_expressions() -> None:
    assert not matches("axpy", "a.py")
    assert matches("ops/a/b.py", "ops/**/b.py")
    assert matches("ops/b.py", "ops/**/b.py")
    assert not matches("ops_b.py", "ops/**/b.py")
    assert matches_any("x", ("y", "?"))
    assert not matches_any("x", ())
