"""The diagnosis experiment: its starts hold one planted cause each, its recorded worlds are worlds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.diagnosis import experiment
from experiments.diagnosis.cases import CASES, HEALTHY, Case, prefix_heavy
from experiments.diagnosis.observing import Seen, observe
from experiments.diagnosis.recorded import play, shuffled, table_from
from experiments.worlds import goal_of
from feedback.profile.facts import repeat_share
from infra_agent import tomltext
from infra_agent.hypothesis import Move
from infra_agent.measurements import Openings
from infra_agent.proposers.causes import CAUSES
from infra_agent.records import EndStatus
from infra_agent.repository import Entry
from infra_agent.start import Start
from tests.experiments.small import tiny, write_workload
from tests.infra_agent.worlds import HEALTHY as HEALTHY_FACTS
from tests.infra_agent.worlds import SLOW, move


def offered() -> tuple[Move, ...]:
    return (
        move("slots=8", "launch", "too_few_slots", 1.5, launch={"max_batch": 8}),
        move("slots=16", "launch", "too_few_slots", 1.9, launch={"max_batch": 16}),
        move("narrow", "launch", "wide_weights", 1.6),
        move("native", "code", "blocks_gathered", 1.3),
        move("pack", "code", "weights_repacked_every_call", 1.2),
        move("pack:part", "code", "weights_repacked_every_call", 1.1, skeletons=("pack",)),
    )


def test_every_start_differs_from_the_shipped_engine_in_one_thing(trusted_root: Path) -> None:
    target = {
        path.relative_to(trusted_root).as_posix(): Entry(path.read_bytes())
        for path in (trusted_root / "target_engine").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    profile = "target_engine/profiles/run.toml"
    plain = Start.load("production").apply(target, profile, {})
    shipped = tomltext.parse(plain[profile].data.decode(), profile)
    for case in CASES:
        tree = Start.load(case.start).apply(target, profile, {})
        own = tomltext.parse(tree[profile].data.decode(), profile)
        parameters = {name for name in shipped if shipped[name] != own[name]}
        assert len(parameters) == 1, (case.start, parameters)
        assert set(tree) <= set(plain)
        for operator, chosen in own["operators"].items():
            assert any(path.startswith(f"target_engine/ops/{operator}/{chosen}.") for path in tree), (operator, chosen)


def test_planted_causes_are_those_that_the_diagnosis_knows() -> None:
    known = {cause.name for cause in CAUSES}
    planted = [case.planted for case in CASES]
    assert len(planted) == len(set(planted)) == 6
    assert set(planted) <= known


def test_the_prefix_heavy_workload_repeats_its_page() -> None:
    prompts = [[ord(letter) for letter in row.prompt or ""] for row in prefix_heavy().rows]
    assert len(prompts) == 16
    assert repeat_share(prompts, 16) > 0.8


@pytest.mark.parametrize("seed", range(3))
def test_a_recorded_world_keeps_the_same_moves_in_any_order(seed: int) -> None:
    table = table_from(SLOW, offered(), seed)
    assert table == table_from(SLOW, tuple(reversed(offered())), seed).model_copy(update={"moves": table.moves})
    goal = goal_of("first_run", budget={"wall_seconds": 900.0})
    kept = {play(shuffled(table, order), goal)[1] for order in range(4)}
    assert len(kept) == 1
    launch = [title for title in next(iter(kept)) if title.startswith("slots")]
    assert len(launch) <= 1, "two values of one parameter were kept"


def test_where_nothing_pays_nothing_is_kept() -> None:
    table = table_from(HEALTHY_FACTS, offered(), 1, healthy=True)
    assert {entry.effect for entry in table.moves} == {1.0}
    end, kept = play(table, goal_of("production"))
    assert end.status is EndStatus.NO_WIN
    assert kept == ()


def seen(case: Case, facts: dict) -> Seen:
    return Seen(case, facts, Openings(moves=()), True)


def test_claims_count_right_diagnoses() -> None:
    starved = {**HEALTHY_FACTS, "queue.waiting_mean": 9.0, "decode.rows_mean": 2.0, "decode.occupancy": 1.0}
    cases = [Case(f"s{number}", "too_few_slots", "") for number in range(6)]
    five = [*(seen(case, starved) for case in cases[:5]), seen(cases[5], HEALTHY_FACTS), seen(HEALTHY, HEALTHY_FACTS)]
    ends = [EndStatus.NO_WIN]
    good = experiment.told(five, True, True, [("a", "b")], ends, None)
    assert all(good.claims.values()), good.claims
    assert good.rows[5][5] == "NO"
    four = [*five[:4], seen(cases[4], HEALTHY_FACTS), *five[5:]]
    for bad in (
        experiment.told(four, True, True, [("a", "b")], ends, None),
        experiment.told(five[1:], True, True, [("a", "b")], ends, None),
        experiment.told(five, False, True, [("a", "b")], ends, None),
        experiment.told(five, True, False, [("a", "b")], ends, None),
        experiment.told(five, True, True, [()], ends, None),
        experiment.told(five, True, True, [("a", "b")], [EndStatus.IMPROVED], None),
        experiment.told(five, True, True, [("a", "b")], ends, EndStatus.IMPROVED),
    ):
        assert not all(bad.claims.values())


@pytest.mark.slow
def test_a_start_is_profiled_and_diagnosed(tmp_path: Path) -> None:
    few = str(write_workload(tmp_path / "few.jsonl", count=12, tokens=16))
    found = observe(Case("few_slots", "too_few_slots", "", few), tmp_path / "world", str(tiny(tmp_path / "tiny")), (1,))
    assert found.facts["launch.max_batch"] == 2
    assert float(found.facts["queue.waiting_mean"]) > 2
    assert found.right, found.ranked[:3]
    assert found.same_offers
    assert math.isclose(sum(probability for _, probability in found.ranked), 1.0)
