"""Goal files: what they say, and the line that is named when they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from infra_agent.goal import Budget, Constraint, Goal, Objective, Scope
from infra_agent.metrics import DEVIATIONS, METRICS, OBJECTIVES

GOAL = """\
name = "mine"
adapter = "target_engine.adapter"
start = "first_run"

[objective]
metric = "output_throughput"
workload = "main"

[constraints]
nll_increase_relative = 0.005
p95_ttft_ms = "1.5x"
peak_memory = "2 GiB"

[scope]
editable = ["target_engine/ops/**", "target_engine/*.py"]
launch = ["max_batch", "dtype"]

[scope.values]
dtype = ["float32"]

[budget]
wall_seconds = 60
"""


def write(folder: Path, text: str = GOAL) -> Path:
    path = folder / "goal.toml"
    path.write_text(text)
    return path


def test_a_goal_says_what_it_says(tmp_path: Path) -> None:
    goal = Goal.load(write(tmp_path))
    assert (goal.direction, goal.budget.wall_seconds, goal.budget.candidates) == ("maximize", 60.0, None)
    assert goal.bounds == (
        Constraint(name="nll_increase_relative", bound=0.005, relative=False),
        Constraint(name="p95_ttft_ms", bound=1.5, relative=True),
        Constraint(name="peak_memory_bytes", bound=2 * 2**30, relative=False),
    )
    assert goal.limits({"p95_ttft_ms": 200.0}) == {
        "nll_increase_relative": 0.005, "p95_ttft_ms": 300.0, "peak_memory_bytes": 2 * 2**30,
    }  # fmt: skip
    paths = ("target_engine/ops/a/b.py", "target_engine/x.py", "target_engine/memory/y.py")
    assert [goal.may_edit(path) for path in paths] == [True, True, False]
    assert goal.may_launch("max_batch", 16)
    assert goal.may_launch("dtype", "float32")
    assert not goal.may_launch("dtype", "bfloat16")
    assert not goal.may_launch("threads", 2)


def test_constraints_point_the_way_of_their_metric() -> None:
    slower = Constraint(name="mean_ttft_ms", bound=1.5, relative=True)
    assert slower.met(150, start=100)
    assert not slower.met(151, start=100)
    fewer = Constraint(name="request_throughput", bound=0.9, relative=True)
    assert fewer.met(0.9, start=1.0)
    assert not fewer.met(0.89, start=1.0)
    with pytest.raises(UserError, match="mean_ttft_ms is relative"):
        slower.met(1.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"output_throughput"', '"output_thruput"', "6: objective.metric: '.*; did you mean 'output_throughput'?"),
        ('workload = "main"', 'direction = "minimize"', "7: objective.direction: output_throughput is one to maximize"),
        ('workload = "main"', 'workload = "./w.jsonl"', "7: objective.workload: there is no workload file /.*/w.jsonl"),
        ("wall_seconds =", "wall_second =", "22: budget.wall_second: unknown key; did you mean 'wall_seconds'?"),
        ("wall_seconds = 60", "wall_seconds = -1", "22: budget.wall_seconds: should be greater than 0, not -1"),
        ("wall_seconds = 60", 'wall_seconds = "long"', "22: budget.wall_seconds: should be a valid number.*'long'"),
        ("wall_seconds = 60", "wall_seconds = nan", "22: budget.wall_seconds: should be a finite number"),
        ('"1.5x"', '"1.5y"', '11: constraints.p95_ttft_ms: must be a number or a multiple such as "1.5x", not'),
        ("p95_ttft_ms", "p95_ttfs_ms", "11: constraints.p95_ttfs_ms: not a figure.*; did you mean 'p95_ttft_ms'?"),
        ("peak_memory", "ttft_p95_ms", "12: constraints.ttft_p95_ms: must be a number"),
        ('peak_memory = "2 GiB"', "ttft_p95_ms = 5", "12: constraints.ttft_p95_ms: bounds the same figure as"),
        ("0.005", '"1.1x"', "10: constraints.nll_increase_relative: is measured against the reference already"),
        ('"2 GiB"', '"2 parsec"', "12: constraints.peak_memory: must be .* or a size such as"),
        ('"2 GiB"', "[1]", "12: constraints.peak_memory: should be"),
        ("peak_memory = ", "peak_memory = -", "12: not valid TOML"),
        ('adapter = "target_engine.adapter"', "", "1: adapter: is missing"),
        ('"first_run"', '"first_runn"', "3: start: there is no starting state.*; did you mean 'first_run'?"),
        ('"first_run"', '"../nowhere"', "3: start: there is no starting state"),
        ('start = "first_run"', 'model = "weights.gguf"', "3: model: there are no weights at /.*/weights.gguf"),
        ("[scope]", '[approval]\nkinds = ["numeric"]', "15: approval.kinds: must be .*; did you mean 'numerics'?"),
        ("[scope]", "[scopes]", "14: scopes: unknown key; did you mean 'scope'?"),
        ('name = "mine"', 'name = "my goal"', "1: name: should .*pattern.*, not 'my goal'"),
    ],
)  # fmt: skip
def test_a_wrong_goal_names_file_line_key_and_what_to_do(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOAL
    path = write(tmp_path, GOAL.replace(old, new, 1))
    pattern = re.escape(f"{path}:") + re.escape(said).replace(re.escape(".*"), ".*") + ".*"
    with pytest.raises(UserError) as caught:
        Goal.load(path)
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


def test_two_faults_are_counted_and_the_first_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r":6: .*\(and 1 more\)$"):
        Goal.load(write(tmp_path, GOAL.replace("output_throughput", "x").replace("wall_seconds", "y")))


def test_files_are_found_from_where_the_goal_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starts/own").mkdir(parents=True)
    (tmp_path / "starts/own/start.toml").write_text("")
    (tmp_path / "w.jsonl").write_text("")
    (tmp_path / "model.gguf").write_text("")
    (tmp_path / "goals").mkdir()
    text = GOAL.replace('"first_run"', '"../starts/own"\nmodel = "../model.gguf"').replace('"main"', '"../w.jsonl"')
    path = write(tmp_path / "goals", text)
    monkeypatch.chdir(tmp_path)
    for given_path in (path, Path("goals/goal.toml"), "goals/goal.toml"):
        goal = Goal.load(given_path)
        assert (goal.start, goal.model, goal.objective.workload) == (
            str(tmp_path / "starts/own"), str(tmp_path / "model.gguf"), str(tmp_path / "w.jsonl"),
        )  # fmt: skip


def test_shipped_by_name_and_unknown_names() -> None:
    assert Goal.load("throughput").objective.metric == "output_throughput"
    with pytest.raises(UserError, match="did you mean 'throughput'"):
        Goal.load("thruput")
    with pytest.raises(UserError, match="there is no goal file"):
        Goal.load("./nothing.toml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "goal.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        Goal.load(tmp_path / "goal.toml")


goals = st.builds(
    Goal,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True),
    adapter=st.just("a.b"),
    start=st.just("first_run"),
    seed=st.integers(0, 100),
    objective=st.builds(Objective, metric=st.sampled_from(OBJECTIVES), workload=st.sampled_from(["main", "smoke"])),
    constraints=st.dictionaries(st.sampled_from(sorted(METRICS.keys() - DEVIATIONS)), st.floats(0, 1e12), max_size=3),
    scope=st.builds(Scope, editable=st.lists(st.text(min_size=1), max_size=2).map(tuple),
                    values=st.dictionaries(st.text(min_size=1), st.lists(st.integers()), max_size=2)),
    budget=st.builds(Budget, wall_seconds=st.floats(0.1, 1e6), candidates=st.none() | st.integers(1, 9)),
)  # fmt: skip


@given(goals)
def test_a_written_goal_reads_back_with_the_same_identity(tmp_path_factory: pytest.TempPathFactory, goal: Goal) -> None:
    path = tmp_path_factory.mktemp("goal") / "goal.toml"
    path.write_text(goal.to_toml())
    again = Goal.load(path)
    assert again.model_copy(update={"start": goal.start}) == goal
    assert again.digest == goal.digest


def test_the_identity_does_not_depend_on_where_files_stand(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "own").mkdir(parents=True)
        (tmp_path / place / "own/start.toml").write_text("")
        write(tmp_path / place, GOAL.replace('"first_run"', '"./own"'))
    one, two = Goal.load(tmp_path / "a/goal.toml"), Goal.load(tmp_path / "b/goal.toml")
    assert one.start != two.start
    assert one.digest == two.digest


@pytest.mark.parametrize("metric", DEVIATIONS)
def test_a_deviation_is_met_or_not_and_bounds_nothing(tmp_path: Path, metric: str) -> None:
    from infra_agent.measurements.setup import comparable

    bound = f'name = "a"\nadapter = "b.c"\n[objective]\nmetric = "output_throughput"\n[constraints]\n{metric} = 1\n'
    with pytest.raises(UserError, match=f"{metric}: can be the objective of a run"):
        Goal.parse(bound, tmp_path / "goal.toml")
    text = f'name = "a"\nadapter = "b.c"\n[objective]\nmetric = "{metric}"\n'
    comparable(Goal.parse(text, tmp_path / "goal.toml"))
    bounded = Goal.parse(text + "[constraints]\nnll_increase_relative = 0.1\n", tmp_path / "goal.toml")
    with pytest.raises(UserError, match="leave out \\[constraints\\]"):
        comparable(bounded)


def test_another_start_may_be_named_and_has_to_be_there(tmp_path: Path) -> None:
    goal = Goal.load("kda_cp_precision")
    assert Path(goal.start).name == "kda_cp_tf32"
    assert Path(goal.overridden(start="kda_cp").start).name == "kda_cp"
    with pytest.raises(UserError, match=r"there is no starting state kda_pc.*did you mean 'kda_cp'"):
        goal.overridden(start="kda_pc")
