"""Runs that mend results, over a world of places of which some deviate: what is kept is what is needed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.verdict import Confidence, Predicate, Status, Verdict
from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.ledger import Ledger
from infra_agent.measurements import CandidateFailed, Openings, Remembered, Subject
from infra_agent.proposers.causes import Facts
from infra_agent.records import (
    AblationRecord,
    CandidateRecord,
    EndRecord,
    EndStatus,
    MoveRecord,
    Outcome,
    ProfileRecord,
    RegressionRecord,
)
from infra_agent.repair import repair as run_repair
from infra_agent.summary import summary
from tests.infra_agent.test_deviations import LAYERS, cut, facts, repair
from tests.infra_agent.verdicts import load
from tests.infra_agent.worlds import Silent

START = "start"


class World:
    """States are named by the places that are mended: `start+a+b`. Those of `wrong` deviate until they are.

    `says` are statuses of layers for every candidate; `test` what the regression test does on base and patch.
    """

    def __init__(self, places: str, wrong: str, **more: Any) -> None:
        self.places, self.wrong = places, frozenset(wrong)
        self.says: Mapping[str, Status] = more.get("says", {})
        self.enough: str = more.get("enough", "tf32x3")
        self.test: tuple[bool, bool] = more.get("test", (True, True))
        self.served_says: Mapping[str, Status] = more.get("served", {})
        self.start_says: Mapping[str, Status] = more.get("start", {})
        self.kept: list[str] = []
        self.remembered: list[Remembered] = []

    @property
    def guesses(self) -> Mapping[str, float]:
        return LAYERS

    def left(self, state: str) -> frozenset[str]:
        done = {part.partition("@")[0] for part in state.split("+")[1:] if part.endswith(f"@{self.enough}")}
        return self.wrong - done

    def ask(self, layer: str, subject: Subject) -> Verdict:
        state = subject.candidate.partition("#")[0]
        told = self.start_says if state == START else self.says
        status = told.get(layer, Status.CONFIRMED)
        metrics = {}
        if layer == "sharding" and status is Status.CONFIRMED:
            left = self.left(state)
            status = Status.REFUTED if left else Status.CONFIRMED
            metrics = {"worst_error_ratio": 100.0 * len(left) if left else 0.2}
        return verdict(layer, status, metrics)

    def deviation(self, commit: str, verdict: Verdict) -> ProfileRecord:
        found = cut(operators=tuple(f"op_{place}" for place in sorted(self.wrong)), ratio=100.0 * len(self.wrong))
        return ProfileRecord(commit=commit, facts=facts(found))

    def openings(self, commit: str, facts: Facts) -> Openings:
        moves = []
        for how, bits, slowdown in (("tf32x3", 11.0, 0.05), ("ieee", 13.0, 0.4)):
            single = [
                repair(f"{p}@{how}", (f"op_{p}",), bits, slowdown, reasons=(f"{p}.py:1",), where=f"{p}.py:1 {how}")
                for p in self.places
            ]
            keys = tuple(move.key for move in single)
            whole = tuple(f"op_{place}" for place in self.places)
            if len(keys) > 1:
                moves.append(repair("+".join(keys), whole, bits, slowdown, places=keys))
            moves += single
        return Openings(moves=tuple(moves))

    def change(self, commit: str, move: Move, facts: Facts) -> dict[str, Any]:
        keys = move.parts or tuple(move.key.split("+"))
        return {"files": {f"{key.partition('@')[0]}.py": key for key in keys}, "launch": {}}

    def candidate(self, name: str, base: str, move: Move, change: Mapping[str, Any]) -> CandidateRecord:
        done = "+".join([base, *sorted(text for path, text in change["files"].items() if not path.startswith("test"))])
        tested = "#tested" if any(path.startswith("test") for path in change["files"]) else ""
        return CandidateRecord(move=name, commit=done + tested, base=base, changed=tuple(sorted(change["files"])))

    def test_text(self, commit: str, facts: Facts, observed: str) -> tuple[str, str]:
        return "test_it.py", "assert True"

    def regression(self, base: str, candidate: str, path: str, text: str, facts: Facts) -> RegressionRecord:
        failed, passed = self.test
        return RegressionRecord(
            path=path, base_failed=failed, patched_passed=passed, base_line="before", patched_line="after"
        )

    def applicability(self, verdict: Verdict) -> tuple[str, ...]:
        return ("k does not compile for hip:gfx942: no tf32x3",)

    def served(self, layer: str, base: str, candidate: str, changes_numerics: bool, n: int = 1) -> Verdict:
        status = self.served_says.get(layer, Status.CONFIRMED)
        return load(1.0, margin=0.9) if (layer, status) == ("load", Status.CONFIRMED) else verdict(layer, status, {})

    def not_served(self, base: str) -> tuple[str, ...]:
        return ("several ranks",)

    def keep(self, candidate: CandidateRecord, move: MoveRecord) -> str:
        self.kept.append(candidate.commit)
        return candidate.commit

    def remember(self, move: Move, outcome: Remembered) -> None:
        self.remembered.append(outcome)


def verdict(layer: str, status: Status, metrics: Mapping[str, float]) -> Verdict:
    predicate = Predicate(layer=layer, statement="it holds")
    return Verdict(
        hypothesis="h", layer=layer, status=status, predicate=predicate.statement, predicate_digest=predicate.digest,
        observed="as told", confidence=Confidence.DIRECT, cost_seconds=1.0, metrics=dict(metrics),
        gaps=("something",) if status in (Status.UNSUPPORTED, Status.INVALID) else (),
    )  # fmt: skip


def goal(**more: Any) -> Goal:
    fields: dict[str, Any] = {
        "name": "agree",
        "adapter": "none.adapter",
        "objective": {"metric": "sharding_deviation"},
        "approval": {"kinds": ["numerics"]},
        "budget": {"wall_seconds": 500.0},
    }
    return Goal.model_validate({**fields, **more})


def play(world: World, path: Path, a_goal: Goal | None = None, observer: Any = None) -> EndRecord:
    with Ledger.open(path, observer) as ledger:
        return run_repair(a_goal or goal(), ledger, world, Silent(), START)  # type: ignore[arg-type]


def records(path: Path, kind: str, model: Any) -> list[Any]:
    with Ledger.read(path) as ledger:
        return [model.model_validate(row.payload) for row in ledger.rows(kind, "result")]


def test_what_deviates_is_mended_tested_and_left_to_a_person(tmp_path: Path) -> None:
    world = World("ab", "ab")
    end = play(world, tmp_path / "l")
    assert end.status is EndStatus.REPAIRED
    assert "numerics: needs a person" in end.reason
    assert world.kept == ["start+a@tf32x3+b@tf32x3#tested"]
    (move,) = records(tmp_path / "l", "decision", MoveRecord)
    assert move.decision is Outcome.ASK
    assert move.needs == ("numerics",)
    assert move.regression == "test_it.py"
    assert move.applies == ("k does not compile for hip:gfx942: no tf32x3",)
    assert move.measured is not None
    assert move.measured.point == pytest.approx(1000.0)
    assert world.remembered[0].applies == move.applies
    taken = records(tmp_path / "l", "ablation", AblationRecord)
    assert len(taken) == 2
    assert all(record.note.startswith("needed") for record in taken)
    with Ledger.read(tmp_path / "l") as ledger:
        told = summary(ledger.rows())
    assert told["status"] == "repaired"
    assert told["objective"]["start"] == 200.0
    assert told["objective"]["best"] == 0.2
    assert told["moves"][0]["needs"] == ["numerics"]


def test_an_approved_change_is_kept(tmp_path: Path) -> None:
    end = play(World("ab", "ab"), tmp_path / "l", goal().approved(["numerics"]))
    (move,) = records(tmp_path / "l", "decision", MoveRecord)
    assert move.decision is Outcome.KEEP
    assert "person" not in end.reason


def test_a_sound_start_ends_without_a_candidate(tmp_path: Path) -> None:
    world = World("ab", "")
    end = play(world, tmp_path / "l")
    assert (end.status, end.reason, end.cost.candidates) == (EndStatus.SOUND, "no deviation found", 0)
    assert not world.kept


@pytest.mark.parametrize("layer", ["sharding", "sharded_model"])
@pytest.mark.parametrize("status", [Status.INVALID, Status.INCONCLUSIVE, Status.UNSUPPORTED])
def test_what_could_not_be_looked_at_is_not_sound(tmp_path: Path, layer: str, status: Status) -> None:
    end = play(World("ab", "", start={layer: status}), tmp_path / "l")
    assert end.status is EndStatus.FAILED
    assert "not known" in end.reason


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(st.just("abcd"[:n]), st.sets(st.sampled_from("abcd"[:n]), min_size=1))
    )
)
@settings(max_examples=40, deadline=None)
def test_exactly_the_needed_places_are_kept(drawn: tuple[str, set[str]]) -> None:
    import tempfile

    places, wrong = drawn
    world = World(places, "".join(wrong))
    with tempfile.TemporaryDirectory() as folder:
        end = play(world, Path(folder) / "l")
    assert end.status is EndStatus.REPAIRED
    expected = "+".join([START, *(f"{place}@tf32x3" for place in sorted(wrong))])
    assert world.kept == [f"{expected}#tested"]


def test_the_more_precise_one_is_tried_when_the_cheaper_is_not_enough(tmp_path: Path) -> None:
    world = World("ab", "ab", enough="ieee")
    assert play(world, tmp_path / "l").status is EndStatus.REPAIRED
    assert world.kept == ["start+a@ieee+b@ieee#tested"]
    outcomes = [move.decision for move in records(tmp_path / "l", "decision", MoveRecord)]
    assert outcomes[-1] is Outcome.ASK
    assert set(outcomes[:-1]) == {Outcome.REJECT}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"test": (False, True)}, "no repair is"),
        ({"test": (True, False)}, "no repair is"),
        ({"says": {"sharded_model": Status.INVALID}}, "no repair is"),
        ({"served": {"load": Status.REFUTED}}, "no repair is"),
        ({"served": {"accuracy": Status.REFUTED}}, "no repair is"),
        ({"says": {"sharded_model": Status.REFUTED}}, "no repair is"),
        ({"says": {"sharding": Status.UNSUPPORTED}}, "no repair is"),
        ({"says": {"kernels": Status.INVALID}}, "no repair is"),
        ({"enough": "nothing"}, "no repair is"),
    ],
)
def test_nothing_is_kept_that_is_not_proved(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    world = World("ab", "ab", **more)
    end = play(world, tmp_path / "l")
    assert end.status is EndStatus.UNREPAIRED
    assert why in end.reason
    assert not world.kept


def test_what_cannot_be_asked_here_is_told(tmp_path: Path) -> None:
    world = World("ab", "ab", says={"kernels": Status.UNSUPPORTED}, served={"load": Status.UNSUPPORTED})
    assert play(world, tmp_path / "l").status is EndStatus.REPAIRED
    (move,) = records(tmp_path / "l", "decision", MoveRecord)
    assert "not checked here: kernels, load" in move.reason
    assert "not served here: several ranks" in move.reason


@pytest.mark.parametrize("status", [Status.INVALID, Status.INCONCLUSIVE])
def test_a_service_that_could_not_be_told_is_left_to_a_person(tmp_path: Path, status: Status) -> None:
    end = play(World("ab", "ab", served={"load": status}), tmp_path / "l", goal().approved(["numerics"]))
    (move,) = records(tmp_path / "l", "decision", MoveRecord)
    assert move.decision is Outcome.ASK
    assert move.needs == (f"load ({status.value})",)
    assert "needs a person" in end.reason


def test_a_layer_that_no_move_names_is_not_taken_for_granted(tmp_path: Path) -> None:
    class Forgetful(World):
        def openings(self, commit: str, facts: Facts) -> Openings:
            found = super().openings(commit, facts)
            return Openings(moves=tuple(move.model_copy(update={"layers": ()}) for move in found.moves))

    end = play(Forgetful("ab", "ab"), tmp_path / "l")
    assert end.status is EndStatus.UNREPAIRED
    assert "sharding did not confirm it" in records(tmp_path / "l", "decision", MoveRecord)[0].reason


def test_a_change_that_cannot_be_made_is_rejected_and_the_next_is_tried(tmp_path: Path) -> None:
    class Failing(World):
        def change(self, commit: str, move: Move, facts: Facts) -> dict[str, Any]:
            if "tf32x3" in move.key:
                raise CandidateFailed("no such site")
            return super().change(commit, move, facts)

    world = Failing("ab", "ab", enough="ieee")
    assert play(world, tmp_path / "l").status is EndStatus.REPAIRED
    assert "no such site" in records(tmp_path / "l", "decision", MoveRecord)[0].reason


class Killed(BaseException):
    pass


def test_killed_at_every_write_it_ends_the_same(tmp_path: Path) -> None:
    whole = World("abc", "ac")
    end = play(whole, tmp_path / "whole")
    for stop in itertools.count(1):
        seen = itertools.count(1)

        def observer(*_: Any, seen: Any = seen, stop: int = stop) -> None:
            if next(seen) == stop:
                raise Killed

        path = tmp_path / f"killed-{stop}"
        try:
            play(World("abc", "ac"), path, observer=observer)
        except Killed:
            world = World("abc", "ac")
            again = play(world, path)
            assert (again.status, again.commit, again.reason) == (end.status, end.commit, end.reason)
            assert set(world.kept) <= set(whole.kept)
        else:
            break
    assert stop > 20
