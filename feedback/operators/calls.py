"""Running one operator in the candidate's worker, on inputs in shared memory that the parent fills and looks into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedback.operators.checks import Call
from feedback.target import Arrays, Case, OperatorInfo
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import Worker

#: A call takes milliseconds; building an implementation may compile for seconds.
CALL_SECONDS = 30.0


class OpenOperator:
    """One implementation around one set of constants, in the candidate's worker. Calls raise `WorkerFailure`."""

    def __init__(self, worker: Worker, info: OperatorInfo, config: dict[str, Any], case: Case, inputs: Arrays) -> None:
        self._worker = worker
        self._constants = frozenset(tensor.name for tensor in info.tensors if tensor.kind == "constant")
        constants = {name: inputs[name] for name in self._constants}
        opened = worker.call("operator_open", info.name, config, case.model_dump(), constants, timeout=CALL_SECONDS)
        if type(opened) is not int:
            raise WorkerFailure("error", "operator_open", f"returned {type(opened).__name__}, not a handle")
        self._handle = opened

    def run(self, sets: Sequence[Arrays]) -> list[Call]:
        """One call per set, in order, each on its own copy of the set and into its own poisoned output slots.

        One more call, on the first set, comes before them; its results are not looked at.
        """
        given = [{name: array for name, array in one.items() if name not in self._constants} for one in sets]
        try:
            batch = self._worker.operator_batch(self._handle, given, timeout=CALL_SECONDS)
        except ValueError as error:  # results too large to set memory aside for
            raise WorkerFailure("error", "operator_run", str(error)) from error
        changed = [
            tuple(m.split(": ", 1)[1] for m in batch.mutated if m.startswith(f"set {i}: ")) for i in range(len(given))
        ]
        return [Call(one, wrote, results) for one, wrote, results in zip(given, changed, batch.outputs, strict=True)]
