"""The parent's own account of what an engine delivered.

It counts the tokens itself and believes no total it is told.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedback.load.metrics import RequestRecord
from feedback.target import Request, StepReport

#: Steps without any new token, beyond one for every prompt token still to be computed, before an engine counts as
#: stuck.
PATIENCE = 64


class Misreport(Exception):
    """What an engine reported cannot be true, or is not what was asked; names the request where there is one."""

    def __init__(self, message: str, request: str | None = None) -> None:
        super().__init__(message)
        self.request = request


class Collector:
    """Gathers the progress of one engine through one set of requests; times are on whatever clock the caller keeps."""

    def __init__(self, requests: Sequence[Request], prefix: str = "") -> None:
        self._prefix = prefix
        self._asked = {prefix + request.id: request for request in requests}
        self._tokens: dict[str, list[int]] = {id: [] for id in self._asked}
        self._times: dict[str, list[float]] = {id: [] for id in self._asked}
        self._finished: dict[str, str] = {}
        self._submitted: dict[str, float] = {}
        self._silent = 0

    def submitting(self, requests: Sequence[Request], at: float) -> list[Request]:
        """The requests under the names that this engine is to know them by, noted as submitted at `at`."""
        renamed = [request.model_copy(update={"id": self._prefix + request.id}) for request in requests]
        self._submitted.update({request.id: at for request in renamed})
        return renamed

    @property
    def pending(self) -> int:
        """Submitted requests that have not finished."""
        return len(self._submitted) - len(self._finished)

    @property
    def done(self) -> bool:
        """Whether every request, submitted or not, has finished."""
        return len(self._finished) == len(self._asked)

    def take(self, report: StepReport, asked_steps: int, start: float, end: float) -> tuple[int, int]:
        """Enter one report of work between `start` and `end`; returns (output tokens, prompt tokens of requests now
        begun).

        A request's tokens are taken to be those of the last steps of the report, one a step. Raises `Misreport`.
        """
        if not 0 <= report.steps <= asked_steps:
            raise Misreport(f"reported {report.steps} steps where at most {asked_steps} were asked for")
        if report.progress and report.steps == 0:
            raise Misreport("reported new tokens without a step", self._name(report.progress[0].id))
        tokens = prompt = 0
        merged: dict[str, list[int]] = {}
        for entry in report.progress:
            self._check_open(entry.id)
            merged.setdefault(entry.id, []).extend(entry.token_ids)
            if entry.finish_reason is not None:
                self._finished[entry.id] = entry.finish_reason
        for id, new in merged.items():
            if new and not self._tokens[id]:
                prompt += len(self._asked[id].prompt_token_ids or ())
            count, steps = len(new), max(report.steps, len(new))
            self._tokens[id] += new
            self._times[id] += [start + (end - start) * (steps - count + 1 + index) / steps for index in range(count)]
            self._check_length(id)
            tokens += count
        self._check_still_moving(report, tokens)
        return tokens, prompt

    def _check_open(self, id: str) -> None:
        if id not in self._submitted:
            raise Misreport(f"reported tokens for {self._name(id)!r}, which was not submitted", self._name(id))
        if id in self._finished:
            raise Misreport(f"went on with {self._name(id)!r} after it had finished", self._name(id))

    def _check_length(self, id: str) -> None:
        request, got = self._asked[id], len(self._tokens[id])
        reason = self._finished.get(id)
        if got > request.max_tokens:
            raise Misreport(f"delivered {got} tokens where {request.max_tokens} were asked for", request.id)
        if reason is None:
            return
        if reason not in ("stop", "length"):
            raise Misreport(f"ended with {reason!r} after {got} of {request.max_tokens} tokens", request.id)
        may_stop = reason == "stop" and (not request.ignore_eos or request.stop)
        if got < request.max_tokens and not may_stop:
            raise Misreport(f"ended with {reason!r} after {got} of {request.max_tokens} tokens", request.id)

    def _check_still_moving(self, report: StepReport, tokens: int) -> None:
        if report.unfinished != self.pending:
            raise Misreport(f"says {report.unfinished} requests are unfinished where {self.pending} are")
        if not self.pending or tokens:
            self._silent = 0
            return
        self._silent += max(1, report.steps)
        waiting = sum(len(self._asked[id].prompt_token_ids or ()) for id in self._submitted if not self._tokens[id])
        if self._silent > waiting + PATIENCE:
            raise Misreport(
                f"no new token in {self._silent} steps with {self.pending} requests unfinished: it is stuck"
            )

    def _name(self, id: str) -> str:
        return id.removeprefix(self._prefix)

    def records(self) -> tuple[RequestRecord, ...]:
        """Finished requests under their own names, in the order of the workload."""
        return tuple(
            RequestRecord(
                id=request.id,
                prompt_tokens=len(request.prompt_token_ids or ()),
                token_ids=tuple(self._tokens[id]),
                token_times=tuple(self._times[id]),
                submitted=self._submitted[id],
                finish_reason=self._finished[id],
            )
            for id, request in self._asked.items()
            if id in self._finished
        )
