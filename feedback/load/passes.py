"""Passes that may be used: repeated when others disturbed them, and the A/A passes of the session's noise floor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from feedback.load.ab import Arm, ArmFailed, PassRun, Policy, run_pass, too_disturbed
from feedback.load.arms import LiveArms
from feedback.load.collect import Misreport
from feedback.load.disturbance import CpuMeter
from feedback.load.workload import Tokenize, Workload, prepare, salt_of
from feedback.probe import Tree
from feedback.statistics import NoiseFloor
from feedback.target import Request
from feedback.workers.failures import WorkerFailure


class TooDisturbed(Exception):
    """The machine is not quiet enough: every try of a pass had too many disturbed units. One line, and the tries."""

    def __init__(self, message: str, thrown_away: Sequence[PassRun] = ()) -> None:
        super().__init__(message)
        self.thrown_away = tuple(thrown_away)


class BaseFailed(Exception):
    """The base engine failed, so nothing was learnt about the candidate. One line."""


class Salted:
    """Numbers the passes of one question; each has prompts that no pass before it had."""

    def __init__(self, workload: Workload, tokenize: Tokenize, *name: object) -> None:
        self._workload, self._tokenize, self._name = workload, tokenize, name
        self._count = 0

    def requests(self) -> tuple[Request, ...]:
        """The requests of the next pass."""
        self._count += 1
        return prepare(self._workload, self._tokenize, salt_of(*self._name, self._count))


@dataclass(frozen=True)
class UsedPass:
    """A pass with the requests that it served and the tries that were thrown away before it."""

    run: PassRun
    requests: tuple[Request, ...]
    thrown_away: tuple[PassRun, ...] = ()


def quiet_pass(base: Arm, candidate: Arm, salted: Salted, policy: Policy, repeats: int) -> UsedPass:
    """A pass that the statistics can use, out of at most `1 + repeats` tries. Raises `TooDisturbed` and `ArmFailed`."""
    meter = CpuMeter((base.pid, candidate.pid))
    thrown: list[PassRun] = []
    reason: str | None = None
    for number in range(1 + repeats):
        requests = salted.requests()
        prefix = f"{base.label}-{candidate.label}-{number}-"
        run = run_pass(base, candidate, requests, policy, meter=meter, prefix=prefix)
        reason = too_disturbed(run.timing)
        if reason is None:
            return UsedPass(run, requests, tuple(thrown))
        thrown.append(run)
    raise TooDisturbed(f"{reason}; {len(thrown)} passes were thrown away", thrown)


#: With fewer requests a pass says little about an engine that serves several at once.
LEAST_ROWS = 4


@dataclass(frozen=True)
class FloorSettings:
    """How the noise floor is measured: so many independent pairs, over the first `rows` of the workload (None: all).

    Each pair is two fresh engines: what differs from start to start is most of what a single pass cannot average away.
    Fewer rows cost less and make the floor a little too wide, never too narrow: where all pairs would take longer than
    `seconds`, judged by how long the first engine took to serve the rows, there are fewer of them, down to
    `LEAST_ROWS`.
    """

    pairs: int = 4
    rows: int | None = 8
    policy: Policy = field(default_factory=Policy)
    repeats: int = 2
    seconds: float | None = None

    def affordable(self, rows: int, seconds: float) -> int:
        """How many of `rows`, which one engine served in `seconds`, a pair may have: two engines serve them twice."""
        needed = 4 * self.pairs * seconds
        if self.seconds is None or needed <= self.seconds:
            return rows
        return min(rows, max(LEAST_ROWS, int(rows * self.seconds / needed)))


def measure_noise_floor(
    arms: LiveArms, tree: Tree, workload: Workload, tokenize: Tokenize, settings: FloorSettings, seed: int
) -> tuple[NoiseFloor, tuple[UsedPass, ...]]:
    """A/A: the base against itself, in pairs of fresh engines. Raises `TooDisturbed` and `BaseFailed`."""
    part = workload if settings.rows is None else workload.head(settings.rows)
    salted = Salted(part, tokenize, "floor", seed, tree.commit)
    warm = salted.requests()
    used = []
    for number in range(settings.pairs):
        try:
            began = time.perf_counter()
            with ExitStack() as open_:
                one = open_.enter_context(arms.fresh(tree, "base", warm))
                served = time.perf_counter() - began
                if number == 0 and (rows := settings.affordable(len(part.rows), served)) < len(part.rows):
                    part = part.head(rows)
                    salted = Salted(part, tokenize, "floor", seed, tree.commit)
                    warm = salted.requests()
                other = open_.enter_context(arms.fresh(tree, "base", warm))
                used.append(quiet_pass(one.arm, other.arm, salted, settings.policy, settings.repeats))
        except (WorkerFailure, Misreport) as error:
            raise BaseFailed(f"the base failed in an A/A pass: {_line(error)}") from error
        except ArmFailed as error:
            raise BaseFailed(f"the base failed in an A/A pass: {_line(error.cause)}") from error
    return NoiseFloor.of([item.run.timing for item in used]), tuple(used)


def _line(error: Exception) -> str:
    return error.line if isinstance(error, WorkerFailure) else str(error)


def unit_rows(runs: Sequence[PassRun]) -> dict[str, list[list[float]]]:
    """Raw units for the evidence: `<pass>-<side>` -> rows of (order, seconds, tokens, steps, prompt tokens.

    Other CPU share).
    """
    found = {}
    for number, run in enumerate(runs):
        for side, arm in (("base", run.base), ("candidate", run.candidate)):
            found[f"{number}-{side}"] = [
                [order, unit.seconds, unit.tokens, unit.steps, unit.prompt_tokens, unit.other_cpu_share]
                for order, unit in zip(arm.order, arm.units, strict=True)
            ]
    return found
