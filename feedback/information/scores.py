"""How ways of choosing fare over many diagnoses: which causes they find, in how many calls, in which time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from feedback.information.belief import Belief
from feedback.information.choice import By, Worth, choose, worth
from feedback.information.diagnosis import Chooser, Diagnosis, Stopping, diagnose
from feedback.information.outcomes import Likelihood

#: Makes the chooser of one diagnosis; the generator is that diagnosis's own.
Maker = Callable[[random.Random], Chooser]


def most(by: By) -> Maker:
    """The most bits, or the most bits per second."""
    return lambda dice: lambda belief, offered: choose(belief, offered, by)


def at_random(dice: random.Random) -> Chooser:
    """Any of them, drawn anew for every call."""
    return lambda belief, offered: worth(belief, dice.choice(list(offered))) if offered else None


def cheapest_first(dice: random.Random) -> Chooser:
    """Each of them once, the cheaper ones first."""
    asked: set[str] = set()

    def chooser(belief: Belief, offered: Sequence[Likelihood]) -> Worth | None:
        left = [worth(belief, likelihood) for likelihood in offered if likelihood.probe not in asked]
        if not left:
            return None
        chosen = min(left, key=lambda w: (w.seconds, w.probe))
        asked.add(chosen.probe)
        return chosen

    return chooser


@dataclass(frozen=True)
class World:
    """Something with one cause, and what it answers to the n-th call of a probe."""

    cause: str
    ask: Callable[[str, int], str]


@dataclass(frozen=True)
class Episode:
    """One diagnosis, and the cause that it was to find."""

    cause: str
    diagnosis: Diagnosis
    started: float  # bits that were unknown

    @property
    def right(self) -> bool:
        """Whether it became sure of the cause that is there."""
        return self.diagnosis.found == self.cause

    @property
    def wrong(self) -> bool:
        """Whether it became sure of another one."""
        return self.diagnosis.found is not None and not self.right


@dataclass(frozen=True)
class Score:
    """How a way of choosing fared; shares and means are over its episodes."""

    name: str
    episodes: tuple[Episode, ...]

    @property
    def found(self) -> float:
        """Share that ended sure of the right cause."""
        return _mean([float(e.right) for e in self.episodes])

    @property
    def wrong(self) -> float:
        """Share that ended sure of another one."""
        return _mean([float(e.wrong) for e in self.episodes])

    @property
    def calls(self) -> float:
        """Mean number of calls."""
        return _mean([float(len(e.diagnosis.calls)) for e in self.episodes])

    @property
    def seconds(self) -> float:
        """Mean seconds of the calls."""
        return _mean([e.diagnosis.seconds for e in self.episodes])

    @property
    def bits(self) -> float:
        """Mean bits that were told: unknown before, less unknown afterwards."""
        return _mean([e.started - e.diagnosis.belief.entropy for e in self.episodes])

    def found_of(self, *causes: str) -> tuple[int, int]:
        """How many episodes with one of these causes found it, of how many."""
        chosen = [e for e in self.episodes if e.cause in causes]
        return sum(e.right for e in chosen), len(chosen)


def play(
    name: str,
    start: Belief,
    likelihoods: Sequence[Likelihood],
    worlds: Sequence[World],
    maker: Maker,
    stopping: Stopping | None = None,
) -> Score:
    """A diagnosis in every world, each from the same belief."""
    episodes = []
    for number, world in enumerate(worlds):
        chooser = maker(random.Random(f"{name} {number} {world.cause}"))
        found = diagnose(start, likelihoods, world.ask, stopping, chooser)
        episodes.append(Episode(world.cause, found, start.entropy))
    return Score(name, tuple(episodes))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
