"""Two engines side by side: the trusted one on one rank, and the candidate over ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from feedback.generation import generate
from feedback.judging import Bench
from feedback.kernels.interpreted import InterpretingWorker, unfaithful
from feedback.kernels.rounding import Mode
from feedback.load.collect import Misreport
from feedback.oracle import Oracle
from feedback.probe import Tree
from feedback.sharded_model.shrink import Change
from feedback.target import OperatorPlan, Request
from feedback.workers.failures import WorkerFailure, one_line, optional
from feedback.workers.handle import SessionHandle, Worker

#: A start reads weights; a call computes a few hundred tokens on a few simulated ranks, interpreted a few dozen.
START_SECONDS, CALL_SECONDS, INTERPRETED_SECONDS = 120.0, 60.0, 240.0


class Pair:
    """`whole` answers for the unsharded path, with the candidate's own launch configuration but for the ranks and for
    what cannot run here (`without`: operators by name). `start` starts the candidate's engine over its ranks in
    `worker`, where a call may take `seconds`. Raises `OracleFailure` for the one side, `WorkerFailure` and
    `Unsupported` for the other.
    """

    def __init__(
        self,
        bench: Bench,
        plan: OperatorPlan,
        tie: float,
        worker: Worker,
        start: Callable[[], SessionHandle],
        seconds: float = CALL_SECONDS,
        without: Collection[str] = (),
    ) -> None:
        question, self._tie = bench.question, tie
        self._worker, self._start, self._seconds = worker, start, seconds
        known = bench.oracle.known_config(plan.unsharded)
        if without and "operators" in known:
            known["operators"] = {name: how for name, how in known["operators"].items() if name not in without}
        trusted = Tree(question.trusted.root, question.trusted.commit, known)
        self.whole = Oracle.of(bench.context.workers, trusted)
        self._session: SessionHandle | None = None

    @classmethod
    def simulated(cls, bench: Bench, plan: OperatorPlan, tie: float) -> Pair:
        """Ranks that are threads of the candidate's worker."""

        start = partial(bench.candidate.start, bench.question.candidate.config, START_SECONDS, simulated=True)
        return cls(bench, plan, tie, bench.candidate, lambda: optional("start_simulated", start))

    @classmethod
    def interpreted(
        cls,
        bench: Bench,
        plan: OperatorPlan,
        tie: float,
        inside: InterpretingWorker,
        mode: Mode,
        without: Collection[str],
    ) -> Pair:
        """The same with every kernel interpreted under a mode."""
        start = partial(inside.start, mode, START_SECONDS)
        return cls(bench, plan, tie, inside.worker, start, INTERPRETED_SECONDS, without)

    @property
    def session(self) -> SessionHandle:
        """The candidate over its ranks, started when it is first needed."""
        if self._session is None:
            self._session = self._start()
        return self._session

    def restart(self) -> None:
        """Forget what the candidate's engine remembers: the next question starts a fresh one."""
        if self._session is not None and self._worker.alive:
            self._session.close()
        self._session = None

    def logits(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Teacher-forced logits of both at every token but the last: unsharded, sharded."""
        prompt, output = list(tokens[:1]), list(tokens[1:])
        got = self.session.score([{"prompt": prompt, "output": output}], logits=True, timeout=self._seconds).logits[0]
        want = self.whole.logits(prompt, output)
        if got.shape != want.shape:
            raise WorkerFailure("protocol", "score", f"logits of shape {list(got.shape)}, not {list(want.shape)}")
        return want, got

    def hidden(self, tokens: Sequence[int], layer: int) -> float:
        """How far what enters a layer is off, over its size."""
        want = self.whole.hidden(tokens, layer)[1]
        got = self.session.hidden(tokens, layer, timeout=self._seconds)[1]
        if got.shape != want.shape:
            return float("inf")
        return off(want, got)

    def layers(self, tokens: Sequence[int]) -> int:
        """How many layers the model has."""
        return self.whole.hidden(tokens, 0)[0]

    def change(self, requests: Sequence[Request]) -> Change | None:
        """The first request whose tokens differ where the unsharded model is not undecided between the two."""
        want = {record.id: record.token_ids for record in self.whole.generated(requests)}
        try:
            records = generate(self.session, requests, timeout=self._seconds, late=1)
        except WorkerFailure as failure:
            self._session = None
            if failure.kind != "error" or unfaithful(failure) is not None:
                raise
            return Change(requests[0].id, 0, None, failure.line)
        except Misreport as error:
            self.restart()
            return Change(error.request or requests[0].id, 0, None, one_line(str(error)))
        for request, record in zip(requests, records, strict=True):
            given, wanted = tuple(record.token_ids), tuple(want[request.id])
            place = next((i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b), None)
            if place is None:
                if len(given) != len(wanted):
                    shorter = min(len(given), len(wanted))
                    return Change(request.id, shorter, None, f"{len(given)} tokens, not {len(wanted)}")
                continue
            if self._regret(request, wanted[:place], given[place]) > self._tie:
                return Change(request.id, place, (wanted[place], given[place]))
        return None

    def _regret(self, request: Request, before: Sequence[int], token: int) -> float:
        """How much less likely the unsharded model holds a token than its best, in nats."""
        prompt = [*(request.prompt_token_ids or ()), *before]
        score = self.whole.score([{"prompt": prompt, "output": [token]}])[0]
        return score.best_logprob[0] - score.logprob[0]


def off(want: np.ndarray, got: np.ndarray) -> float:
    """Largest |error| over the usual size; infinite where something is not finite."""
    size = float(np.sqrt(np.mean(np.square(want, dtype=np.float64)))) or 1.0
    error = np.abs(got.astype(np.float64) - want)
    return float(np.nan_to_num(error, nan=np.inf).max(initial=0.0)) / size
