"""`infra-agent probe sharding --tp N --cp M`: what is typed, and what comes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from feedback.verdict import Status, Verdict
from infra_agent.cli import main
from tests.feedback.planted import copy_target
from tests.feedback.planted_sharding import combining
from tests.target_engine.hybrid_model import make_hybrid


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hybrid(tmp_path_factory.mktemp("models") / "hybrid")


def options(model: Path) -> list[str]:
    return ["--set", f"model={model}", "--set", "max_model_len=256", "--set", "threads=1", "--workload", "smoke"]


def test_one_operator_is_checked_by_hand(capsys, hybrid, private_home):
    command = ["probe", "sharding", "--cp", "2", "--operator", "short_convolution", "--profile", "sequential", "--json"]
    assert main([*command, *options(hybrid)]) == 0
    verdict = Verdict.parse(capsys.readouterr().out)
    assert (verdict.layer, verdict.status, verdict.metrics["cuts"]) == ("sharding", Status.CONFIRMED, 1)
    assert (private_home / "probes" / (verdict.evidence or "") / "manifest.json").is_file()


def test_a_wrong_combination_is_a_line_that_localises_and_exit_code_1(capsys, hybrid, trusted_root, tmp_path):
    edited = copy_target(trusted_root, tmp_path / "edited")
    combining("short_convolution", ("if rank == group.rank:", "if rank == max(group.rank - 1, 0):"))(edited)
    assert main(["probe", "sharding", "--cp", "2", "--target", str(edited), *options(hybrid)]) == 1
    line = capsys.readouterr().out.strip()
    assert re.match(r"refuted \[sharding\] short_convolution: context over cp 2: out wrong on ranks? 1", line), line
    assert "first at step halo" in line
    assert "logic of the combination, not precision" in line
    assert "op short_convolution" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (["--tp", "3"], "tp 3 does not divide"),
        (["--cp", "8", "--set", "prefill_chunk=4"], "cp: 8 context-parallel ranks cannot share out"),
        (["--tp", "2", "--set", "layer_split=true"], "layer_split: there is one context-parallel rank"),
    ],
)
@pytest.mark.parametrize("probe", ["sharding", "sharded_model"])
def test_a_plan_that_cannot_run_is_one_line_and_exit_code_2(capsys, hybrid, ranks, says, probe):
    assert main(["probe", probe, *options(hybrid), *ranks]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_one_rank_is_nothing_to_check_and_exit_code_2(capsys, hybrid):
    assert main(["probe", "sharding", "--tp", "1", *options(hybrid)]) == 2
    assert "unsupported [sharding]" in capsys.readouterr().out


def test_a_model_over_simulated_ranks_is_checked_by_hand(capsys, hybrid):
    assert main(["probe", "sharded_model", "--tp", "2", "--cp", "2", *options(hybrid)]) == 0
    assert "confirmed [sharded_model] logits are off by" in capsys.readouterr().out
