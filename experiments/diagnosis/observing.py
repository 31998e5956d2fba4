"""What is seen of a start: facts of a profiled run, and what a library offers on it. Nothing is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.diagnosis.cases import Case, workload_for
from experiments.worlds import FixedLibrary, goal_of, opened, place_of
from infra_agent.measurements import Openings
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.proposers.causes import HEALTHY, Facts, diagnosis, observation, with_found

#: Orders in which the library is read for the comparison of what it offers.
ORDERS = (1, 2, 3)


@dataclass(frozen=True)
class Seen:
    """One start as the proposer sees it. `same_offers`: reading the library in other orders offered the same moves."""

    case: Case
    facts: Facts
    openings: Openings
    same_offers: bool

    @property
    def ranked(self) -> list[tuple[str, float]]:
        """The diagnosis, most likely first."""
        return diagnosis(self.facts)

    @property
    def right(self) -> bool:
        """Whether the first-ranked cause is the planted one."""
        return self.ranked[0][0] == self.case.planted

    @property
    def because(self) -> str:
        """The facts that speak for the first-ranked cause."""
        first = self.ranked[0][0]
        return f"{len(self.openings.moves)} moves are offered" if first == HEALTHY else observation(first, self.facts)


def observe(case: Case, folder: Path, model: str = "", shuffles: Sequence[int] = ()) -> Seen:
    """Profile a start in a world of its own and ask the library what applies."""
    folder.mkdir(parents=True, exist_ok=True)
    objective = {"metric": "output_throughput", "workload": workload_for(case, folder)}
    goal, place = place_of(goal_of(case.start, model=model, name="diagnosis", objective=objective), folder)
    with opened(goal, place, FixedLibrary(), LiveMeasurements) as (world, ground):
        base = ground.workspace.base
        measured = world.profile(base).facts
        found = world.openings(base, measured)
        offered = [
            LiveMeasurements(ground, FixedLibrary(order=order)).openings(base, measured).moves for order in shuffles
        ]
    facts = with_found(measured, [move.cause for move in found.moves if move.kind == "code"], found.looked_for)
    return Seen(case, facts, found, all(moves == found.moves for moves in offered))
