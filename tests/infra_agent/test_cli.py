"""The command line: fast help, found commands, one clear line for what a person can mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra_agent.cli import main
from infra_agent.goal import Goal
from infra_agent.paths import RunPaths, find_run, home, list_runs, new_run
from infra_agent.session import Interrupted, begin, reopen, stoppable
from tests.infra_agent.example_run import write_run
from tests.infra_agent.target_files import write_target

HEAVY = (
    "torch", "numpy", "pandas", "plotly", "git", "libcst", "pydantic", "rich", "jinja2", "litellm", "sqlite3",
    "target_engine", "infra_agent.goal", "infra_agent.loop", "infra_agent.ledger", "feedback.verdict",
)  # fmt: skip


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Exit code 2, nothing on standard output, and exactly one line on standard error."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def example(tmp_path: Path, **options: object) -> RunPaths:
    root = tmp_path / "target"
    return write_run(root, write_target(root), tmp_path / "starts", **options)  # type: ignore[arg-type]


def test_help_imports_nothing_heavy_and_names_every_command() -> None:
    program = f"""
import sys
from infra_agent.cli import main
code = main(["--help"])
print(code, [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *help_lines, last = done.stdout.splitlines()
    assert last == "0 []"
    listed = {line.split()[0] for line in help_lines if line.startswith("  ") and line.split()}
    commands = Path(__file__).parents[2] / "infra_agent/commands"
    assert {path.stem for path in commands.glob("*.py")} - {"__init__"} <= listed


@pytest.mark.timing
def test_help_takes_less_than_0_3_seconds_of_processor_time() -> None:
    """Processor time, which on a quiet machine is the wall time and on a busy one does not count the others."""
    import resource
    import statistics

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "infra_agent", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert statistics.median(once() for _ in range(7)) < 0.3


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Path(__file__).parents[2] / "infra_agent/commands"
    for path in commands.glob("*.py"):
        if path.stem != "__init__":
            assert "Usage: infra-agent" in told([path.stem, "--help"], capsys)


def test_a_usage_error_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert main(["run"]) == 2
    assert "No such command" in capsys.readouterr().err


# -- what a person can mend: one line, exit code 2


def test_wrong_goals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goal = tmp_path / "goal.toml"
    goal.write_text('name = "x"\nadapter = "a.b"\n[objective]\nmetric = "speed"\n')
    assert f"{goal}:4: objective.metric: 'speed' is not a figure" in refused(["run", str(goal)], capsys)
    goal.write_text("name = \n")
    assert f"{goal}:1: not valid TOML" in refused(["run", str(goal)], capsys)
    assert "did you mean 'throughput'" in refused(["run", "throughputs"], capsys)
    assert "there is no goal file" in refused(["run", str(tmp_path / "none.toml")], capsys)
    assert list_runs() == []


def test_missing_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goal = tmp_path / "goal.toml"
    text = 'name = "x"\nadapter = "a.b"\nmodel = "./w.gguf"\n[objective]\nmetric = "output_throughput"\n'
    goal.write_text(text)
    assert f"{goal}:3: model: there are no weights at {tmp_path}/w.gguf" in refused(["run", str(goal)], capsys)


def test_an_adapter_that_is_not_installed(tmp_path: Path) -> None:
    goal = tmp_path / "goal.toml"
    goal.write_text('name = "x"\nadapter = "no_such_engine.adapter"\n[objective]\nmetric = "output_throughput"\n')
    with pytest.raises(ValueError, match="there is no module no_such_engine for the adapter"):
        begin(Goal.load(goal))
    assert not home().exists()


def test_output_under_a_regular_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    under = str(tmp_path / "file/below/x.toml")
    assert f"{tmp_path}/file is a file; choose another place" in refused(["init", under, "--yes"], capsys)
    example(tmp_path)
    assert "is a file" in refused(["report", "--out", str(tmp_path / "file/report.html")], capsys)
    assert "is a folder; name a file" in refused(["report", "--out", str(tmp_path)], capsys)
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "file/home"))
    with pytest.raises(ValueError, match="is a file; choose another place"):
        new_run("x", "1")


def test_no_git(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    example(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no `git` executable" in refused(["apply", "latest", "--repo", str(tmp_path)], capsys)
    with pytest.raises(ValueError, match="no `git` executable"):
        begin(Goal.load("throughput"))
    assert len(list_runs()) == 1


def test_apply_outside_a_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "is in no git repository" in refused(["apply", "latest"], capsys)


def test_runs_that_do_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there are no runs in" in refused(["show"], capsys)
    run = example(tmp_path)
    assert f"did you mean '{run.id}'" in refused(["show", run.id.replace("throughput", "thruput")], capsys)
    assert find_run(run.id[:12]) == find_run("latest") == find_run(str(run.root)) == run
    example(tmp_path)
    assert "is the beginning of 2 runs" in refused(["show", run.id[:12]], capsys)
    assert "has no goal" in refused(["resume", write_run_unended(tmp_path).id], capsys)


def write_run_unended(tmp_path: Path) -> RunPaths:
    return example(tmp_path, ended=False)


def test_a_damaged_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = example(tmp_path)
    run.ledger.write_bytes(b"not a database, but long enough to look like a file of one" * 50)
    assert "cannot be used" in refused(["show", run.id], capsys)
    assert "unreadable" in told(["runs"], capsys)


# -- commands


def test_runs_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no runs in" in told(["runs"], capsys)
    run = example(tmp_path)
    line = told(["runs"], capsys).splitlines()[1]
    assert line.split() == [run.id, "throughput", "slow", "improved", "2.90x", "2/3", "12"]
    assert json.loads(told(["runs", "--json"], capsys))[0]["run"] == run.id
    shown = json.loads(told(["show", "latest", "--json"], capsys))
    assert {"run", "goal", "status", "objective", "moves", "cost"} <= set(shown)
    assert {"id", "kind", "hypothesis", "predicted", "measured", "decision", "reason", "verdicts"} <= set(
        shown["moves"][0]
    )
    assert "(side by side)" in told(["show", run.id], capsys)


def test_the_library_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    names = [line.split()[0] for line in told(["skeletons"], capsys).splitlines()[1:]]
    listed = json.loads(told(["skeletons", "--json"], capsys))
    assert names == [one["name"] for one in listed] == sorted(names)
    one = told(["skeletons", names[0]], capsys)
    assert one.startswith(names[0])
    assert listed[0]["symptom"] in one
    assert all(item["workload"] in one for item in listed[0]["evidence"])
    assert names[0] in refused(["skeletons", "no_such"], capsys), "the error names the known ones"


def test_a_run_that_ended_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = example(tmp_path)
    assert f"the run {run.id} has ended" in told(["resume", "latest"], capsys)


def test_apply_says_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = example(tmp_path)
    for command in (
        ["init", "-q"],
        ["add", "target"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    out = told(["apply", run.id, "--branch", "mine"], capsys)
    assert out.startswith("branch mine has 2 kept moves; nothing is checked out\nreview it:  git log --patch ")
    assert "the branch mine exists already" in refused(["apply", run.id, "--branch", "mine"], capsys)


def test_init_asks_nothing_when_told_and_writes_a_goal_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new/fast.toml"
    told(["init", str(path), "--yes", "--metric", "p95_ttft_ms", "--peak-memory", "1.2x", "--held-out", ""], capsys)
    goal = Goal.load(path)
    assert (goal.name, goal.direction, goal.objective.held_out) == ("fast", "minimize", None)
    assert {bound.name for bound in goal.bounds} == {"nll_increase_relative", "peak_memory_bytes"}
    assert "exists already" in refused(["init", str(path), "--yes"], capsys)
    assert "'speed' is not a figure" in refused(["init", str(path), "--yes", "--force", "--metric", "speed"], capsys)
    assert Goal.load(path) == goal
    assert "'much' is not a number" in refused(["init", "x.toml", "--yes", "--nll-increase", "much"], capsys)


def test_init_asks(tmp_path: Path) -> None:
    answers = "mine\n\nfirst_run\nrequest_throughput\n\n\n\n\n2 GiB\n60\n"
    done = subprocess.run(
        [sys.executable, "-m", "infra_agent", "init", "asked.toml"], cwd=tmp_path, input=answers, capture_output=True,
        text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert "What is to get better [output_throughput]" in done.stdout
    goal = Goal.load(tmp_path / "asked.toml")
    assert (goal.name, Path(goal.start).name, goal.objective.metric) == ("mine", "first_run", "request_throughput")
    assert (goal.budget.wall_seconds, goal.constraints["peak_memory_bytes"]) == (60.0, "2 GiB")


# -- a run's own copies, and stopping it


def test_a_run_keeps_what_it_was_started_from(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/start.toml").write_text('title = "t"\ncomplaint = "c"\nprofile = "first_run"\n')
    file = tmp_path / "goal.toml"
    file.write_text(
        'name = "x"\nadapter = "target_engine.adapter"\nstart = "./own"\n[objective]\nmetric = "output_throughput"\n'
    )
    goal = Goal.load(file)
    copied, run = begin(goal)
    (tmp_path / "own/start.toml").unlink()
    file.unlink()
    again = reopen(run)
    assert again == copied
    assert again.digest == goal.digest
    assert Path(again.start).is_relative_to(run.root)
    with pytest.raises(ValueError, match="--wall-seconds must be above 0"):
        goal.overridden(wall_seconds=-1)
    assert goal.overridden(seed=7).seed == 7


def test_an_interruption_says_how_to_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    run = new_run("x", "20260101-000000")
    with pytest.raises(Interrupted, match=f"infra-agent resume {run.id}"), stoppable(run):
        raise KeyboardInterrupt
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted), stoppable(run):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before

    def interrupted(name: str) -> None:
        raise Interrupted(run)

    monkeypatch.setattr("infra_agent.paths.find_run", interrupted)
    assert main(["show", "x"]) == 130
    assert capsys.readouterr().err == f"infra-agent: the run {run.id} is interrupted and loses nothing: " + (
        f"`infra-agent resume {run.id}` goes on\n"
    )
