"""The arms: random search draws what it says, the search is the loop's, and the finals compare what they claim to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.arms import experiment
from experiments.arms.finals import Finals, finals
from experiments.arms.random_search import RandomSearch, drawn, space_of
from experiments.arms.searching import ARMS, Arm, Floor, Searched, _search
from experiments.worlds import FixedLibrary, goal_of, place_of
from feedback.errors import UserError
from feedback.probe import Tree
from feedback.statistics import NoiseFloor
from feedback.target import Parameter
from feedback.verdict import Verdict
from infra_agent.ladder import Experience
from infra_agent.ledger import Ledger
from infra_agent.measurements.recorded import START, RecordedMeasurements
from infra_agent.proposers.embedded import Aim, Proposal, Stop, propose
from infra_agent.records import BaselineRecord
from infra_agent.steps import Steps
from tests.infra_agent.verdicts import load
from tests.infra_agent.worlds import LAYERS, Silent, decisions, goal, kept, play, typical

SPACE = (
    Parameter(
        name="dtype", kind="choice", values=("float32", "bfloat16"), default="float32", doc="", changes_numerics=True
    ),
    Parameter(name="max_batch", kind="int", values=(1, 2, 4, 8), default=4, doc=""),
    Parameter(name="operators.linear", kind="choice", values=("torch", "native"), default="torch", doc=""),
)  # fmt: skip
FACTS = {"launch.dtype": "float32", "launch.max_batch": 4}
AIM = Aim("output_throughput", 0.02)


def proposed(search: RandomSearch, tried: int = 0, seconds: float = 1000.0, seed: int = 0) -> Proposal | Stop:
    history: list[Any] = [None] * tried
    return search(AIM, history, (), FACTS, Experience(LAYERS), seconds, seed)


def test_the_space_is_what_the_goal_allows_without_implementations() -> None:
    assert [parameter.name for parameter in space_of(goal(), SPACE)] == ["dtype", "max_batch"]
    narrow = goal(scope={"launch": ["max_batch"], "values": {"max_batch": [8]}})
    assert [(p.name, p.values) for p in space_of(narrow, SPACE)] == [("max_batch", (8,))]


def test_draws_are_uniform_independent_and_repeatable() -> None:
    space = space_of(goal(), SPACE)
    draws = [drawn(space, 3, number) for number in range(4000)]
    assert draws == [drawn(space, 3, number) for number in range(4000)]
    assert draws != [drawn(space, 4, number) for number in range(4000)]
    for parameter in space:
        counts = Counter(draw[parameter.name] for draw in draws)
        assert set(counts) == set(parameter.values)
        assert max(counts.values()) < 1.2 * 4000 / len(parameter.values)
    together = Counter((draw["dtype"], draw["max_batch"]) for draw in draws)
    assert len(together) == 8
    assert min(together.values()) > 0.75 * 4000 / 8


def test_a_draw_is_a_launch_move_and_stops_when_there_is_no_time() -> None:
    search = RandomSearch(space_of(goal(), SPACE))
    first, second = proposed(search), proposed(search, tried=1)
    assert isinstance(first, Proposal)
    assert isinstance(second, Proposal)
    assert first.hypothesis.move.kind == "launch"
    assert set(first.hypothesis.move.launch) == {"dtype", "max_batch"}
    assert first.hypothesis.move.key != second.hypothesis.move.key
    for number in range(20):
        move = proposed(search, tried=number)
        assert isinstance(move, Proposal)
        assert move.hypothesis.move.changes_numerics == (move.hypothesis.move.launch["dtype"] == "bfloat16")
    assert isinstance(proposed(search, seconds=1.0), Stop)


def test_the_search_makes_the_decisions_of_the_loop(tmp_path: Path) -> None:
    play(typical(), tmp_path / "loop")
    with Ledger.open(tmp_path / "search") as ledger:
        steps = Steps(goal(), ledger, RecordedMeasurements(typical()), Silent())
        found, curve, reason = _search(steps, propose, steps.baseline(START))
    assert decisions(tmp_path / "search") == decisions(tmp_path / "loop")
    assert ["+".join(record.skeletons) for record in found] == kept(tmp_path / "loop")
    assert reason
    assert [point[0] for point in curve] == sorted(point[0] for point in curve)
    gains = [record.measured.point for record in found if record.measured is not None]
    assert curve[-1][1] == pytest.approx(gains[0] * gains[1] * gains[2] * gains[3])


def test_a_search_that_is_begun_again_goes_on(tmp_path: Path) -> None:
    results = []
    for _ in range(2):
        with Ledger.open(tmp_path / "search") as ledger:
            steps = Steps(goal(), ledger, RecordedMeasurements(typical()), Silent())
            results.append(_search(steps, propose, steps.baseline(START)))
    assert results[0] == results[1]


def search(arm: Arm, seed: int, speed: float, **config: Any) -> Searched:
    tree = Tree(Path("/x"), f"{speed}", config)
    return Searched(arm, seed, tree, tree, Path("w"), 5, (), 100.0, ((0.0, 1.0), (100.0, speed)), "done")


RANDOM, LAUNCH, CODE = ARMS


def compared(log: list[tuple[str, str]], half: float = 0.02):
    def compare(base: Tree, candidate: Tree, name: str) -> Verdict:
        log.append((base.commit, candidate.commit))
        return load(float(candidate.commit) / float(base.commit), half=half)

    return compare


def test_the_best_launch_state_is_found_and_every_code_state_compared_with_it() -> None:
    found = [
        search(RANDOM, 0, 2.0, max_batch=8), search(LAUNCH, 0, 3.0, max_batch=16), search(CODE, 0, 3.9, max_batch=16),
        search(RANDOM, 1, 2.5, max_batch=4), search(LAUNCH, 1, 3.0, max_batch=16), search(CODE, 1, 3.6, max_batch=16),
    ]  # fmt: skip
    log: list[tuple[str, str]] = []
    final = finals(found, 2, compared(log), lambda line: None)
    assert (final.best.arm.name, final.best.seed) == (LAUNCH.name, 0)
    # One state that two searches ended in is measured once.
    assert log == [("2.0", "3.0"), ("2.0", "2.5"), *[("3.0", "3.9")] * 2, *[("3.0", "3.6")] * 2]
    assert final.code is not None
    assert final.code.point == pytest.approx(1.25, rel=0.01)
    assert final.code.low > 1.15
    told = experiment.told(found, final)
    assert all(told.claims.values())
    points = {(row[0], row[1]): row[6] for row in told.rows}
    assert points[LAUNCH.name, 1] == pytest.approx(1.0)
    assert points[RANDOM.name, 0] == pytest.approx(2 / 3)


def test_a_wide_interval_or_none_makes_no_claim() -> None:
    found = [search(RANDOM, 0, 2.0, a=1), search(LAUNCH, 0, 3.0, a=2), search(CODE, 0, 3.9, a=2)]
    unsure = finals(found, 1, compared([], half=0.3), lambda line: None)
    assert not all(experiment.told(found, unsure).claims.values())
    nothing = Finals(found[1], {}, None, ("invalid",))
    assert not all(experiment.told(found, nothing).claims.values())


def test_a_library_of_some_kinds_offers_and_looks_for_nothing_else() -> None:
    launch, everything = FixedLibrary(frozenset({"launch"})), FixedLibrary(order=3)
    assert {skeleton.kind for skeleton in launch.skeletons()} == {"launch"}
    assert launch.looked_for() == ()
    assert {skeleton.kind for skeleton in everything.skeletons()} == {"launch", "code"}
    assert everything.looked_for() == FixedLibrary().looked_for() != ()
    assert list(everything.skeletons().skeletons) != list(FixedLibrary().skeletons().skeletons)


def test_a_place_is_the_same_run_when_it_is_made_again(tmp_path: Path) -> None:
    first = place_of(goal_of("first_run", name="arms"), tmp_path / "run")
    again = place_of(goal_of("first_run", name="arms"), tmp_path / "run")
    assert first == again
    assert Path(first[0].start).parent == first[1].starts
    assert first[0].digest == goal_of("first_run", name="arms").digest


def test_the_noise_floor_is_measured_once_and_paid_by_no_search(tmp_path: Path) -> None:
    class World(RecordedMeasurements):
        noise: NoiseFloor | None = None
        measured = 0

        def baseline(self, commit: str) -> BaselineRecord:
            self.measured += 1
            self.noise = NoiseFloor(0.01, 4)
            return super().baseline(commit)

    found = []
    for number in (0, 1, 0):  # the last one is an experiment that goes on
        world, floor = World(typical()), Floor(tmp_path / "floor.json")
        with Ledger.open(tmp_path / f"search-{number}") as ledger:
            steps = Steps(goal(), ledger, world, Silent())
            found.append((floor.of(steps, world, START), world.noise, world.measured))  # type: ignore[arg-type]
            assert steps.spent == 0.0
    assert [measured for _, _, measured in found] == [1, 0, 0]
    assert len({record.model_dump_json() for record, _, _ in found}) == 1
    assert all(noise == NoiseFloor(0.01, 4) for _, noise, _ in found)
    with pytest.raises(UserError, match="another start"), Ledger.open(tmp_path / "other") as ledger:
        Floor(tmp_path / "floor.json").of(Steps(goal(), ledger, World(typical()), Silent()), World(typical()), "other")  # type: ignore[arg-type]
