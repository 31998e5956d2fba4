"""`infra-agent probe`: what is typed becomes a question, the verdict a line and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from feedback.target import Description, Parameter
from feedback.verdict import Status, Verdict
from infra_agent.cli import main
from infra_agent.probing import exit_code, launch_config, overridden
from tests.feedback.planted import OPS, appends, copy_target

DESCRIPTION = Description(
    protocol_version=1,
    name="engine",
    profile_path="engine/profiles/run.toml",
    launch_space=(Parameter(name="max_batch", kind="int", values=(1, 2), default=1, doc=""),),
    workloads=(),
)


def test_overrides_are_toml_values_or_plain_text_and_reach_into_tables():
    config = {"dtype": "float32", "operators": {"linear": "torch", "rope": "torch"}}
    settings = ["max_batch=16", "dtype=bfloat16", "prefix_cache=true", 'model="a b"', "operators.linear=prepacked"]
    assert overridden(config, settings) == {
        "dtype": "bfloat16",
        "max_batch": 16,
        "prefix_cache": True,
        "model": "a b",
        "operators": {"linear": "prepacked", "rope": "torch"},
    }
    assert config["operators"]["linear"] == "torch"
    with pytest.raises(UserError, match="write it as key=value"):
        overridden({}, ["max_batch"])


@given(st.lists(st.sampled_from(list(Status)), min_size=1))
def test_the_exit_code_is_that_of_the_worst_verdict(statuses):
    code = exit_code(statuses)
    assert (code == 0) == (set(statuses) == {Status.CONFIRMED})
    assert (code == 1) == (Status.REFUTED in statuses)
    if code == 3:
        assert set(statuses) & {Status.INCONCLUSIVE, Status.INVALID}


def test_a_configuration_is_a_file_a_profile_or_the_trees_own(tmp_path):
    profiles = tmp_path / "engine" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "fast.toml").write_text("max_batch = 2\n")
    (tmp_path / "mine.toml").write_text("max_batch = 7\n")
    assert launch_config(None, tmp_path, tmp_path, DESCRIPTION) == {}
    assert launch_config("fast", tmp_path / "nowhere", tmp_path, DESCRIPTION) == {"max_batch": 2}
    assert launch_config(str(tmp_path / "mine.toml"), tmp_path, tmp_path, DESCRIPTION) == {"max_batch": 7}
    (profiles / "run.toml").write_text("max_batch = 3\n")
    assert launch_config(None, tmp_path, tmp_path, DESCRIPTION) == {"max_batch": 3}
    with pytest.raises(UserError, match="did you mean 'fast'"):
        launch_config("fats", tmp_path, tmp_path, DESCRIPTION)


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory, trusted_root: Path) -> Path:
    return copy_target(trusted_root, tmp_path_factory.mktemp("candidate"))


def options(tiny_model: Path) -> list[str]:
    return ["--set", f"model={tiny_model}", "--set", "max_model_len=256", "--workload", "smoke"]


def test_a_candidate_is_judged_from_the_command_line(capsys, candidate, tiny_model, private_home):
    code = main(["probe", "static", "smoke", "--target", str(candidate), *options(tiny_model), "--json"])
    verdicts = [Verdict.parse(line) for line in capsys.readouterr().out.splitlines()]
    assert [(v.layer, v.status) for v in verdicts] == [("static", Status.CONFIRMED), ("smoke", Status.CONFIRMED)], [
        verdict.line() for verdict in verdicts
    ]
    assert code == 0
    assert (private_home / "probes" / (verdicts[1].evidence or "") / "manifest.json").is_file()


def test_a_refutation_is_a_line_and_exit_code_1(capsys, candidate, tiny_model, tmp_path):
    edited = copy_target(candidate, tmp_path / "edited")
    appends(f"{OPS}/silu_mul/torch.py", "\n\nprint(undefined)\n")(edited)
    assert main(["probe", "static", "--target", str(edited), *options(tiny_model)]) == 1
    line = capsys.readouterr().out.strip()
    assert line.startswith("refuted [static] names: undefined name undefined")
    assert "silu_mul/torch.py:" in line
    assert "\n" not in line


def test_a_configuration_that_is_refused_names_the_parameter(capsys, tiny_model):
    assert main(["probe", "static", *options(tiny_model), "--set", "max_batch=0", "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["at"][0]["parameter"] == "max_batch"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["probe", "smok"], "did you mean 'smoke'"),
        (["probe", "static", "--target", "/nowhere"], "is no root of the target"),
        (["probe", "static", "--adapter", "no_such.adapter"], "there is no module no_such"),
        (["probe", "static", "--workload", "nothing"], "--workload nothing: no such file"),
        (["probe", "static", "--limit", "mean_kl"], "write it as name=number"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, says):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
