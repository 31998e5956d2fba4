"""Handles that probes work with: a worker (a target that nothing has been started of) and a session (a started
engine).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from feedback.target import Arrays, Request, Scored, StepReport
from feedback.workers import procfs
from feedback.workers.failures import WorkerFailure, one_line
from feedback.workers.timed import Batch, run_batch
from feedback.workers.watched import WatchedProcess

#: Larger files are no source, nor an extension module that a target brings along.
_MOST_SOURCE_BYTES = 256 << 20

Role = Literal["candidate", "base", "oracle"]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Scores:
    """Teacher-forced scores, one per sequence; `logits[i]` float32 [output length, vocabulary] when they were asked
    for.
    """

    scored: tuple[Scored, ...]
    logits: tuple[np.ndarray, ...] = ()


class Worker:
    """A process that holds one tree's target. Every call raises `WorkerFailure` when the worker fails and `Unsupported`
    when the target says that it cannot do this. Used from one thread; a context manager.

    `level` is the sandbox level in force, `role` what the worker is for.
    """

    def __init__(self, process: WatchedProcess, role: Role, level: str) -> None:
        self._process = process
        self.role: Role = role
        self.level = level

    @property
    def pid(self) -> int:
        """Its process id; its threads' CPU time is accounted to it."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be asked, as far as is known."""
        return self._process.alive

    @property
    def failure(self) -> WorkerFailure | None:
        """Why it is gone, when it did not simply close."""
        return self._process.failure

    def call(self, method: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """A method of `feedback.target.Target`; arguments and result are JSON values and arrays. `timeout` in
        seconds.
        """
        if method.startswith("_") or not method.isidentifier():
            raise ValueError(f"{method!r} is no method of a target")
        request = {"op": "call", "method": method, "args": args, "kwargs": kwargs}
        return self._process.ask(method, request, self._seconds(timeout))

    def start(
        self, config: Mapping[str, Any], timeout: float | None = None, *, simulated: bool = False
    ) -> SessionHandle:
        """Start an engine; with `simulated` all of its ranks are in the worker's own process."""
        method = "start_simulated" if simulated else "start"
        request = {"op": "start", "method": method, "config": dict(config)}
        number = self._process.ask(method, request, self._seconds(timeout))
        if type(number) is not int:
            raise self._process.end("protocol", "start", "the worker does not say which session it started")
        return SessionHandle(self._process, number)

    def operator_batch(
        self,
        handle: int,
        inputs_list: Sequence[Arrays],
        repeat: int = 1,
        *,
        warmup: Arrays | None = None,
        timeout: float | None = None,
    ) -> Batch:
        """Run an opened operator over all input sets, `repeat` rounds, and time the whole on the parent's clock.

        Inputs lie in memory that this side filled; outputs are poisoned before and copied out while the worker is held.
        One untimed run comes first, on `warmup`, else on the first set; the shapes of the results are learnt from it.
        The handle is `call("operator_open", ...)`. Raises `ValueError` for inputs that cannot cross.

        Rounds after the first, and the first set where no `warmup` is given, show the operator inputs that it has seen:
        an implementation that remembers results by content gains by that. A timing that must not be fooled has fresh
        sets, one round, and a `warmup` of its own.
        """
        return run_batch(self._process, handle, inputs_list, repeat, warmup, self._seconds(timeout))

    def imported(self) -> dict[str, str]:
        """SHA-256 of every file under the tree's root that was imported so far, by path relative to the root.

        Compared with the files on disk. Raises `WorkerFailure` when they differ, or when a module of the target came
        from elsewhere.
        """
        return checked_imports(self._process, self._process.ask("imported", {"op": "imported"}, self._seconds(None)))

    def cpu_seconds(self) -> float:
        """CPU time of the process and its collected children so far."""
        return self._process.cpu_seconds()

    def rss_bytes(self) -> int:
        """Resident memory now, mapped files included; 0 when it is gone."""
        return procfs.rss_bytes(self.pid) if self._process.alive else 0

    def threads(self) -> int:
        """How many threads it has now; 0 when it is gone."""
        return procfs.threads(self.pid) if self._process.alive else 0

    def output(self) -> dict[str, str]:
        """What it printed, `stdout` and `stderr`: for the evidence folder. Kept after the end."""
        return self._process.output()

    def close(self) -> None:
        """End the process with all that it started."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _seconds(self, timeout: float | None) -> float:
        return self._process.limits.call_seconds if timeout is None else timeout


class SessionHandle:
    """A started engine in a worker; methods as in `feedback.target.Session`, answers parsed and checked."""

    def __init__(self, process: WatchedProcess, number: int) -> None:
        self._process, self._number = process, number

    def submit(self, requests: Sequence[Request | Mapping[str, Any]], timeout: float | None = None) -> None:
        """Queue requests."""
        rows = [r.model_dump(mode="json") if isinstance(r, Request) else dict(r) for r in requests]
        self._ask("submit", timeout, rows)

    def abort(self, ids: Sequence[str], timeout: float | None = None) -> None:
        """End requests early."""
        self._ask("abort", timeout, list(ids))

    def step(self, n: int, timeout: float | None = None) -> StepReport:
        """At most `n` engine steps."""
        return self._parsed("step", StepReport, self._ask("step", timeout, n))

    def score(
        self, sequences: Sequence[Mapping[str, Any]], logits: bool = False, timeout: float | None = None
    ) -> Scores:
        """Score `{"prompt": ids, "output": ids}` sequences."""
        rows = [dict(sequence) for sequence in sequences]
        answer = self._ask("score", timeout, rows, **({"logits": True} if logits else {}))
        fields = answer if isinstance(answer, dict) else {}
        items, arrays = (fields.get(name) if wanted else [] for name, wanted in (("scored", True), ("logits", logits)))
        if not (isinstance(items, list) and isinstance(arrays, list)):
            raise self._broken("score", "the answer is no table of scores")
        scored = tuple(self._parsed("score", Scored, item) for item in items)
        lengths = [len(row["output"]) for row in rows]
        if [len(item.logprob) for item in scored] != lengths:
            raise self._broken("score", "the scores do not fit the sequences")
        if (
            logits
            and [getattr(a, "shape", (None,))[0] if getattr(a, "ndim", 0) == 2 else None for a in arrays] != lengths
        ):
            raise self._broken("score", "the logits do not fit the sequences")
        return Scores(scored, tuple(arrays))

    def hidden(self, tokens: Sequence[int], layer: int, timeout: float | None = None) -> tuple[int, np.ndarray]:
        """The number of layers, and what enters one of them: float32 [tokens, size]."""
        answer = self._ask("hidden", timeout, list(tokens), layer)
        fields = answer if isinstance(answer, dict) else {}
        layers, array = fields.get("layers"), fields.get("hidden")
        if type(layers) is not int or not isinstance(array, np.ndarray) or array.shape[:1] != (len(tokens),):
            raise self._broken("hidden", "the answer is not what enters a layer, token by token")
        return layers, array

    def tokenize(self, texts: Sequence[str], chat: bool = False, timeout: float | None = None) -> list[list[int]]:
        """Token ids of each text."""
        answer = self._ask("tokenize", timeout, list(texts), chat)
        rows = answer if isinstance(answer, list) else []
        if len(rows) != len(texts) or any(not isinstance(r, list) or any(type(t) is not int for t in r) for r in rows):
            raise self._broken("tokenize", "the answer is no list of token ids per text")
        return rows

    def spans(self, level: int | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Drain the span log."""
        answer = self._ask("spans", timeout, level)
        if not isinstance(answer, dict):
            raise self._broken("spans", f"{type(answer).__name__} came instead of spans")
        return answer

    def metrics(self, timeout: float | None = None) -> dict[str, float]:
        """Counters since start."""
        answer = self._ask("metrics", timeout)
        if not isinstance(answer, dict) or any(type(value) not in (int, float) for value in answer.values()):
            raise self._broken("metrics", "the answer is no table of numbers")
        return answer

    def close(self) -> None:
        """Release the engine; the worker lives on. Nothing when the worker is gone."""
        if self._process.alive:
            self._process.ask("close", {"op": "end", "session": self._number}, self._process.limits.call_seconds)

    def _ask(self, method: str, timeout: float | None, *args: Any, **kwargs: Any) -> Any:
        request = {"op": "session", "session": self._number, "method": method, "args": args, "kwargs": kwargs}
        return self._process.ask(method, request, self._process.limits.call_seconds if timeout is None else timeout)

    def _parsed(self, method: str, model: type[Model], answer: Any) -> Model:
        try:
            return model.model_validate(answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise self._broken(method, f"{model.__name__} {where}: {first['msg']}") from error

    def _broken(self, method: str, what: str) -> WorkerFailure:
        return self._process.end("protocol", method, what)


def checked_imports(process: WatchedProcess, answer: Any) -> dict[str, str]:
    """The files that a worker says it imported, each compared with the tree on disk; raises `WorkerFailure`."""
    try:
        files = {str(path): str(digest) for path, digest in answer["files"].items()}
        foreign = [(str(name), str(place)) for name, place in answer["foreign"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise process.end("protocol", "import", "the worker does not say what it imported") from None
    if foreign:
        name, place = foreign[0]
        raise process.end("error", "import", f"{name} came from {place}, which is not in the tree {process.root}")
    for path, digest in files.items():
        place = PurePosixPath(path)
        if place.is_absolute() or ".." in place.parts:
            raise process.end("protocol", "import", f"{one_line(path, 120)} is no path in the tree")
        if _digest(process.root / place) != digest:
            raise process.end("protocol", "import", f"{one_line(path, 120)} on disk is not what the worker imported")
    return files


def _digest(path: Path) -> str | None:
    """SHA-256 of a plain file reached without links: the worker names the path, which could lead anywhere."""
    try:
        if path.resolve() != path or not path.is_file() or path.stat().st_size > _MOST_SOURCE_BYTES:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):  # a name that no file can have is a ValueError
        return None
