"""Live engines for A/B passes: started, warmed up, and kept where another question will need them.

One engine of the base is kept alive per pool, since most candidates of a search are compared with the same base.
Rebuilt pairs, which only fresh processes can give, are opened and closed by whoever asks for them.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from feedback.load.ab import Arm, Side
from feedback.load.collect import Collector
from feedback.load.workload import warm_up_requests
from feedback.probe import Tree
from feedback.target import Request, StepReport
from feedback.verdict import canonical_json
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import SessionHandle, Worker
from feedback.workers.pool import WorkerPool

#: A start reads weights; one timed unit is a few engine steps. An engine that needs longer than these hangs.
START_SECONDS = 90.0
CALL_SECONDS = 30.0

#: Steps of one warm-up call: nothing is timed, and a hang is still noticed within `CALL_SECONDS`.
WARM_STEPS = 4


@dataclass(frozen=True)
class PatientSession:
    """A session whose calls have a time limit of their own; `feedback.load.ab.EngineSession`."""

    handle: SessionHandle
    seconds: float = CALL_SECONDS

    def submit(self, requests: list[Request]) -> None:
        """Queue requests."""
        self.handle.submit(requests, timeout=self.seconds)

    def step(self, n: int) -> StepReport:
        """At most `n` engine steps."""
        return self.handle.step(n, timeout=self.seconds)

    def metrics(self) -> dict[str, float]:
        """Counters since start."""
        return self.handle.metrics(timeout=self.seconds)


@dataclass(frozen=True)
class LiveArm:
    """An engine with its process. `arm` is what passes are run with."""

    worker: Worker
    arm: Arm

    @property
    def alive(self) -> bool:
        """Whether its process still answers."""
        if self.worker.failure is not None:
            return False
        try:
            self.arm.session.metrics()
        except WorkerFailure:
            return False
        return True


def peak_bytes(pid: int) -> float:
    """Largest resident set of a process so far; 0.0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            return next((float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
    except OSError:
        return 0.0


_NUMBERS: Iterator[int] = itertools.count(1)


def start_arm(worker: Worker, tree: Tree, requests: Sequence[Request], call_seconds: float = CALL_SECONDS) -> LiveArm:
    """Start an engine in an open worker and take it once through every prompt length and batch size of `requests`.

    A pass over a fresh engine would otherwise pay for what a live one has behind it: kernels generated for each shape,
    buffers, page faults. Raises `WorkerFailure`, and `Misreport` when its first reports cannot be true.
    """
    session = PatientSession(worker.start(tree.config, timeout=START_SECONDS), call_seconds)
    label = f"{tree.commit[:12]}/{next(_NUMBERS)}"
    warm = warm_up_requests(requests, prefix=f"warm-{label}")
    collector = Collector(warm)
    session.submit(collector.submitting(warm, at=0.0))
    while not collector.done:
        collector.take(session.step(WARM_STEPS), WARM_STEPS, 0.0, 1.0)
    return LiveArm(worker, Arm(label, session, worker.pid))


class LiveArms:
    """The engines of one pool that outlive a question: at most one base."""

    def __init__(self, workers: WorkerPool) -> None:
        self._workers = weakref.proxy(workers)
        self._base: tuple[str, LiveArm] | None = None
        self._tickets = itertools.count(1)

    def ticket(self) -> int:
        """A number that no question of this pool had before: a live base must not meet the same prompts twice."""
        return next(self._tickets)

    @classmethod
    def of(cls, workers: WorkerPool) -> LiveArms:
        """Those of this pool; they end with it."""
        if workers not in _ARMS:
            _ARMS[workers] = cls(workers)
        return _ARMS[workers]

    def base(self, tree: Tree, requests: Sequence[Request], call_seconds: float = CALL_SECONDS) -> LiveArm:
        """The live engine of `tree`, started when there is none or the one there is another's or dead.

        `requests` are those it is to be warm for; the key holds their lengths.
        """
        shape = [(len(request.prompt_token_ids or ()), request.max_tokens) for request in requests]
        key = canonical_json([str(tree.root), tree.commit, tree.config, shape, call_seconds])
        if self._base is not None and (self._base[0] != key or not self._base[1].alive):
            self.drop_base()
        if self._base is None:
            self._base = (key, self.open(tree, "base", requests, call_seconds))
        return self._base[1]

    def drop_base(self) -> None:
        """End the live base; the next question starts another."""
        if self._base is not None:
            self._base[1].worker.close()
            self._base = None

    def open(
        self,
        tree: Tree,
        role: Literal["base", "candidate"],
        requests: Sequence[Request],
        call_seconds: float = CALL_SECONDS,
    ) -> LiveArm:
        """A fresh, warm engine in a process of its own; the caller closes its worker."""
        worker = self._workers.open(tree, role=role)
        try:
            return start_arm(worker, tree, requests, call_seconds)
        except BaseException:
            worker.close()
            raise

    @contextlib.contextmanager
    def fresh(
        self, tree: Tree, side: Side, requests: Sequence[Request], call_seconds: float = CALL_SECONDS
    ) -> Generator[LiveArm]:
        """A fresh, warm engine for the length of a `with` block."""
        live = self.open(tree, side, requests, call_seconds)
        try:
            yield live
        finally:
            live.worker.close()


_ARMS: weakref.WeakKeyDictionary[WorkerPool, LiveArms] = weakref.WeakKeyDictionary()
