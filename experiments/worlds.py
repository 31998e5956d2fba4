"""How an experiment opens the world of a run: a folder of its own, a goal made in code, a library that stays as it is.

What runs leave for later runs would make the second arm of a comparison know what the first has learnt, so nothing here
reads or writes the user's own library, and no run of an experiment is listed among the user's runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from infra_agent import paths
from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.measurements import Remembered
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.measurements.openings import Library
from infra_agent.measurements.setup import Ground, prepared
from infra_agent.paths import RunPaths, make_dir
from infra_agent.repository import gitpython
from infra_agent.start import Start
from infra_agent.targetfiles import root_of

if TYPE_CHECKING:
    from skeletons.matching import Declined, Opportunity
    from skeletons.view import TargetView

ADAPTER = "target_engine.adapter"

World = TypeVar("World", bound=LiveMeasurements)


def goal_of(start: str | Path, *, model: str = "", name: str = "experiment", **more: Any) -> Goal:
    """A throughput goal on the bundled target from a start (a shipped name or a folder). `model` is an id or a path;
    empty: the profile's own. `more` are further fields of a goal.
    """
    folder = Path(start) if isinstance(start, Path) else paths.shipped("starts") / start
    fields: dict[str, Any] = {
        "name": name,
        "adapter": ADAPTER,
        "start": str(folder),
        "objective": {"metric": "output_throughput", "workload": "main"},
        **({"model": model} if model else {}),
    }
    return Goal.model_validate({**fields, **more})


def place_of(goal: Goal, folder: Path) -> tuple[Goal, RunPaths]:
    """A run folder with its own copy of goal and start; made again, it is the same run, to go on with."""
    gitpython()
    root_of(goal.adapter)
    place = RunPaths(make_dir(folder.absolute()))
    copied = Start.load(Path(goal.start)).copy_to(place.starts)
    goal = goal.model_copy(update={"start": str(copied.folder)})
    place.goal.write_text(goal.to_toml(), encoding="utf-8")
    return goal, place


@contextmanager
def opened(
    goal: Goal, place: RunPaths, library: Library, make: Callable[[Ground, Library], World]
) -> Generator[tuple[World, Ground]]:
    """The live world of a run, `make(ground, library)`; its workers end afterwards, checkouts but the best go."""
    with prepared(goal, place) as ground:
        yield make(ground, library), ground
        ground.workspace.prune([ground.workspace.kept_tip])


@dataclass(frozen=True)
class FixedLibrary:
    """The shipped skeletons of some kinds (empty: all), in an order drawn from `order` (None: as they stand). It
    learns nothing.
    """

    kinds: frozenset[str] = frozenset()
    order: int | None = None
    _loaded: list[Any] = field(default_factory=list, repr=False, compare=False)

    def skeletons(self) -> Any:
        """The library itself, loaded once."""
        if not self._loaded:
            from skeletons.library import Library as Skeletons

            found = Skeletons.load(user=Path("/nonexistent"))
            names = [s.name for s in found if not self.kinds or s.kind in self.kinds]
            if self.order is not None:
                random.Random(self.order).shuffle(names)
            self._loaded.append(replace(found, skeletons={name: found.skeletons[name] for name in names}))
        return self._loaded[0]

    def opportunities(self, view: TargetView) -> tuple[Sequence[Opportunity], Sequence[Declined]]:
        """What applies to a state of the target, and what does not and why."""
        from skeletons.matching import opportunities

        return opportunities(self.skeletons(), view)

    def looked_for(self) -> tuple[str, ...]:
        """Causes that its code skeletons search the sources for."""
        return tuple(sorted({each.cause for each in self.skeletons().skeletons.values() if each.kind == "code"}))

    def remember(self, move: Move, outcome: Remembered, workload: str) -> None:
        """Learns nothing."""
