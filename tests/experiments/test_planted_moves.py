"""Planted moves: every plant fits the target as it is, and a submission is called right only when it was."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from experiments.planted_moves import experiment
from experiments.planted_moves.plants import HONEST, PLANTS, NotThere, Plant
from experiments.planted_moves.submitting import Submission, move_of, right, session
from feedback.verdict import Location, Status, Verdict
from infra_agent.ladder import required
from tests.experiments.small import tiny
from tests.infra_agent.verdicts import verdict


def sources(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in (root / "target_engine").rglob("*.py")}


@pytest.mark.parametrize("plant", [*PLANTS, *HONEST], ids=lambda plant: plant.name)
def test_a_plant_fits_the_target_and_changes_it(plant: Plant, trusted_root: Path) -> None:
    known = sources(trusted_root)
    for path, text in plant.edit(known).items():
        assert text is not None
        assert text != known[path]
        ast.parse(text)
        assert path.split("/")[2] in plant.operators
    with pytest.raises(NotThere):
        plant.edit({})


def test_the_seven_of_the_trade_are_there() -> None:
    assert {plant.name for plant in PLANTS} == {
        "wrong for odd lengths", "slow", "crashing", "hanging", "editing the evaluator", "printing a fake result",
        "patching the clock",
    }  # fmt: skip
    for plant in PLANTS:
        assert plant.layers
        assert {"static", "load"} <= required(move_of(plant))


def refuted(layer: str = "operators", observed: str = "columns 3 wrong", at: bool = True) -> Verdict:
    made = verdict(layer, Status.REFUTED)
    place = (Location(file="ops/x.py", line=3),) if at else ()
    return made.model_copy(update={"observed": observed, "at": place})


def submission(plant: Plant, *verdicts: Verdict, decision: str = "reject", seconds: float = 1.0) -> Submission:
    return Submission(plant, False, seconds, verdicts, decision, "because")


WRONG = Plant("wrong", ("operators",), ("columns",), lambda texts: {}, ("x",))
FINE = Plant("fine", (), (), lambda texts: {}, ("x",))


def test_a_submission_is_right_when_the_adequate_layer_names_place_and_reason() -> None:
    assert right(submission(WRONG, refuted())) == ""
    assert "not rejected" in right(submission(WRONG, refuted(), decision="keep"))
    assert "no layer refuted" in right(submission(WRONG, verdict("operators", Status.CONFIRMED)))
    assert "smoke refuted it" in right(submission(WRONG, refuted("smoke")))
    assert "does not say" in right(submission(WRONG, refuted(observed="something is off")))
    assert "no place" in right(submission(WRONG, refuted(at=False)))


def test_an_honest_move_must_be_confirmed_by_all() -> None:
    assert right(submission(FINE, verdict("static"), verdict("smoke"), decision="")) == ""
    assert "not confirmed" in right(submission(FINE, verdict("static"), refuted("smoke"), decision=""))


def test_claims_and_quantiles() -> None:
    static = Plant("tampering", ("static",), ("columns",), lambda texts: {}, ("x",))
    found = [
        *(submission(WRONG, verdict("static"), refuted(), seconds=float(number)) for number in range(1, 11)),
        submission(static, refuted("static"), seconds=0.2),
        submission(FINE, verdict("static"), decision=""),
    ]
    told = experiment.told(found)
    assert all(told.claims.values())
    assert [row[0] for row in told.rows] == ["wrong", "tampering", "fine"]
    assert any("warm: p50 5.0 s, p95 9.5 s (n = 11)" in note for note in told.notes), told.notes
    late = submission(static, verdict("static"), refuted("operators"))
    assert not all(experiment.told([*found, late]).claims.values())
    alarm = submission(FINE, refuted("static"), decision="")
    assert not all(experiment.told([*found, alarm]).claims.values())


@pytest.mark.slow
def test_what_needs_no_clock_is_turned_down_at_the_first_adequate_layer(tmp_path: Path) -> None:
    plants = [plant for plant in PLANTS if plant.name not in ("slow", "hanging")]
    found = session(tmp_path / "world", plants, str(tiny(tmp_path / "tiny")), cold=False, honest=HONEST)
    assert {one.plant.name: right(one) for one in found} == {plant.name: "" for plant in (*plants, *HONEST)}
    assert all(one.seconds < 60 for one in found)
