"""`summary`: the JSON of `show`, from rows alone, at every moment of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_agent.ledger import Ledger
from infra_agent.records import Ratio
from infra_agent.showing import read_summary, run_line, run_text, told
from infra_agent.summary import product, summary
from tests.infra_agent.example_run import write_run
from tests.infra_agent.target_files import write_target


def rows(tmp_path: Path, ended: bool = True) -> tuple[list, Path]:
    run = write_run(tmp_path / "target", write_target(tmp_path / "target"), tmp_path / "starts", ended=ended)
    with Ledger.read(run.ledger) as ledger:
        return list(ledger.rows()), run.root


def test_a_run_that_ended(tmp_path: Path) -> None:
    found, _ = rows(tmp_path)
    told = summary(found)
    assert json.loads(json.dumps(told)) == told
    assert (told["goal"], told["start"], told["status"]) == ("throughput", "slow", "improved")
    assert told["objective"] == {
        "metric": "output_throughput", "direction": "maximize", "start": 50.0, "best": 145.0,
        "ratio": {"point": 2.9, "low": 2.7, "high": 3.1}, "basis": "final",
    }  # fmt: skip
    assert [(move["id"], move["decision"], move["kind"]) for move in told["moves"]] == [
        ("m01", "keep", "launch"), ("m02", "reject", "code"), ("m03", "keep", "code"),
    ]  # fmt: skip
    assert told["moves"][0]["measured"] == {"point": 2.0, "low": 1.9, "high": 2.1}
    assert told["moves"][1]["measured"] is None
    assert told["cost"] == {"wall_seconds": 12.5, "candidates": 3, "tokens": 0, "usd": 0.0}


def test_a_run_at_every_moment_can_be_told(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, ended=False)
    for length in range(len(found) + 1):
        told = summary(found[:length], running=True)
        assert told["status"] == "running"
        assert run_text(told | {"folder": ""})
        assert run_line(told | {"run": "r"})
    told = summary(found)
    assert told["status"] == "interrupted"
    assert told["objective"]["basis"] == "moves"
    assert told["objective"]["ratio"]["point"] == pytest.approx(3.0)
    assert told["objective"]["best"] == pytest.approx(150.0)
    assert told["moves"][-1]["decision"] == "open"


def test_the_text_says_what_was_predicted_and_measured(tmp_path: Path) -> None:
    _, root = rows(tmp_path)
    from infra_agent.paths import RunPaths

    text = run_text(read_summary(RunPaths(root)))
    assert "predicted 1.500x [1.200, 1.900], measured 2.000x [1.900, 2.100]" in text
    assert "output_throughput 50 -> 145, 2.900x [2.700, 3.100] (side by side)" in text
    assert "predicted 1.500x [1.200, 1.900], measured nothing" in text


def test_a_run_of_another_version_does_not_hide_the_others(tmp_path: Path) -> None:
    from infra_agent.paths import new_run

    run = new_run("odd", "20250101-000000")
    with Ledger.open(run.ledger) as ledger:
        ledger.note("run", "run", {"unknown": 1})
    listed = told(run)
    assert listed["status"] == "unreadable"
    assert "was written by another version" in run_line(listed)


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(1.0, 1.2), st.floats(1.0, 1.2)), max_size=5))
def test_the_product_holds_its_point_and_is_no_narrower_than_a_factor(parts: list[tuple[float, float, float]]) -> None:
    ratios = [Ratio(point=point, low=point / below, high=point * above) for point, below, above in parts]
    whole = product(ratios)
    assert whole.point == pytest.approx(math.prod(ratio.point for ratio in ratios))
    for ratio in ratios:
        assert whole.point / whole.low >= ratio.point / ratio.low - 1e-9
        assert whole.high / whole.point >= ratio.high / ratio.point - 1e-9
