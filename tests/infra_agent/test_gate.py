"""The gate: real probes in real workers on two commits of a small repository; its conclusions by themselves."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from infra_agent.gate import run_gate
from infra_agent.gate.budgets import Budgets, Counter
from infra_agent.gate.checks import Answer, Check, Report, of_counters, of_verdict, unsteady
from infra_agent.gate.outputs import junit, markdown
from tests.infra_agent import toy_target
from tests.infra_agent.verdicts import Status, load, verdict
from tests.quiet import skip_when_disturbed

BUDGETS = f"""\
adapter = "{toy_target.NAME}"
profile = "{toy_target.PROFILE}"
reference = "toyengine/profiles/sequential.toml"
correctness = ["smoke"]

[counters]
steps = 0.0
scheduled_tokens = 0.0
output_tokens = 0.0
"""

TIMING = """
[timing]
may_lose = 0.05
passes = 4
"""

ENGINE = toy_target.ENGINE
WRONG = ENGINE.replace(
    "return int(np.argmax(row(tokens)))", "return int(np.argmax(row(tokens))) ^ (len(tokens) % 29 == 0)"
)
LAZY = ENGINE.replace("len(self.running) < self.slots:", "len(self.running) < self.slots // 2:")
REFACTORED = ENGINE.replace("total = 0\n    for number", "total = 1 - 1\n    for number")


class Repo:
    """A git repository of the toy target; `commit` writes files and returns the commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        toy_target.write(root)
        self._git("init", "--quiet", "--initial-branch=main")
        self.base = self.commit({})

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        for path, text in files.items():
            (self.root / path).write_text(text)
        self._git("add", "--all")
        self._git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--allow-empty", "-m", message)
        return self._git("rev-parse", "HEAD")

    def engine(self, text: str) -> str:
        """A commit with another engine, on top of the base."""
        self._git("checkout", "--quiet", self.base)
        return self.commit({"toyengine/engine.py": text})

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return Repo(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def budgets(tmp_path: Path) -> Path:
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGETS)
    return file


def gate(repo: Repo, head: str, budgets: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    code = run_gate(repo.base, head, budgets, repo=repo.root, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    return code, told


def answers(told: dict) -> dict[str, str]:
    return {check["name"]: check["answer"] for check in told["checks"]}


# -- on commits --------------------------------------------------------------------------------------------------------


def test_a_harmless_change_passes(repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = gate(repo, repo.engine(REFACTORED), budgets, capsys)
    assert code == 0, told
    assert set(answers(told).values()) == {"pass"}


def test_a_wrong_change_is_a_regression_and_says_where(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = gate(repo, repo.engine(WRONG), budgets, capsys)
    assert code == 1
    assert answers(told) == {"smoke": "fail", "counters": "skipped"}
    assert "token" in told["checks"][0]["line"]


def test_work_that_grew_is_a_regression_without_any_clock(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = gate(repo, repo.engine(LAZY), budgets, capsys)
    assert code == 1
    assert answers(told)["counter steps"] == "fail"
    assert answers(told)["counter output_tokens"] == "pass"


def test_a_head_that_crashes_is_a_regression_not_a_broken_gate(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = gate(repo, repo.engine(ENGINE + "\nraise RuntimeError('no')\n"), budgets, capsys)
    assert code == 1
    assert "RuntimeError" in told["checks"][0]["line"]


def test_a_head_whose_counts_cannot_be_true_is_a_regression(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets.write_text(BUDGETS.replace('["smoke"]', "[]"))
    short = repo.engine(ENGINE.replace('request["max_tokens"]', 'min(3, request["max_tokens"])'))
    code, told = gate(repo, short, budgets, capsys)
    assert code == 1
    assert "its reports cannot be true: ended with 'length' after 3" in told["checks"][0]["line"]


def test_a_base_that_does_not_run_is_a_broken_gate(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = repo.engine(ENGINE + "\nraise RuntimeError('no')\n")
    assert run_gate(broken, repo.base, budgets, repo=repo.root) == 2
    assert "RuntimeError" in capsys.readouterr().out


def test_a_protected_file_may_change_only_where_the_budgets_say_so(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo._git("checkout", "--quiet", repo.base)
    head = repo.commit({"toyengine/adapter.py": toy_target.ADAPTER + "\n# reviewed\n"})
    code, told = gate(repo, head, budgets, capsys)
    assert code == 1
    assert "toyengine/adapter.py" in told["checks"][0]["line"]
    budgets.write_text('protected = "allow"\n' + BUDGETS)
    assert gate(repo, head, budgets, capsys)[0] == 0


def test_what_the_target_cannot_show_is_inconclusive(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets.write_text(BUDGETS.replace('["smoke"]', '["smoke", "operators"]').replace("steps = 0.0", "naps = 0.0"))
    code, told = gate(repo, repo.base, budgets, capsys)
    assert answers(told)["operators"] in ("inconclusive", "pass")
    assert answers(told)["counter naps"] == "broken"
    assert code == 2
    assert "it has" in next(c["line"] for c in told["checks"] if c["name"] == "counter naps")


def test_every_form_of_output_is_written(
    repo: Repo, budgets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    places = {"junit": tmp_path / "out" / "junit.xml", "markdown": tmp_path / "out" / "gate.md"}
    assert run_gate(repo.base, repo.engine(LAZY), budgets, repo=repo.root, **places) == 1
    suite = ElementTree.parse(places["junit"]).getroot()
    assert suite.get("failures") == "1"
    assert "finds a regression" in places["markdown"].read_text()
    assert summary.read_text().startswith("before\n### The gate finds a regression")
    assert "✗ counter steps" in capsys.readouterr().out


def test_nothing_of_the_repository_is_touched(repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo._git("checkout", "--quiet", repo.base)
    (repo.root / "toyengine" / "engine.py").write_text("unfinished work(\n")
    try:
        before = repo._git("status", "--porcelain"), repo._git("worktree", "list"), repo._git("rev-parse", "HEAD")
        assert gate(repo, repo.base, budgets, capsys)[0] == 0
        after = repo._git("status", "--porcelain"), repo._git("worktree", "list"), repo._git("rev-parse", "HEAD")
        assert before == after
    finally:
        repo._git("checkout", "--quiet", "--", ".")


@pytest.mark.timing
def test_a_slower_commit_fails_and_an_equal_one_does_not(
    repo: Repo, budgets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets.with_name("long.jsonl").write_text(toy_target.workload("long", 12, 400))
    budgets.write_text('workload = "long.jsonl"\n' + BUDGETS + TIMING)
    base = repo.engine(ENGINE.replace("WORK = 2500", "WORK = 20000"))
    heads = {
        "slower": repo.engine(ENGINE.replace("WORK = 2500", "WORK = 26000")),
        "equal": repo.engine(REFACTORED.replace("WORK = 2500", "WORK = 20000")),
    }
    answered = {}
    for name, head in heads.items():
        run_gate(base, head, budgets, repo=repo.root, as_json=True)
        told = capsys.readouterr().out
        skip_when_disturbed(told)
        answered[name] = answers(json.loads(told))["throughput"]
    assert answered["slower"] == "fail"
    assert answered["equal"] in ("pass", "inconclusive")


# -- usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('adapter = "a"\n', "profile: is missing"),
        ('adapter = "a"\nprofile = "p"\nworklaod = "x"\n', "budgets.toml:3: worklaod: unknown key; did you mean"),
        ('adapter = "a"\nprofile = "/etc/passwd"\n', "budgets.toml:2: profile: must be a path inside"),
        ('adapter = "a"\nprofile = "p"\ncorrectness = []\n', "it asks nothing"),
        ('adapter = "a"\nprofile = "p"\n[counters]\nsteps = -0.1\n', "budgets.toml:4: counters.steps"),
        ('adapter = "a"\nprofile = "p"\n[timing]\nmay_lose = 2\n', "budgets.toml:4: timing.may_lose"),
        ("adapter = \n", "budgets.toml:1"),
    ],
)
def test_a_wrong_budgets_file_is_one_clear_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        Budgets.load(file)


def test_a_wrong_call_is_one_clear_line(repo: Repo, budgets: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'nowhere' is no commit"):
        run_gate(repo.base, "nowhere", budgets, repo=repo.root)
    with pytest.raises(UserError, match="no git repository"):
        run_gate("a", "b", budgets, repo=tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        run_gate("a", "b", tmp_path / "none.toml", repo=repo.root)
    budgets.write_text(BUDGETS.replace("production.toml", "none.toml"))
    with pytest.raises(UserError, match=r"none\.toml of the budgets file is not in the commit"):
        run_gate(repo.base, repo.base, budgets, repo=repo.root)
    budgets.write_text('workload = "evening"\n' + BUDGETS)
    with pytest.raises(UserError, match="no workload 'evening'; it has heldout, main"):
        run_gate(repo.base, repo.base, budgets, repo=repo.root)


# -- conclusions -------------------------------------------------------------------------------------------------------

values = st.floats(0, 1e9)


@given(base=values, head=values, rise=st.floats(0, 2))
def test_a_counter_fails_exactly_when_it_rose_too_far(base: float, head: float, rise: float) -> None:
    (check,) = of_counters({"steps": Counter(rise=rise)}, {"steps": base}, {"steps": head}, 1.0)
    assert (check.answer is Answer.FAIL) == (head > base * (1 + rise) + 1e-9)


def test_a_counter_may_be_bounded_both_ways() -> None:
    bound = Counter(rise=0.1, fall=0.0)
    assert bound.breach(100, 111) is not None
    assert bound.breach(100, 99) is not None
    assert bound.breach(100, 105) is None


def test_a_counter_of_which_less_is_worse_is_bounded_from_below(tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text('adapter = "a"\nprofile = "p"\n[counters]\nsteps = 0.1\ncached_prompt_tokens = 0.2\n')
    counters = Budgets.load(file).counters
    assert counters == {"steps": Counter(rise=0.1), "cached_prompt_tokens": Counter(fall=0.2)}


def test_a_counter_that_the_base_does_not_repeat_fails_nobody() -> None:
    checks = of_counters({"steps": Counter(rise=0.0)}, {"steps": 10}, {"steps": 12}, 1.0)
    assert unsteady(checks, {"steps": 10})[0].answer is Answer.FAIL
    assert unsteady(checks, {"steps": 11})[0].answer is Answer.INCONCLUSIVE


@given(st.lists(st.sampled_from(list(Answer)), max_size=6))
def test_the_exit_code_says_the_worst_that_is_certain(given_answers: list[Answer]) -> None:
    report = Report("a", "b", tuple(Check(str(i), a, "x") for i, a in enumerate(given_answers)), 1.0)
    if Answer.FAIL in given_answers:
        assert report.exit_code == 1
    elif not given_answers or Answer.BROKEN in given_answers:
        assert report.exit_code == 2
    elif Answer.INCONCLUSIVE in given_answers:
        assert report.exit_code == 3
    else:
        assert report.exit_code == 0


@pytest.mark.parametrize("status", list(Status))
def test_only_a_confirmation_passes(status: Status) -> None:
    assert (of_verdict("smoke", verdict("smoke", status)).answer is Answer.PASS) == (status is Status.CONFIRMED)


def test_a_noisy_machine_is_no_regression() -> None:
    noisy = load(1.0, status=Status.INVALID)
    assert of_verdict("throughput", noisy, timing=True).answer is Answer.INCONCLUSIVE


@given(st.text(max_size=80), st.sampled_from(list(Answer)))
def test_any_line_can_be_told(line: str, answer: Answer) -> None:
    report = Report("a" * 40, "b" * 40, (Check("smoke", answer, line),), 1.0)
    suite = ElementTree.fromstring(junit(report).split("\n", 1)[1])
    assert len(suite) == 1
    assert len(markdown(report).splitlines()) == 7
