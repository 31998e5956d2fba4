"""Six tools that a kernel can be asked with, their assumed durations, and one more that also tells the error's rank.

A tool answers with a short outcome (what is counted) and a line (what a person reads). A probe is a tool on a shape;
every call makes fresh inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from experiments.feedback_information.kernel import SHAPES, TILE, Fault, Inputs, Run, Shape, run
from feedback.operators.indices import describe_indices
from feedback.operators.patterns import compare
from feedback.target import Tolerance

TOLERANCE = Tolerance(atol=2e-2, rtol=1e-2, reason="what tests of kernels with half-width inputs usually allow")

#: From this share of wrong elements on, a row, a column or the whole of C counts as nearly wholly wrong.
NEARLY = 0.9

#: Errors below this share of the usual size of an element of C look like rounding.
SMALL = 0.1

#: Seconds of compiling an edit; tools' durations stand with the tools. All are assumptions.
COMPILE_SECONDS = 30.0

PASS, FAIL = "pass", "fail"


@dataclass(frozen=True)
class Answer:
    """The outcome that is counted, and the line that is read."""

    outcome: str
    line: str


@dataclass
class Bench:
    """One problem on one kernel; runs are made when a tool wants them, and a second one differs in its timing alone."""

    inputs: Inputs
    fault: Fault
    clock: np.random.Generator

    @cached_property
    def first(self) -> Run:
        """The first run."""
        return run(self.inputs, self.fault, self.clock)

    @cached_property
    def second(self) -> Run:
        """Another run on the same inputs."""
        assert self.first is not None
        return run(self.inputs, self.fault, self.clock)

    @cached_property
    def wrong(self) -> np.ndarray:
        """Elements of the first run outside the tolerance [M, N]."""
        expected = self.inputs.expected
        return np.abs(self.first.c - expected) > TOLERANCE.atol + TOLERANCE.rtol * np.abs(expected)

    @cached_property
    def rank(self) -> tuple[int | None, int]:
        """Numerical rank of the error matrix, None within tolerance, and the rank that it could have."""
        pattern = compare(self.first.c, self.inputs.expected, TOLERANCE)
        return (None, min(self.wrong.shape)) if pattern is None else (pattern.rank, pattern.full_rank)


def _test(bench: Bench) -> Answer:
    bad = bool(bench.wrong.any())
    return Answer(FAIL, "FAIL: C is not what the reference computes") if bad else Answer(PASS, "PASS")


def _detailed(bench: Bench) -> Answer:
    if not bench.wrong.any():
        return Answer(PASS, "PASS")
    wrong, expected = bench.wrong, bench.inputs.expected
    error = np.abs(np.where(wrong, bench.first.c - expected, 0.0))
    place, where = _place(wrong)
    size = "small" if error.max() < SMALL * np.sqrt(np.mean(expected**2)) else "large"
    line = f"FAIL: {wrong.sum()} of {wrong.size} elements are out of tolerance ({wrong.mean():.1%}), {where}"
    return Answer(f"{place}, {size}", f"{line}; max error {error.max():.3g}")


def _place(wrong: np.ndarray) -> tuple[str, str]:
    """Where the wrong elements are: as a class, and in words."""
    if wrong.mean() >= NEARLY:
        return "nearly all", "nearly everywhere"
    found = {"rows": describe_indices(wrong.mean(axis=1) >= NEARLY)}
    found["columns"] = describe_indices(wrong.mean(axis=0) >= NEARLY)
    whole = {noun: indices.text(noun) for noun, indices in found.items() if indices.count}
    if not whole:
        return "scattered", "scattered"
    return f"whole {' and '.join(whole)}", f"{' and '.join(whole.values())} nearly wholly wrong"


def _ranked(bench: Bench) -> Answer:
    answer = _detailed(bench)
    rank, full = bench.rank
    if rank is None:
        return answer
    low = "rank within a tile" if rank <= TILE else "high rank"
    return Answer(f"{answer.outcome}, {low}", f"{answer.line}; the error has rank {rank} of {full}")


SAME_RIGHT, SAME_WRONG, DIFFERS = "pass twice", "the same wrong result twice", "two results"


def _twice(bench: Bench) -> Answer:
    changed = int((bench.first.c != bench.second.c).sum())
    if changed:
        return Answer(DIFFERS, f"FAIL: {changed} elements differ between two runs on the same inputs")
    return Answer(SAME_WRONG, f"FAIL: {SAME_WRONG}") if bench.wrong.any() else Answer(SAME_RIGHT, "PASS, both times")


CLEAN, READ, WRITTEN, RACE = "clean", "read outside", "write outside", "race"


def _memcheck(bench: Bench) -> Answer:
    if bench.first.written_outside:
        return Answer(WRITTEN, "memcheck: an invalid write behind C")
    if bench.first.read_outside:
        return Answer(READ, "memcheck: an invalid read behind an input")
    return Answer(CLEAN, "memcheck: clean")


def _racecheck(bench: Bench) -> Answer:
    if bench.first.race:
        return Answer(RACE, "racecheck: shared memory is read before it was waited for")
    return Answer(CLEAN, "racecheck: clean")


@dataclass(frozen=True)
class Tool:
    """One tool. `seconds` is assumed; `outcomes` where it can answer nothing else; `constructed`: B is the identity."""

    name: str
    about: str
    seconds: float
    ask: Callable[[Bench], Answer]
    outcomes: tuple[str, ...] | None = None
    constructed: bool = False

    def fits(self, shape: Shape) -> bool:
        """Whether the tool can be asked on this shape."""
        return not self.constructed or shape.k == shape.n

    def bench(self, fault: Fault, shape: Shape, rng: np.random.Generator) -> Bench:
        """Fresh inputs for one call."""
        inputs = Inputs.identity(shape, rng) if self.constructed else Inputs.random(shape, rng)
        return Bench(inputs, fault, rng)


#: The lecture's trace needs 105 s for two diagnoses of 3 s, two compilations and a check of the repaired kernel by
#: three tests and a memcheck: 3, 30 and 30 s give just that. The others are ours.
TOOLS = (
    Tool("test", "says whether C is right", 3.0, _test, (PASS, FAIL)),
    Tool("detailed", "says where C is wrong, and how much", 3.0, _detailed),
    Tool("identity", "the detailed test with the identity for B", 3.0, _detailed, constructed=True),
    Tool("twice", "runs twice on the same inputs", 6.0, _twice, (SAME_RIGHT, SAME_WRONG, DIFFERS)),
    Tool("memcheck", "finds accesses outside of memory", 30.0, _memcheck, (CLEAN, READ, WRITTEN)),
    Tool("racecheck", "finds reads that did not wait for the write", 60.0, _racecheck, (CLEAN, RACE)),
)

#: Exercise 4: not among the six.
RANKED = Tool("ranked", "the detailed test, with the rank of the error", 3.0, _ranked)


@dataclass(frozen=True)
class Probe:
    """A tool on a shape."""

    tool: Tool
    shape: Shape

    @property
    def name(self) -> str:
        """`detailed/edge`."""
        return f"{self.tool.name}/{self.shape.name}"


PROBES = {
    probe.name: probe for tool in (*TOOLS, RANKED) for shape in SHAPES if tool.fits(shape)
    for probe in [Probe(tool, shape)]
}  # fmt: skip
