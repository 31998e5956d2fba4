"""Planting every fault and counting what the tools answer, and kernels in which a fault is to be found.

Every call draws from a generator of its own, seeded by what is asked, so the order of asking changes nothing, and all
policies meet the same kernels. Kernels and plantings share no seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from experiments.feedback_information.kernel import SHAPES, Fault
from experiments.feedback_information.tools import PROBES, RANKED, TOOLS, Answer
from feedback.information.outcomes import Observed, OutcomeTable


def generator(*words: object) -> np.random.Generator:
    """A generator for whatever the words name."""
    return np.random.default_rng([zlib.crc32(str(word).encode()) for word in words])


@dataclass(frozen=True)
class Planted:
    """What planting gave: the table of outcomes, and the rank of each error matrix by (fault, shape)."""

    table: OutcomeTable
    ranks: dict[tuple[str, str], tuple[int, ...]]


def plant(plantings: int, seed: int, say: Callable[[str], None]) -> Planted:
    """Plant each fault so often on each shape, and ask every tool. Tools on one shape share inputs and runs."""
    seen: list[Observed] = []
    ranks: dict[tuple[str, str], list[int]] = {}
    for fault in Fault:
        for shape in SHAPES:
            for constructed in (False, True):
                tools = [t for t in (*TOOLS, RANKED) if t.constructed is constructed and t.fits(shape)]
                for number in range(plantings if tools else 0):
                    rng = generator("plant", seed, fault, shape.name, constructed, number)
                    bench = tools[0].bench(fault, shape, rng)
                    for tool in tools:
                        name = f"{tool.name}/{shape.name}"
                        seen.append(Observed(fault.value, name, tool.ask(bench).outcome, tool.seconds))
                    rank = None if constructed else bench.rank[0]
                    if rank is not None:
                        ranks.setdefault((fault.value, shape.name), []).append(rank)
        say(f"planted {fault.value} {plantings} times on {len(SHAPES)} shapes")
    closed = {name: probe.tool.outcomes for name, probe in PROBES.items() if probe.tool.outcomes is not None}
    about = {"plantings": plantings, "seed": seed, "seconds": "assumed"}
    return Planted(OutcomeTable.of(seen, closed, about=about), {key: tuple(found) for key, found in ranks.items()})


@dataclass
class Kernel:
    """A kernel with a fault that is to be found; answers are remembered, since policies ask the same."""

    fault: Fault
    seed: int
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)

    def ask(self, probe: str, number: int) -> Answer:
        """What the `number`-th call of the probe answers."""
        key = (probe, number)
        if key not in self.answers:
            asked = PROBES[probe]
            rng = generator("kernel", self.seed, self.fault, probe, number)
            self.answers[key] = asked.tool.ask(asked.tool.bench(self.fault, asked.shape, rng))
        return self.answers[key]

    def outcome(self, probe: str, number: int) -> str:
        """The outcome alone."""
        return self.ask(probe, number).outcome
