"""The gate's trial: its commits fit the target as it is, and only right answers count."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from experiments.gate_trial import experiment
from experiments.gate_trial.commits import COMMITS, ENGINE, Commit, Scratch, slower
from experiments.gate_trial.experiment import SAME, Judged
from feedback.errors import UserError
from infra_agent.experiments import Context
from infra_agent.gate.budgets import Budgets
from infra_agent.gate.checks import Answer, Check, Report


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return Scratch(tmp_path_factory.mktemp("trial") / "repository.git", Path(__file__).parents[2])


def test_five_are_harmless_two_wrong_and_three_slow() -> None:
    assert Counter(commit.kind for commit in COMMITS) == {"harmless": 5, "wrong": 2, "slow": 3}
    assert [commit.outcome for commit in COMMITS].count("regression") == 5


@pytest.mark.parametrize("commit", COMMITS, ids=lambda commit: commit.name)
def test_a_commit_fits_the_target_and_changes_it(commit: Commit, scratch: Scratch) -> None:
    for path, text in commit.edit(scratch.texts).items():
        assert text != scratch.texts.get(path)
        if path.endswith(".py"):
            ast.parse(text)
    head = scratch.commit(commit)
    assert scratch.repository.changed(scratch.base, head)
    assert scratch.commit(commit) == head


def test_a_commit_made_for_another_version_says_so() -> None:
    for commit in COMMITS:
        if commit.name != "notes beside the code":
            with pytest.raises(UserError, match="another version"):
                commit.edit({})


def test_equal_commits_change_nothing_and_are_not_the_base(scratch: Scratch) -> None:
    heads = [scratch.same(number) for number in range(3)]
    assert len({scratch.base, *heads}) == 4
    assert not scratch.repository.changed(scratch.base, heads[0])


def test_a_slow_step_waits_for_its_share(scratch: Scratch) -> None:
    text = slower(20)(scratch.texts)[ENGINE]
    assert "* 120 // 100" in text
    assert text.count("while time.monotonic_ns() < until") == 1


def test_the_budgets_are_valid(tmp_path: Path) -> None:
    context = Context(tmp_path, lambda line: None, options={"model": "/models/m", "passes": "2"})
    file = tmp_path / "budgets.toml"
    file.write_text(experiment.budgets(context))
    asked = Budgets.load(file)
    assert asked.launch == {"model": "/models/m"}
    assert asked.timing is not None
    assert (asked.timing.may_lose, asked.timing.passes) == (0.05, 2)


def report(outcome: str, seconds: float = 60.0) -> Report:
    answer = {"pass": Answer.PASS, "regression": Answer.FAIL, "inconclusive": Answer.INCONCLUSIVE}[outcome]
    figures = {"effect": 1.0, "low": 0.98, "high": 1.02}
    return Report("a", "b", (Check("throughput", answer, "line", seconds, figures),), seconds)


def judged(equal: int = 20) -> list[Judged]:
    return [
        *(Judged(commit, report(commit.outcome)) for commit in COMMITS),
        *(Judged(SAME, report("pass" if number % 2 else "inconclusive")) for number in range(equal)),
    ]


def test_claims_need_ten_right_answers_and_twenty_quiet_pairs() -> None:
    good = experiment.told(judged())
    assert all(good.claims.values()), good.claims
    assert "10 of 20 equal pairs pass, the others could not be decided" in good.notes
    assert any("p50 60" in note for note in good.notes)
    undecided = [Judged(COMMITS[0], report("inconclusive")), *judged()[1:]]
    missed = [judged()[0], Judged(COMMITS[1], report("pass")), *judged()[2:]]
    alarm = [*judged()[:-1], Judged(SAME, report("regression"))]
    for bad in (undecided, missed, alarm, judged(equal=19), judged()[1:]):
        assert not all(experiment.told(bad).claims.values())
