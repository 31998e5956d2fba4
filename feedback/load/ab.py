"""Interleaved A/B: two live engines work through one workload in alternating short units, on the parent's clock.

Closed loop: every request is submitted at once, inside the arm's first unit: an engine that works as it accepts
requests is timed doing so. A unit is one call of `step(n)`, n adapted per arm so that it lasts about
`Policy.unit_seconds`; the order within a pair of units alternates (AB BA AB ...), so that linear drift cancels. When
one arm is through, the other finishes alone. `Policy(unit_seconds=math.inf)` makes whole-run pairs out of the same
code.

An arm that works while the other is being timed would have that work for nothing and slow the other down, so the CPU
time of the resting arm is read too (`ArmRun.off_turn_share`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from feedback.load.collect import Collector
from feedback.load.disturbance import CpuMeter
from feedback.load.metrics import RequestRecord
from feedback.statistics import MAX_DISCARDED, Pass, Unit
from feedback.target import Request, StepReport

T = TypeVar("T")
Side = Literal["base", "candidate"]

#: Steps that stand for "until nothing is left".
ALL_STEPS = 1_000_000


class EngineSession(Protocol):
    """What the A/B needs of a started engine; `feedback.workers.pool.SessionHandle` is one."""

    def submit(self, requests: list[Request]) -> None: ...

    def step(self, n: int) -> StepReport: ...

    def metrics(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class Arm:
    """One live engine: `label` names the instance (it changes when the engine is rebuilt), `pid` its process."""

    label: str
    session: EngineSession
    pid: int


@dataclass(frozen=True)
class Policy:
    """How time is handed out. `order`: which arm goes first in a pair."""

    unit_seconds: float = 0.15
    order: Literal["alternate", "base_first", "candidate_first", "random"] = "alternate"
    seed: int = 0

    def first(self, pair: int, rng: random.Random) -> Side:
        """The arm that opens the given pair."""
        if self.order == "alternate":
            return "base" if pair % 2 == 0 else "candidate"
        if self.order == "random":
            return rng.choice(("base", "candidate"))
        return "base" if self.order == "base_first" else "candidate"


class ArmFailed(Exception):
    """One of the two engines failed or lied; the cause is the worker's failure or a `Misreport`."""

    def __init__(self, side: Side, cause: Exception) -> None:
        super().__init__(f"{side}: {cause}")
        self.side, self.cause = side, cause


@dataclass(frozen=True)
class ArmRun:
    """One arm's pass: its units in order, what came out, and the engine's own counters over the pass.

    `own_cpu_seconds` is CPU time in its own units, `off_turn_cpu_seconds` in the other's; `first_unit` counts units of
    both arms before each of its own.
    """

    units: tuple[Unit, ...]
    order: tuple[int, ...]
    records: tuple[RequestRecord, ...]
    counters: dict[str, float]
    own_cpu_seconds: float
    off_turn_cpu_seconds: float

    @property
    def busy_seconds(self) -> float:
        """Sum of its units as observed, disturbed ones included; the clock of its records."""
        return sum(unit.seconds for unit in self.units)

    @property
    def off_turn_share(self) -> float:
        """CPU time used out of turn per CPU time used in turn; infinite when all of it was out of turn."""
        if self.own_cpu_seconds > 0:
            return self.off_turn_cpu_seconds / self.own_cpu_seconds
        return math.inf if self.off_turn_cpu_seconds > 0 else 0.0


@dataclass(frozen=True)
class PassRun:
    """A whole pass of both arms: `timing` goes to the statistics, the rest to verification and evidence."""

    timing: Pass
    base: ArmRun
    candidate: ArmRun


@dataclass
class _Lane:
    """One arm while its pass runs."""

    side: Side
    arm: Arm
    collector: Collector
    steps: int = 1
    clock: float = 0.0
    units: list[Unit] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    own_cpu: float = 0.0
    off_turn_cpu: float = 0.0
    waiting: list[Request] = field(default_factory=list)

    def work(self) -> StepReport:
        """What one unit times: the engine takes what waits for it, then steps."""
        if self.waiting:
            self.arm.session.submit(self.waiting)
            self.waiting = []
        return self.arm.session.step(self.steps)

    def adapt(self, unit: Unit, target: float) -> None:
        """Choose the next n: towards `target` seconds, at most four times the last n."""
        if math.isinf(target):
            self.steps = ALL_STEPS
        elif unit.steps:
            self.steps = max(1, min(4 * self.steps, round(target * unit.steps / max(unit.seconds, 1e-6))))


def run_pass(
    base: Arm,
    candidate: Arm,
    requests: Sequence[Request],
    policy: Policy | None = None,
    *,
    meter: CpuMeter | None = None,
    prefix: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> PassRun:
    """Take both engines through all `requests` once and return what the parent saw.

    `prefix` keeps the ids of repeated passes apart. Raises `ArmFailed` when an engine fails, or reports what cannot be
    true.
    """
    policy = policy or Policy()
    meter = meter or CpuMeter((base.pid, candidate.pid))
    first = ALL_STEPS if math.isinf(policy.unit_seconds) else 1
    lanes: dict[Side, _Lane] = {
        "base": _Lane("base", base, Collector(requests, prefix), first),
        "candidate": _Lane("candidate", candidate, Collector(requests, prefix), first),
    }
    before = {side: _guarded(lane, lane.arm.session.metrics) for side, lane in lanes.items()}
    for lane in lanes.values():
        lane.waiting = lane.collector.submitting(requests, at=0.0)
    rng, taken, pair = random.Random(policy.seed), 0, 0
    while not all(lane.collector.done for lane in lanes.values()):
        opening = policy.first(pair, rng)
        for side in (opening, _other(opening)):
            if not lanes[side].collector.done:
                _unit(lanes[side], lanes[_other(side)], meter, clock, taken)
                lanes[side].adapt(lanes[side].units[-1], policy.unit_seconds)
                taken += 1
        pair += 1
    runs = {}
    for side, lane in lanes.items():
        after = _guarded(lane, lane.arm.session.metrics)
        runs[side] = ArmRun(
            units=tuple(lane.units),
            order=tuple(lane.order),
            records=lane.collector.records(),
            counters={name: value - before[side].get(name, 0.0) for name, value in after.items()},
            own_cpu_seconds=lane.own_cpu,
            off_turn_cpu_seconds=lane.off_turn_cpu,
        )
    timing = Pass(runs["base"].units, runs["candidate"].units, (base.label, candidate.label))
    return PassRun(timing, runs["base"], runs["candidate"])


def _unit(lane: _Lane, resting: _Lane, meter: CpuMeter, clock: Callable[[], float], number: int) -> None:
    """One unit of one arm."""
    before = meter.read()
    start = clock()
    report = _guarded(lane, lane.work)
    seconds = clock() - start
    after = meter.read()
    try:
        tokens, prompt = lane.collector.take(report, lane.steps, lane.clock, lane.clock + seconds)
    except Exception as error:
        raise ArmFailed(lane.side, error) from error
    lane.clock += seconds
    lane.units.append(Unit(seconds, tokens, meter.other_share(before, after), report.steps, prompt))
    lane.order.append(number)
    lane.own_cpu += meter.used(before, after, (lane.arm.pid,))
    resting.off_turn_cpu += meter.used(before, after, (resting.arm.pid,))


def _other(side: Side) -> Side:
    return "candidate" if side == "base" else "base"


def _guarded(lane: _Lane, call: Callable[[], T]) -> T:
    """Run a call on an arm's engine; whatever it raises carries the arm's name."""
    try:
        return call()
    except Exception as error:
        raise ArmFailed(lane.side, error) from error


def too_disturbed(timing: Pass) -> str | None:
    """Why a pass cannot be used, in one line; None when it can."""
    if timing.usable:
        return None
    return (
        f"other processes took more than 5 % of the CPU in {timing.discarded_share:.0%} of an arm's units "
        f"(at most {MAX_DISCARDED:.0%} may be discarded): the machine is not quiet enough to time anything"
    )
