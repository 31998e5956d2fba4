"""Timing one input condition in three live workers, and verifying what was timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from feedback.load.disturbance import CpuMeter
from feedback.microbench.inputs import LEAST_SETS, MOST_BYTES, constants, fresh_sets, runtime, unit_bytes
from feedback.operators.cases import input_seed
from feedback.operators.checks import Call, Deviation, judge_case
from feedback.oracle import Oracle
from feedback.statistics import Pass, Unit
from feedback.target import Arrays, Case, OperatorInfo, Tolerance
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import Worker

Side = Literal["base", "control", "candidate"]
SIDES: tuple[Side, ...] = ("base", "candidate", "control")

#: Units of each side in one replicate.
ROUNDS = 3

#: A unit should last this long, so that the 0.1 ms of messages in it are little.
UNIT_SECONDS = 0.02

#: Most input sets of a unit.
MOST_SETS = 64

#: Seconds that references of one condition and replicate may take.
REFERENCE_SECONDS = 2.0


class TooLarge(Exception):
    """A condition whose units would not fit in memory; says how large they are."""


class BaseFailed(Exception):
    """A worker with the base failed, so nothing was learnt about the candidate. One line."""


@contextlib.contextmanager
def blaming(side: Side) -> Generator[None]:
    """Failures of the base's workers are not the candidate's."""
    try:
        yield
    except WorkerFailure as failure:
        if side == "candidate":
            raise
        raise BaseFailed(f"the base failed: {failure.line}") from failure


@dataclass(frozen=True)
class Place:
    """Where an operator runs: a worker and the launch configuration that it is opened under."""

    worker: Worker
    config: dict[str, Any]
    label: str


@dataclass
class Trial:
    """One condition in one replicate: three fresh instances, one in each of three workers."""

    oracle: Oracle
    info: OperatorInfo
    case: Case
    config: dict[str, Any]
    tolerance: Tolerance
    places: dict[Side, Place]
    seed: int
    handles: dict[Side, int] = field(default_factory=dict)
    units: dict[Side, list[Unit]] = field(default_factory=lambda: {side: [] for side in SIDES})
    timed: list[tuple[Arrays, Arrays, tuple[str, ...]]] = field(default_factory=list)

    def run(self) -> tuple[Pass, Pass, list[Deviation]]:
        """Candidate against base, base against base, and what is wrong with the candidate's timed outputs.

        Raises `TooLarge`, `BaseFailed`, `OracleFailure`, and `WorkerFailure` for the candidate.
        """
        self._known = self.oracle.known_config(self.config)
        first = self._draw(input_seed(self.seed, self.info.name, self.case.name))
        self._constants = constants(self.info, first)
        given = runtime(self.info, first)
        size = unit_bytes(self.info, self.case, given)
        if size * LEAST_SETS > MOST_BYTES:
            raise TooLarge(f"{size * LEAST_SETS / 2**20:.0f} MiB for a unit of {LEAST_SETS} calls")
        begin = time.perf_counter()
        self._reference(given)
        reference_seconds = time.perf_counter() - begin
        for side, place in self.places.items():
            with blaming(side):
                self.handles[side] = place.worker.call(
                    "operator_open", self.info.name, place.config, self.case.model_dump(), self._constants
                )
        count, rounds = self._extent(given, size, reference_seconds)
        meter = CpuMeter(place.worker.pid for place in self.places.values())
        rng = np.random.default_rng(input_seed(self.seed, self.info.name, self.case.name, "units"))
        for number in range(rounds):
            sets = fresh_sets(self.info, count, rng, self._draw)
            for side in _turn(number):
                self._unit(side, sets, meter)
        return self._pass("candidate"), self._pass("control"), self._deviations()

    def _extent(self, given: Arrays, size: int, reference_seconds: float) -> tuple[int, int]:
        """(input sets of a unit, rounds): long enough to time, small enough to verify."""
        with blaming("base"):
            batch = self.places["base"].worker.operator_batch(self.handles["base"], [given] * LEAST_SETS)
        wanted = round(UNIT_SECONDS * LEAST_SETS / max(batch.seconds, 1e-6))
        verifiable = int(REFERENCE_SECONDS / max(reference_seconds, 1e-6))
        most = min(MOST_SETS, MOST_BYTES // max(size, 1), max(LEAST_SETS, verifiable // ROUNDS))
        count = max(LEAST_SETS, min(wanted, most))
        return count, max(1, min(ROUNDS, verifiable // count))

    def _unit(self, side: Side, sets: Sequence[Arrays], meter: CpuMeter) -> None:
        place = self.places[side]
        before = meter.read()
        with blaming(side):
            batch = place.worker.operator_batch(self.handles[side], sets)
        share = meter.other_share(before, meter.read())
        self.units[side].append(Unit(batch.seconds, len(batch.order), share))
        if side != "candidate":
            return
        for index, results in zip(batch.order, batch.outputs, strict=True):
            wrote = tuple(m.split(": ", 1)[1] for m in batch.mutated if m.startswith(f"set {index}: "))
            self.timed.append((sets[index], results, wrote))

    def _pass(self, side: Literal["candidate", "control"]) -> Pass:
        labels = (self.places["base"].label, self.places[side].label)
        where = f"{self.info.name} {self.case.name}"
        return Pass(
            tuple(self.units["base"]), tuple(self.units[side]), (f"{labels[0]} {where}", f"{labels[1]} {where}")
        )

    def _deviations(self) -> list[Deviation]:
        calls = [Call(given, wrote, results) for given, results, wrote in self.timed]
        expected = [self._reference(given) for given, _, _ in self.timed]
        names = [str(index) for index in range(len(calls))]
        return judge_case(self.info, self.case.name, calls, expected, names, self.tolerance)

    def _draw(self, seed: int) -> Arrays:
        return self.oracle.inputs(self.info.name, self.case, self._known, seed)

    def _reference(self, given: Arrays) -> Arrays:
        return self.oracle.reference(self.info.name, self.case, self._known, {**given, **self._constants})


def _turn(number: int) -> tuple[Side, ...]:
    """Who is timed in which order: each side is first, second and last in turn."""
    start = number % len(SIDES)
    turned = SIDES[start:] + SIDES[:start]
    return turned if number % 2 == 0 else turned[::-1]
