"""Taking pairs: fresh engines for every instance, and on each of them passes by both methods, in changing order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from experiments.noise.moves import KnownMove
from experiments.noise.pairs import Pair
from feedback.load.ab import Arm, Policy, run_pass, too_disturbed
from feedback.load.arms import LiveArms
from feedback.load.disturbance import CpuMeter
from feedback.load.passes import Salted
from feedback.load.workload import Workload
from feedback.oracle import Oracle
from feedback.probe import Tree
from feedback.workers.pool import WorkerPool
from infra_agent.measurements.live import PASS_PATIENCE
from infra_agent.measurements.quiet import wait_for_quiet

METHODS = {"interleaved units": Policy(), "whole runs": Policy(unit_seconds=math.inf)}

#: A pass that others disturbed is taken again so often.
RETRIES = 3

#: A whole run in one call takes as long as the workload does.
CALL_SECONDS = 300.0


@dataclass
class Taken:
    """Pairs of one move by method, and how many passes were thrown away."""

    move: KnownMove
    pairs: dict[str, list[Pair]] = field(default_factory=lambda: {name: [] for name in METHODS})
    thrown_away: dict[str, int] = field(default_factory=lambda: dict.fromkeys(METHODS, 0))


@dataclass(frozen=True)
class Bench:
    """What passes are taken with."""

    pool: WorkerPool
    root: Path
    workload: Workload
    oracle: Oracle
    seed: int

    def take(self, move: KnownMove, pairs: int, instances: int, say: Callable[[str], None]) -> Taken:
        """So many pairs by each method, spread over so many pairs of fresh engines."""
        taken, arms = Taken(move), LiveArms.of(self.pool)
        trees = [Tree(self.root, f"{side}-{move.name}", dict(getattr(move, side))) for side in ("base", "candidate")]
        salted = Salted(self.workload, self.oracle.tokenize, "noise", self.seed, move.name)
        warm = salted.requests()
        for instance in range(instances):
            wait_for_quiet(PASS_PATIENCE)
            share = pairs // instances + (instance < pairs % instances)
            with (
                arms.fresh(trees[0], "base", warm, CALL_SECONDS) as base,
                arms.fresh(trees[1], "candidate", warm, CALL_SECONDS) as candidate,
            ):
                for number in range(share):
                    order = list(METHODS) if (instance + number) % 2 == 0 else list(METHODS)[::-1]
                    for method in order:
                        self._pair(taken, method, instance, base.arm, candidate.arm, salted, number)
            say(f"{move.name}: instances {instance + 1} of {instances}")
        return taken

    def _pair(
        self, taken: Taken, method: str, instance: int, base: Arm, candidate: Arm, salted: Salted, number: int
    ) -> None:
        policy = METHODS[method]
        # Whole runs have one unit each: which arm goes first has to alternate from pair to pair, not within one.
        if math.isinf(policy.unit_seconds):
            policy = Policy(policy.unit_seconds, "base_first" if number % 2 == 0 else "candidate_first")
        meter = CpuMeter((base.pid, candidate.pid))
        for attempt in range(RETRIES):
            prefix = f"{instance}-{number}-{attempt}-{method.split()[0]}-"
            run = run_pass(base, candidate, salted.requests(), policy, meter=meter, prefix=prefix)
            if too_disturbed(run.timing) is None:
                taken.pairs[method].append(Pair(instance, run.timing.log_ratio()[0]))
                return
            taken.thrown_away[method] += 1
