"""The candidate's engine in a worker that interprets its Triton kernels with the rounding of hardware (parent side)."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from feedback.judging import Bench
from feedback.kernels import trees
from feedback.kernels.rounding import Mode
from feedback.kernels.session import capability
from feedback.oracle import Oracle
from feedback.probe import Tree
from feedback.target import Unsupported
from feedback.workers.failures import WorkerFailure, one_line, optional
from feedback.workers.handle import SessionHandle, Worker
from feedback.workers.limits import Limits
from feedback.workers.pool import WorkerPool


def unavailable(worker: Worker, config: Mapping[str, Any], operators: list[str], oracle: Oracle) -> dict[str, str]:
    """Operators whose chosen implementation cannot run on this machine, each with the reason. Raises `Unsupported`
    where the target does not say.

    It is the candidate's word, and it would excuse it: of an implementation that the trusted tree has and can run, that
    is a `WorkerFailure`.
    """
    method = "unavailable_operators"
    found = optional(method, lambda: worker.call(method, dict(config), operators))
    if not isinstance(found, dict):
        raise WorkerFailure("protocol", method, f"{type(found).__name__} came, no table")
    told = {str(name): one_line(str(reason), 120) for name, reason in found.items()}
    if told:
        known = oracle.known_config(dict(config))
        trusted = oracle.unavailable(known, operators)
        for name, reason in told.items():
            chosen = config.get("operators", {}).get(name)
            if name not in trusted and known.get("operators", {}).get(name) == chosen:
                raise WorkerFailure("error", method, f"{name} cannot run here: {reason}; before the change it could")
    return told


class InterpretingWorker:
    """A copy of the candidate's tree with the interpreter inside, and a worker on it; a context manager.

    `why` is an operator that cannot run here with the reason; opening raises `Unsupported` where kernels cannot be
    interpreted here either.
    """

    def __init__(self, bench: Bench, why: tuple[str, str], limits: Limits | None = None) -> None:
        question = bench.question
        self._folder = tempfile.TemporaryDirectory(prefix="infra-agent-interpreted-")
        self._config = question.candidate.config
        self._pool: WorkerPool | None = None
        try:
            self.root = Path(self._folder.name).resolve() / "tree"
            trees.of_engine(self.root, question.candidate.root, question.adapter)
            adapter = trees.engine_adapter(question.adapter)
            self._pool = bench.context.workers.sibling(adapter, limits)
            self.worker = self._pool.open(Tree(self.root, question.candidate.commit, self._config))
            try:
                self.triton = capability(self.worker)
            except Unsupported as error:
                raise Unsupported(f"{why[0]} cannot run here ({why[1]}), nor be interpreted: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None and self.worker.alive:
                self.worker.imported()
        finally:
            self.close()

    def close(self) -> None:
        """End the worker and remove the copy."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None
        self._folder.cleanup()

    def start(self, mode: Mode, timeout: float) -> SessionHandle:
        """The engine with all its ranks in the worker's process, every kernel of it interpreted under a mode."""
        self.worker.call("interpret_sessions", mode)
        return self.worker.start(self._config, timeout, simulated=True)

    def launched(self) -> frozenset[str]:
        """Files, relative to the tree, whose kernels sessions have launched so far."""
        found = self.worker.call("launched_in_sessions")
        if not isinstance(found, list):
            raise WorkerFailure("protocol", "launched_in_sessions", f"{type(found).__name__} came, no list")
        return self.relative(found)

    def relative(self, files: Iterable[Any]) -> frozenset[str]:
        """Those of a worker's files that lie in the tree, relative to it."""
        top = f"{self.root}/"
        return frozenset(str(file).removeprefix(top) for file in files if str(file).startswith(top))

    def idle(self, operators: Iterable[str], files: Mapping[str, str], launched: Collection[str]) -> list[str]:
        """Those of the operators that did not launch a kernel of their own, though their implementation's file (by
        operator) holds one: what came back was computed some other way.
        """
        return [
            name
            for name in operators
            if not files.get(name) or (files[name] not in launched and trees.holds_kernels(self.root / files[name]))
        ]


def unfaithful(failure: WorkerFailure) -> str | None:
    """What the interpreter does not model, where that is why a call failed; None for any other failure."""
    mark = "Unfaithful: "
    if failure.error_type != "Unfaithful" and f": {mark}" not in failure.line:
        return None
    return failure.line.partition(mark)[2] or failure.line
